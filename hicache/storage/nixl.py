"""NixlFiles and NixlObjects: FileStorage and ObjectStorage whose bytes NIXL moves, with its plugins POSIX and OBJ."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from errno import EIO, ETIMEDOUT
from functools import partial
from itertools import count
from threading import RLock
from typing import Any, ClassVar, TypeVar

import numpy as np

from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces
from hicache.storage.environment import environment
from hicache.storage.file import HEADER, FileStorage, checked, header_of, read_object
from hicache.storage.objects import ObjectStorage
from hicache.storage.paged import Answer, page_bytes
from hicache.storage.registry import Options

QUEUES = ("aio", "posix_aio", "uring")
"""How the plugin POSIX hands its calls to the system: libaio, the AIO of POSIX, io_uring."""

Region = tuple[int, int, int, str]
"""What NIXL registers: an address or an offset, a length in bytes, the number of a file or an object, and a name."""

Result = TypeVar("Result")

READS = 3
"""How often an object that is there is read until NIXL succeeds."""

_POLL_S = 0.0002

_abandoned: list[NixlAgent] = []
"""Agents that were closed with transfers under way, with the memory of these transfers: NIXL cannot stop them."""


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """A transfer that was begun. `local`, `remote`: what is registered for it. `memory`: its buffers."""

    handle: Any
    local: Any
    remote: Any
    memory: Sequence[memoryview]


class NixlAgent:
    """Moves bytes with one plugin of NIXL. Methods raise OSError for each failure of NIXL."""

    def __init__(self, backend: str, plugin: str, parameters: Mapping[str, str]) -> None:
        """Raises ConfigurationError, naming the extra, where NIXL is not installed, or if it refuses the parameters."""
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as error:
            message = (
                f"storage backend {backend!r} needs NIXL, which cannot be imported ({error}): "
                f"pip install 'hicache[{backend}]'"
            )
            raise ConfigurationError(message) from error
        if not os.environ.get("NIXL_LOG_LEVEL"):
            # Otherwise it prints a line to the standard output for each agent.
            logging.getLogger("nixl").setLevel(logging.WARNING)
        self._plugin = plugin
        self._lock = RLock()
        self._late: list[Transfer] = []
        try:
            # Without a list, NIXL opens its plugin for networks.
            configuration = nixl_agent_config(enable_prog_thread=False, backends=[])
            self._agent: Any = nixl_agent(f"hicache-{secrets.token_hex(8)}", configuration)
            self._agent.create_backend(plugin, dict(parameters))
        except Exception as error:
            message = f"storage backend {backend!r}: NIXL's plugin {plugin} does not start: {error}"
            raise ConfigurationError(message) from error

    def move_file(self, operation: str, pieces: Sequence[memoryview], file: int) -> None:
        """READ or WRITE: move buffers from or to a file, one after the other from its beginning.

        Raises OSError if not all bytes were moved.
        """
        filled = [piece for piece in pieces if piece.nbytes]
        ends = np.cumsum([0, *[piece.nbytes for piece in filled]]).tolist()
        places = [(end, piece.nbytes, file, "") for end, piece in zip(ends, filled, strict=False)]
        # The memory of a batch may be given by two threads at once: here it is registered once at a time.
        with self._lock:
            transfer = self._begin(operation, filled, "FILE", places)
            # Asking is what moves the transfer on. It takes no longer than the disk.
            while not self._is_over(transfer):
                continue

    def move_object(self, operation: str, memory: bytearray, name: str, number: int, timeout_s: float) -> None:
        """READ or WRITE: fill a buffer from an object, or make it the content of one.

        `number`: no other transfer under way has it. Raises OSError if not all bytes were moved in time. A transfer
        that is late goes on, and keeps the buffer.
        """
        deadline = time.monotonic() + timeout_s
        self._release_late()
        buffer = memoryview(memory)
        transfer = self._begin(operation, [buffer], "OBJ", [(0, buffer.nbytes, number, name)])
        while not self._is_over(transfer):
            if time.monotonic() > deadline:
                with self._lock:
                    self._late.append(transfer)
                raise OSError(ETIMEDOUT, f"NIXL's plugin {self._plugin}: no answer within {timeout_s} s")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Release the plugin. If transfers are under way, it stays with their memory until the process ends."""
        self._release_late()
        if self._late:
            _abandoned.append(self)
        else:
            self._agent = None

    def _begin(self, operation: str, buffers: Sequence[memoryview], kind: str, places: Sequence[Region]) -> Transfer:
        agent, only = self._agent, [self._plugin]
        memory = [(np.frombuffer(one, np.uint8).__array_interface__["data"][0], one.nbytes, 0, "") for one in buffers]
        with self._lock:
            local = self._call(lambda: agent.register_memory(memory, "DRAM", only))
            remote, handle = None, None
            try:
                remote = self._call(lambda: agent.register_memory(list(places), kind, only))
                given = (operation, local.trim(), remote.trim(), agent.name, b"", only)
                handle = self._call(lambda: agent.initialize_xfer(*given))
                self._call(lambda: agent.transfer(handle))
            except OSError:
                self._end(Transfer(handle, local, remote, buffers))
                raise
            return Transfer(handle, local, remote, buffers)

    def _is_over(self, transfer: Transfer) -> bool:
        """Whether the transfer is done, and was ended. Raises OSError if it has failed, and was ended."""
        with self._lock:
            try:
                state = self._call(lambda: self._agent.check_xfer_state(transfer.handle))
            except OSError:
                self._end(transfer)
                raise
            if state == "PROC":
                return False
            self._end(transfer)
        if state != "DONE":
            raise OSError(EIO, f"NIXL's plugin {self._plugin}: a transfer ended with {state}")
        return True

    def _end(self, transfer: Transfer) -> None:
        agent, only = self._agent, [self._plugin]
        if transfer.handle is not None:
            self._call(lambda: agent.release_xfer_handle(transfer.handle))
        for registered in (transfer.local, transfer.remote):
            if registered is not None:
                self._call(partial(agent.deregister_memory, registered, only))

    def _release_late(self) -> None:
        """End the late transfers that are over."""
        with self._lock:
            self._late = [transfer for transfer in self._late if not self._is_past(transfer)]

    def _is_past(self, transfer: Transfer) -> bool:
        try:
            return self._is_over(transfer)
        except OSError:
            return True

    def _call(self, act: Callable[[], Result]) -> Result:
        """Call NIXL, which has a class of its own for each code, and no errno. Raises OSError."""
        try:
            return act()
        except Exception as error:
            raise OSError(EIO, f"NIXL's plugin {self._plugin}: {type(error).__name__}: {error}") from error


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

    def _release(self) -> None:
        super()._release()
        self._nixl.close()

    def _write_object(self, file: int, pieces: Pieces, seed: int) -> None:
        self._nixl.move_file("WRITE", [memoryview(header_of(pieces, seed)), *pieces], file)

    def _read_object(self, file: int, pieces: Pieces, seed: int) -> Answer:
        found = HEADER.size + page_bytes(pieces)
        if os.fstat(file).st_size != found:
            # NIXL does not say how many bytes a file has.
            return read_object(file, pieces, seed)
        header = bytearray(HEADER.size)
        self._nixl.move_file("READ", [memoryview(header), *pieces], file)
        return checked(header, found, pieces, seed)


