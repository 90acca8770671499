"""NixlFiles: FileStorage whose bytes NIXL moves, with its plugin POSIX; NixlAgent: one transfer of NIXL at a time."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from errno import EIO
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces
from hicache.storage.file import HEADER, FileStorage, checked, header_of, read_object
from hicache.storage.paged import Answer, page_bytes
from hicache.storage.registry import Options

QUEUES = ("aio", "posix_aio", "uring")
"""How the plugin POSIX hands its calls to the system: libaio, the AIO of POSIX, io_uring."""

Region = tuple[int, int, int, str]
"""What NIXL registers: an address in memory or an offset in a file, a length in bytes, a device or file, metadata."""


class NixlAgent:
    """Moves bytes with one plugin of NIXL. Methods raise OSError for each failure of NIXL."""

    def __init__(self, backend: str, plugin: str, parameters: Mapping[str, str]) -> None:
        """Raises ConfigurationError, naming the extra, where NIXL is not installed, or if it refuses the parameters."""
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as error:
            message = f"storage backend {backend!r} needs NIXL, which is not installed: pip install 'hicache[nixl]'"
            raise ConfigurationError(message) from error
        if not os.environ.get("NIXL_LOG_LEVEL"):
            # Otherwise it prints a line to the standard output for each agent.
            logging.getLogger("nixl").setLevel(logging.WARNING)
        self._plugin = plugin
        # The memory of a batch may be registered by two threads at once.
        self._lock = Lock()
        try:
            # Without a list, NIXL opens its plugin for networks.
            configuration = nixl_agent_config(enable_prog_thread=False, backends=[])
            self._agent: Any = nixl_agent(f"hicache-{secrets.token_hex(8)}", configuration)
            self._agent.create_backend(plugin, dict(parameters))
        except Exception as error:
            message = (
                f"storage backend {backend!r}: NIXL's plugin {plugin} does not start with {dict(parameters)}: {error}"
            )
            raise ConfigurationError(message) from error

    def move(self, operation: str, pieces: Sequence[memoryview], file: int) -> None:
        """READ or WRITE: move buffers from or to a file, one after the other from its beginning.

        Raises OSError if not all bytes were moved.
        """
        memory: list[Region] = []
        places: list[Region] = []
        end = 0
        for piece in pieces:
            if piece.nbytes:
                memory.append((np.frombuffer(piece, np.uint8).__array_interface__["data"][0], piece.nbytes, 0, ""))
                places.append((end, piece.nbytes, file, ""))
                end += piece.nbytes
        with self._lock:
            try:
                self._transfer(operation, memory, places)
            except Exception as error:
                # NIXL has classes of its own for each code, and no errno.
                raise OSError(EIO, f"NIXL's plugin {self._plugin}: {type(error).__name__}: {error}") from error

    def _transfer(self, operation: str, memory: list[Region], places: list[Region]) -> None:
        agent, only = self._agent, [self._plugin]
        local = agent.register_memory(memory, "DRAM", only)
        try:
            remote = agent.register_memory(places, "FILE", only)
            try:
                transfer = agent.initialize_xfer(operation, local.trim(), remote.trim(), agent.name, b"", only)
                try:
                    state = agent.transfer(transfer)
                    # Asking is what moves the transfer on. It does not wait for longer than the disk does.
                    while state == "PROC":
                        state = agent.check_xfer_state(transfer)
                finally:
                    agent.release_xfer_handle(transfer)
            finally:
                agent.deregister_memory(remote, only)
        finally:
            agent.deregister_memory(local, only)
        if state != "DONE":
            raise OSError(EIO, f"a transfer ended with {state}")


class NixlFiles(FileStorage):
    """Stores objects as FileStorage does, in the same files, with the bytes of pages moved by NIXL's plugin POSIX.

    Options: those of FileStorage, and `queue`: aio, posix_aio or uring, how NIXL calls the system; by default it
    chooses. Raises ConfigurationError without the library of the extra `nixl`.
    """

    NAME: ClassVar[str] = "nixl"
    OPTIONS: ClassVar[tuple[str, ...]] = (*FileStorage.OPTIONS, "queue")

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        parsed = Options(self.NAME, options, self.OPTIONS)
        queue = parsed.optional_text("queue")
        if queue is not None and queue not in QUEUES:
            parsed.refuse("queue", queue, f"one of {', '.join(QUEUES)}")
        self._nixl = NixlAgent(self.NAME, "POSIX", {f"use_{queue}": "true"} if queue else {})
        super().__init__(scope, options)

    def _write_object(self, file: int, pieces: Pieces, seed: int) -> None:
        self._nixl.move("WRITE", [memoryview(header_of(pieces, seed)), *pieces], file)

    def _read_object(self, file: int, pieces: Pieces, seed: int) -> Answer:
        found = HEADER.size + page_bytes(pieces)
        if os.fstat(file).st_size != found:
            # NIXL does not say how many bytes a file has.
            return read_object(file, pieces, seed)
        header = bytearray(HEADER.size)
        self._nixl.move("READ", [memoryview(header), *pieces], file)
        return checked(header, found, pieces, seed)
