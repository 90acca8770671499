"""MooncakeStorage: stores each page as an object of a Mooncake Store, without a copy in this process."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from threading import Lock
from typing import Any, TypeAlias
from urllib.request import urlopen

import numpy as np

from hicache.errors import ConfigurationError
from hicache.storage.base import BATCH_PAGES, Breaker, Pieces
from hicache.storage.environment import environment
from hicache.storage.page_io import HEADER_BYTES, checksum_bytes, identity, scatter
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.pause import Pause
from hicache.storage.registry import Options

NAME = "mooncake"
OPTIONS = (
    "host",
    "port",
    "metrics_port",
    "local_host",
    "metadata_server",
    "protocol",
    "devices",
    "segment_bytes",
    "timeout_s",
    "retry_s",
)

NAMES = 1_000
"""The most names of one question to the master."""

TRANSFERS = 512
"""The most buffers of one call: the library queues 1,024 for each node, and lets further ones fail after a second."""

MAX_PIECES = 128
"""The most pieces of a page that are transferred one by one. A page with more of them is copied into one buffer."""

WRITING_S = 2
"""How long `set` waits for a page that another client is writing: the store takes it, and it is not there yet."""

_AGAIN_S = 0.005

NO_SPACE = -200
TOO_LONG = -600
NOT_READY = -703
NOT_FOUND = -704
ALREADY_THERE = -705
LEASE_EXPIRED = -707
TRANSFER_FAILED = -800
RPC_FAILED = -900
RPC_TIMED_OUT = -901
"""Codes of the library: `enum class ErrorCode` of its `types.h`."""

_LOG_LEVEL = "ERROR"
"""What the library writes to stderr, unless MC_LOG_LEVEL says it. This backend counts and logs failures itself."""

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

Setup: TypeAlias = "tuple[tuple[Any, ...], float]"
"""The arguments of the setup of a client, and the longest wait for the master."""

_lock = Lock()
_clients: dict[Setup, tuple[Any, int]] = {}
"""The clients of this process, and how many instances use each. A close of one beside another may never end."""


class MooncakeStorage(PagedStorage):
    """Stores pages in the segments of a Mooncake Store: memory that its nodes lend, which a master assigns to objects.

    Options: `host` (127.0.0.1) and `port` (50051) of the master; `metrics_port` (9003), its HTTP port, which `stats`
    asks; `local_host` (127.0.0.1), the name of this machine for the other nodes; `metadata_server` (P2PHANDSHAKE);
    `protocol` (tcp) and `devices` of the transfers; `segment_bytes` (0), the memory that this instance lends, whose
    objects end with it; `timeout_s` (5), the longest wait for the master; `retry_s` (1), the shortest time until a
    store that failed is asked again. While the master does not answer, every answer is False. Raises ConfigurationError
    without the library of the extra `mooncake`.

    The object `hicache/SCOPE/KEY` has a checksum over scope, key and bytes, followed by the bytes. Pages are
    transferred from and to the memory of the caller; `register` registers it with the library, as RDMA needs.
    The counter `removed` is that of the whole store.
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options(NAME, options, OPTIONS)
        self._kind = _library()
        self._host = parsed.optional_text("host") or "127.0.0.1"
        self._port = parsed.optional_count("port") or 50_051
        self._metrics_port = parsed.optional_count("metrics_port") or 9_003
        arguments = (
            parsed.optional_text("local_host") or "127.0.0.1",
            parsed.optional_text("metadata_server") or "P2PHANDSHAKE",
            parsed.whole("segment_bytes", 0),
            0,
            parsed.optional_text("protocol") or "tcp",
            parsed.optional_text("devices") or "",
            f"{self._host}:{self._port}",
        )
        self._timeout_s = parsed.seconds("timeout_s", 5, 3_600)
        self._setup: Setup = arguments, self._timeout_s
        retry_s = parsed.number("retry_s", 1, 3_600)
        self._pause, self._pause_of_metrics = Pause(retry_s, time.monotonic), Pause(retry_s, time.monotonic)
        self._prefix = f"hicache/{scope}/"
        self._lock = Lock()
        self._client: Any = None
        self._is_lost = False
        self._regions: list[memoryview] = []
        self._headers: list[Bytes] = []
        self._free: list[Bytes] = []
        self._evicted: int | None = None
        self._count_evicted()
        try:
            self._asked("batch_is_exist", [self._name("")])
        except OSError as error:
            self.failed(error)

    def register(self, regions: Sequence[memoryview]) -> bool:
        self._regions = [region for region in regions if region.nbytes]
        with self._lock:
            if self._client is not None:
                self._register(self._client)
        # A call of the library returns when its transfers have ended: over TCP it closes a connection without progress.
        return True

    def breaker(self) -> Breaker:
        return self._pause.breaker

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return self._are_there([self._name(key) for key in keys])

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        return self._in_parts(self._read_some, keys, targets)

    def _read_some(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        names, whole = [self._name(key) for key in keys], [_staged(pieces) for pieces in targets]
        with self._transfers(whole) as (headers, places, sizes):
            codes = self._asked("batch_get_into_multi_buffers", names, places, sizes)
            answers = [
                self._verified(code, header, key, pieces)
                for code, header, key, pieces in zip(codes, headers, keys, whole, strict=True)
            ]
        for answer, pieces, staged in zip(answers, targets, whole, strict=True):
            if answer is Answer.DONE and staged is not pieces:
                scatter(staged[0], pieces)
        damaged = [name for name, answer in zip(names, answers, strict=True) if answer.is_damage]
        if damaged:
            self._asked("batch_remove", damaged, True)
        return answers

    def _in_parts(
        self,
        act: Callable[[Sequence[str], Sequence[Pieces]], list[Answer]],
        keys: Sequence[str],
        pages: Sequence[Pieces],
    ) -> list[Answer]:
        """The answers of several calls. After a failure, or `timeout_s`, the answer for the other pages is an error."""
        answers: list[Answer] = []
        deadline = time.monotonic() + self._timeout_s
        while len(answers) < len(keys) and (not answers or time.monotonic() < deadline):
            begin = len(answers)
            end = _end_of_part(keys, pages, begin)
            try:
                answers += act(keys[begin:end], pages[begin:end])
            except OSError as error:
                self.failed(error)
                break
        return answers + [Answer.ERROR] * (len(keys) - len(answers))

    def _verified(self, code: int, header: Bytes, key: str, pieces: Pieces) -> Answer:
        """The answer for a page of which `code` bytes have arrived, or whose read failed with `code`."""
        expected = HEADER_BYTES + page_bytes(pieces)
        # A read beyond the end of an object fails like one from a node that is gone.
        size = self._asked("get_size", self._name(key)) if code == TRANSFER_FAILED else code
        if size in (NOT_FOUND, NOT_READY):
            return Answer.ABSENT
        if 0 <= size < expected:
            return Answer.SHORT
        if code == TOO_LONG:
            return Answer.LONG
        # An object that is evicted while it is read gives the bytes of its successor.
        is_right = code in (expected, LEASE_EXPIRED) and header.tobytes() == self._header(key, pieces)
        if is_right or code == expected:
            return Answer.DONE if is_right else Answer.CORRUPT
        return self.failed(OSError(f"a read of a page failed with the code {code}"))

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        names = [self._name(key) for key in keys]
        # This also renews the leases of pages that exist: others of the batch do not evict them.
        there = self._are_there(names)
        answers = [Answer.PRESENT] * len(keys)
        left = [number for number, is_there in enumerate(there) if not is_there]
        deadline = time.monotonic() + WRITING_S
        while left:
            written = self._in_parts(self._put, [keys[one] for one in left], [sources[one] for one in left])
            for number, answer in zip(left, written, strict=True):
                answers[number] = answer
            taken = [number for number in left if answers[number] is Answer.DONE]
            answers = self._without_evicted(names, answers)
            left = [number for number in taken if answers[number] is Answer.FULL]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(_AGAIN_S)
        return answers

    def _put(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        names, whole = [self._name(key) for key in keys], [_gathered(pieces) for pieces in sources]
        with self._transfers(whole) as (headers, places, sizes):
            for header, key, pieces in zip(headers, keys, whole, strict=True):
                header[:] = np.frombuffer(self._header(key, pieces), np.uint8)
            codes = self._asked("batch_put_from_multi_buffers", names, places, sizes)
        return [self._written(code) for code in codes]

    def _written(self, code: int) -> Answer:
        if code == NO_SPACE:
            return Answer.FULL
        if code == ALREADY_THERE:
            return Answer.PRESENT
        return Answer.DONE if code == 0 else self.failed(OSError(f"a write of a page failed with the code {code}"))

    def _without_evicted(self, names: Sequence[str], answers: list[Answer]) -> list[Answer]:
        """The answers, without pages that are gone already: the store takes a page and may evict it at once."""
        kept = [number for number, answer in enumerate(answers) if answer in (Answer.DONE, Answer.PRESENT)]
        for number, is_there in zip(kept, self._are_there([names[one] for one in kept]), strict=True):
            answers[number] = answers[number] if is_there else Answer.FULL
        return answers

    def _remove_all(self) -> bool:
        pattern = "^" + self._prefix.replace(".", r"\.")
        removed = self._asked("remove_by_regex", pattern, True)
        if removed < 0:
            raise OSError(f"the store cannot be cleared: code {removed}")
        return True

    def _holdings(self) -> tuple[int, int]:
        self._count_evicted()
        names = [name for name in self._told("get_all_keys").split("\n") if name.startswith(self._prefix)]
        sizes = [self._asked("get_size", name) for name in names]
        kept = [size - HEADER_BYTES for size in sizes if size >= HEADER_BYTES]
        return len(kept), sum(kept)

    def _release(self) -> None:
        if self._client is not None:
            for memory in self._memory():
                self._client.unregister_buffer(_address(memory))
            _released(self._setup)

    def _count_evicted(self) -> None:
        """Count what the store has evicted since the last time. A master that was restarted begins at 0."""
        try:
            found = re.search(r"^master_evicted_key_count (\d+)", self._told("metrics"), re.MULTILINE)
        except OSError:
            return  # The verb that needs the master says so.
        evicted = int(found[1]) if found else 0
        with self._lock:
            if self._evicted is not None:
                self.tally.removed(max(0, evicted - self._evicted))
            self._evicted = evicted

    def _told(self, path: str) -> str:
        """What the master says over HTTP. Raises OSError."""
        url = f"http://{self._host}:{self._metrics_port}/{path}"
        failures = (OSError, HTTPException)
        with self._pause_of_metrics.attempt(failures), urlopen(url, timeout=self._timeout_s) as reply:
            return str(reply.read().decode())

    def _are_there(self, names: Sequence[str]) -> list[bool]:
        codes: list[int] = []
        for begin in range(0, len(names), NAMES):
            part = names[begin : begin + NAMES]
            codes += self._asked("batch_is_exist", part)
        return [code == 1 for code in codes]

    def _asked(self, verb: str, *arguments: object) -> Any:
        """What a verb of the client answers: codes. Raises OSError while the master does not answer."""
        with self._pause.attempt((OSError,)):
            answer = getattr(self._opened(), verb)(*arguments)
            if _has(answer, RPC_FAILED):
                # The connection was one to a master that has been restarted since, or the master is dead.
                self._reach()
                answer = getattr(self._client, verb)(*arguments)
            self._is_lost = _has(answer, RPC_FAILED) or _has(answer, RPC_TIMED_OUT)
            if self._is_lost:
                raise OSError(f"the master at {self._host}:{self._port} does not answer")
            return answer

    def _reach(self) -> None:
        """Raise OSError unless the master accepts a connection: the library tries for seconds to reach a dead one."""
        self._is_lost = True
        socket.create_connection((self._host, self._port), self._timeout_s).close()

    def _opened(self) -> Any:
        """The client. Raises OSError if the master cannot be reached. Without a setup, every call of it would crash."""
        with self._lock:
            if self._is_lost or self._client is None:
                self._reach()
            if self._client is None:
                client = _acquired(self._kind, self._setup)
                self._register(client)
                self._client = client
            return self._client

    def _register(self, client: Any) -> None:
        for memory in self._memory():
            client.register_buffer(_address(memory), memory.nbytes)

    def _memory(self) -> list[memoryview | Bytes]:
        """What is registered: the memory of the caller, and the headers."""
        return [*self._regions, *self._headers]

    @contextmanager
    def _transfers(self, pages: Sequence[Pieces]) -> Iterator[tuple[Bytes, list[list[int]], list[list[int]]]]:
        """For each page: registered memory for its header, and the addresses and sizes of the parts of its object."""
        with self._lock:
            number = next((one for one, block in enumerate(self._free) if len(block) >= len(pages)), None)
            block = self._new_headers(len(pages)) if number is None else self._free.pop(number)
        parts: list[list[memoryview | Bytes]] = [
            [header, *(piece for piece in pieces if piece.nbytes)] for header, pieces in zip(block, pages, strict=False)
        ]
        try:
            yield (
                block[: len(pages)],
                [list(map(_address, one)) for one in parts],
                [[part.nbytes for part in one] for one in parts],
            )
        finally:
            with self._lock:
                self._free.append(block)

    def _new_headers(self, pages: int) -> Bytes:
        block = np.zeros((max(pages, BATCH_PAGES), HEADER_BYTES), np.uint8)
        self._headers.append(block)
        if self._client is not None:
            self._client.register_buffer(_address(block), block.nbytes)
        return block

    def _name(self, key: str) -> str:
        return self._prefix + key

    def _header(self, key: str, pieces: Pieces) -> bytes:
        return checksum_bytes(pieces, identity(self.scope, key))


def _library() -> Any:
    """The class of the library's clients. Raises ConfigurationError, naming the extra, where it cannot be imported."""
    os.environ.setdefault("MC_LOG_LEVEL", _LOG_LEVEL)
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        raise ConfigurationError(
            f"storage backend {NAME!r} needs the client of Mooncake Store, which cannot be imported ({error}): "
            "pip install 'hicache[mooncake]', and on Debian apt-get install libibverbs1 libnl-3-200 libnl-route-3-200"
        ) from error
    return MooncakeDistributedStore


def _settings(timeout_s: float) -> dict[str, str]:
    """The environment of the setup of a client. What bounds transfers is read later, and stays for the process."""
    for name in ("MC_TCP_STATUS_TIMEOUT_SEC", "MC_TCP_PROGRESS_TIMEOUT_SEC"):
        os.environ.setdefault(name, str(math.ceil(timeout_s)))
    milliseconds = str(math.ceil(timeout_s * 1_000))
    return {
        "MC_RPC_TIMEOUT_MS": milliseconds,
        "MC_RPC_CONNECT_TIMEOUT_MS": milliseconds,
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    }


def _acquired(kind: Any, setup: Setup) -> Any:
    """The client of this process with this setup. Raises OSError if the master does not answer."""
    with _lock:
        client, users = _clients.get(setup, (None, 0))
        if client is None:
            arguments, timeout_s = setup
            client = kind()
            with environment(_settings(timeout_s)):
                code = client.setup(*arguments)
            if code:
                raise OSError(f"the client of the store cannot be set up: code {code}")
        _clients[setup] = client, users + 1
        return client


def _released(setup: Setup) -> None:
    """Close the client of this process with this setup, unless another instance uses it."""
    with _lock:
        client, users = _clients.pop(setup)
        if users > 1:
            _clients[setup] = client, users - 1
        else:
            client.close()


def _end_of_part(keys: Sequence[str], pages: Sequence[Pieces], begin: int) -> int:
    """The end of the pages from `begin` on that one call transfers: at least one, and each key once.

    Of two equal names in one call the library transfers one.
    """
    end, count, names = begin, 0, set[str]()
    while end < len(pages) and keys[end] not in names:
        count += _transfers_of(pages[end])
        if end > begin and count > TRANSFERS:
            break
        names.add(keys[end])
        end += 1
    return end


def _transfers_of(pieces: Pieces) -> int:
    return 1 + (len(pieces) if len(pieces) <= MAX_PIECES else 1)


def _staged(pieces: Pieces) -> Pieces:
    """The pieces, or one buffer of their size in the place of too many of them."""
    return pieces if len(pieces) <= MAX_PIECES else [memoryview(bytearray(page_bytes(pieces)))]


def _gathered(pieces: Pieces) -> Pieces:
    """The pieces, or one buffer with the bytes of too many of them."""
    return pieces if len(pieces) <= MAX_PIECES else [memoryview(b"".join(pieces))]


def _address(memory: memoryview | Bytes) -> int:
    return int(np.asarray(memory).__array_interface__["data"][0])


def _has(answer: Any, code: int) -> bool:
    return code == answer if isinstance(answer, int) else code in answer