class NixlObjects(ObjectStorage):
    """Stores objects as ObjectStorage does, in the same bucket, with their bytes moved by NIXL's plugin OBJ.

    obstore asks for the size of an object, lists and removes objects, and finds out at the opening whether the service
    accepts the keys: NIXL has no such requests, and no condition for a write. Each request of NIXL has a buffer of its
    own, from which a page is copied: a request that takes too long goes on, and fills it later.

    Options: those of ObjectStorage without `root`, `anonymous` and `part_bytes`. Raises ConfigurationError without the
    libraries of the extra `nixl-objects`.
    """

    NAME: ClassVar[str] = "nixl-objects"
    OPTIONS: ClassVar[tuple[str, ...]] = tuple(
        option for option in ObjectStorage.OPTIONS if option not in ("root", "anonymous", "part_bytes")
    )

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        parsed = Options(self.NAME, options, self.OPTIONS, self.SECRET_OPTIONS)
        endpoint = parsed.optional_text("endpoint")
        given = {
            "bucket": parsed.text("bucket"),
            "endpoint_override": endpoint,
            "scheme": "http" if endpoint and endpoint.startswith("http://") else "https",
            "use_virtual_addressing": "false" if endpoint else "true",
            "region": parsed.optional_text("region"),
            "access_key": parsed.optional_text("access_key_id"),
            "secret_key": parsed.optional_text("secret_access_key"),
            "session_token": parsed.optional_text("session_token"),
        }
        self._numbers = count(1)
        super().__init__(scope, options)
        # A thread of NIXL sends one request at a time. By default there are half as many threads as cores.
        given["num_threads"] = str(self._connections)
        parameters = {name: value for name, value in given.items() if value is not None}
        # NIXL has no parameter for retries. Those of AWS's library would take 26 seconds while a service is dead.
        retries = {"AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": str(self._retries + 1)}
        try:
            with environment(retries):
                self._nixl = NixlAgent(self.NAME, "OBJ", parameters)
        except ConfigurationError:
            super()._release()
            raise

    def _fetched(self, name: str, expected: int) -> tuple[int, memoryview]:
        # NIXL has one error for all failures, also for an object that was removed since it was asked for.
        for attempts_left in reversed(range(READS)):
            size = self._library.head(self._store, name)["size"]
            buffer = bytearray(expected if size == expected else 0)
            try:
                if buffer:
                    self._nixl.move_object("READ", buffer, name, next(self._numbers), self._timeout_s)
            except OSError as error:
                if not attempts_left or error.errno == ETIMEDOUT:
                    raise
            else:
                break
        return size, memoryview(buffer)

    def _send(self, name: str, content: Sequence[bytes | memoryview]) -> None:
        self._nixl.move_object("WRITE", bytearray().join(content), name, next(self._numbers), self._timeout_s)

    def _release(self) -> None:
        super()._release()
        self._nixl.close()
