"""LMCache's storage clients under the backend suite: its files (`LMCacheFSClient`) and Redis (`LMCacheRedisClient`).

They are the C++ clients of LMCache's L2 adapters `fs_native` and `resp`, and get the calls of these: a batch is
submitted, and its completion is read when the client's event descriptor says so. A batch of `set` has one answer for
all pages. What a client refuses with RuntimeError, before it does anything, is refused: False for each page.

A scope is a model's name, and `kv.tp1of2.cp0of1.pp0of1/9f86` becomes LMCache's key `model@02010201@0@9f86`: the rank
as LMCache computes it from the number of workers and the worker's number, the pool as the number of an object group,
and the hash of the chunk. Of a key in another form the hash is its SHA-256. Neither client lists or clears what it has
stored: for `clear` and `stats` the adapter reads names from the folder or the server, and the client deletes them.
"""

from __future__ import annotations

import hashlib
import re
import select
import socket
import threading
import time
import zlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hicache.engines.imports import import_quietly, installed_release, require_release
from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces, StorageBackend, StorageStats
from hicache.storage.registry import Options

ANSWER_S = 10.0
"""How long a completion is waited for. The client for Redis has none at all for a page that is not there."""

WORKERS = 4
"""The threads of a client, if no option says it. For Redis each has a connection."""

ENVIRONMENT: Mapping[str, str] = {"LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}

_PAGE = re.compile(
    r"(?P<pool>[\w-]+)\.tp(?:all|(?P<tp>\d+)of(?P<tps>\d+))"
    r"\.cp(?P<cp>\d+)of(?P<cps>\d+)\.pp(?P<pp>\d+)of(?P<pps>\d+)/(?P<hash>[0-9a-f]+)",
    re.ASCII,
)


def lmcache_version() -> str | None:
    """The installed release of LMCache, or None."""
    return installed_release("lmcache")


class LmcacheStorage(StorageBackend):
    """One of LMCache's clients. A subclass opens it, and lists the names of the scope."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        self._scope = scope
        try:
            self._client: Any = self._open(options)
        except ImportError as error:
            raise ConfigurationError(f"LMCache's storage cannot be opened: {error}") from error
        self._event = select.poll()
        self._event.register(self._client.event_fd(), select.POLLIN)
        self._reading = threading.Lock()
        self._completed: dict[int, tuple[bool, list[bool] | None]] = {}
        self._lent: dict[int, Sequence[memoryview]] = {}

    @abstractmethod
    def _open(self, options: Mapping[str, Any]) -> Any:
        """Open the client. Raises ImportError when LMCache is not installed."""

    @abstractmethod
    def _stored(self) -> list[str]:
        """The keys of the scope in LMCache's form. Raises OSError."""

    @abstractmethod
    def _sizes(self) -> list[int]:
        """The number of bytes of each object of the scope. Raises OSError."""

    def has(self, keys: Sequence[str]) -> list[bool]:
        return self._each(self._client.submit_batch_exists, self._names(keys)) if keys else []

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        buffers = [only_piece(target) or memoryview(bytearray(size_of(target))) for target in targets]
        answers = self._each(self._client.submit_batch_get, self._names(keys), buffers)
        for is_read, buffer, target in zip(answers, buffers, targets, strict=False):
            if is_read and buffer is not only_piece(target):
                scatter(buffer, target)
        return answers

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        buffers = [only_piece(source) or memoryview(bytearray().join(source)) for source in sources]
        is_set, _ = self._asked(self._client.submit_batch_set, self._names(keys), buffers)
        return [is_set] * len(keys)

    def clear(self) -> bool:
        try:
            names = self._stored()
        except OSError:
            return False
        return not names or all(self._each(self._client.submit_batch_delete, names))

    def stats(self) -> StorageStats:
        """The objects of the scope alone, as the clients count nothing."""
        sizes = self._sizes()
        return StorageStats(len(sizes), sum(sizes), 0, {}, 0, 0, {}, 0, 0, 0)

    def close(self) -> None:
        self._client.close()

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [key_name(self._scope, key) for key in keys]

    def _each(self, submit: Callable[..., Any], names: list[str], *buffers: list[memoryview]) -> list[bool]:
        """The answer to each key. Without answers, as after a failure, LMCache's adapter takes all for missed."""
        _, answers = self._asked(submit, names, *buffers)
        return [False] * len(names) if answers is None else answers

    def _asked(
        self, submit: Callable[..., Any], names: list[str], *buffers: list[memoryview]
    ) -> tuple[bool, list[bool] | None]:
        """Submit a batch and wait: whether all of it was done, and the answer to each key. Raises TimeoutError."""
        try:
            number = int(submit(names, *buffers))
        except RuntimeError:
            return False, None
        # The client has only addresses of the buffers: after a TimeoutError they are kept until the client is closed.
        self._lent[number] = [buffer for batch in buffers for buffer in batch]
        answer = self._completion(number)
        del self._lent[number]
        return answer

    def _completion(self, number: int) -> tuple[bool, list[bool] | None]:
        until = time.monotonic() + ANSWER_S
        with self._reading:  # one thread reads the completions for all
            while number not in self._completed:
                left = max(0.0, until - time.monotonic())
                if not self._event.poll(left * 1000):
                    raise TimeoutError(f"LMCache's client has not completed a batch within {ANSWER_S:g} seconds")
                for done, is_done, _, answers in self._client.drain_completions():
                    self._completed[done] = bool(is_done), answers
            return self._completed.pop(number)


class LmcacheFiles(LmcacheStorage):
    """LMCache's client for files. Options: `directory`, and the number of `workers`."""

    def _open(self, options: Mapping[str, Any]) -> Any:
        read = Options("lmcache-fs", options, ("directory", "workers"))
        self._folder = Path(read.text("directory"))
        workers = read.optional_count("workers") or WORKERS
        return lmcache_class("lmcache.lmcache_fs", "LMCacheFSClient")(str(self._folder), workers)

    def _stored(self) -> list[str]:
        return [file.stem.replace("@0x", "@") for file in self._files()]

    def _sizes(self) -> list[int]:
        return [file.stat().st_size for file in self._files()]

    def _files(self) -> list[Path]:
        found = (file for file in self._folder.iterdir() if file.name.startswith(f"{self._scope}@"))
        return [file for file in found if file.suffix == ".data"]


class LmcacheRedis(LmcacheStorage):
    """LMCache's client for Redis. Options: `host`, `port`, and the number of `workers`.

    `get` first asks which pages are there, as LMCache does before it loads. A load of a page that is not there is never
    completed, and its connection waits forever: should the server lose a page in between, `get` raises TimeoutError.
    """

    def _open(self, options: Mapping[str, Any]) -> Any:
        read = Options("lmcache-redis", options, ("host", "port", "workers"))
        self._address = read.text("host"), read.count("port")
        workers = read.optional_count("workers") or WORKERS
        return lmcache_class("lmcache.lmcache_redis", "LMCacheRedisClient")(*self._address, workers)

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if len(keys) != len(targets):
            return super().get(keys, targets, prefix_keys)
        answers = self.has(keys)
        there = [number for number, is_there in enumerate(answers) if is_there]
        if there:
            read = super().get([keys[number] for number in there], [targets[number] for number in there], prefix_keys)
            for number, is_read in zip(there, read, strict=True):
                answers[number] = is_read
        return answers

    def _stored(self) -> list[str]:
        return [name.decode() for name in self._said(f"KEYS {self._scope}@*")]

    def _sizes(self) -> list[int]:
        return [self._said(f"STRLEN {name}") for name in self._stored()]

    def _said(self, command: str) -> Any:
        """The server's answer to a command, past LMCache: a number, a text, or a list of them."""
        with socket.create_connection(self._address) as server, server.makefile("rwb") as lines:
            lines.write(f"{command}\r\n".encode())
            lines.flush()
            return _read(lines)


def lmcache_class(module: str, name: str) -> Any:
    """A class or function of LMCache. Raises ImportError when LMCache, or what it needs, is not installed."""
    require_release("lmcache", lmcache_version(), ENVIRONMENT)
    return import_quietly(module, name)[0]


def key_name(scope: str, key: str) -> str:
    """LMCache's key: model, rank, object group and hash."""
    found = _PAGE.fullmatch(key)
    if found is None:
        return f"{scope}@00000000@0@{hashlib.sha256(key.encode()).hexdigest()}"
    tp, tps, cp, cps, pp, pps = (int(found[name] or 0) for name in ("tp", "tps", "cp", "cps", "pp", "pps"))
    worker, workers = (pp * cps + cp) * max(1, tps) + tp, pps * cps * max(1, tps)
    group = 0 if found["pool"] == "kv" else zlib.crc32(found["pool"].encode())
    return f"{scope}@{workers:02x}{worker:02x}{workers:02x}{worker:02x}@{group:x}@{found['hash']}"


def _read(lines: Any) -> Any:
    """One answer of a Redis server."""
    line = lines.readline().rstrip(b"\r\n")
    if line[:1] == b"*":
        return [_read(lines) for _ in range(int(line[1:]))]
    if line[:1] == b"$":
        return lines.read(int(line[1:]) + 2)[:-2]
    if line[:1] == b":":
        return int(line[1:])
    raise OSError(f"the Redis server answers {line!r}")


def only_piece(page: Pieces) -> memoryview | None:
    """The only piece of a page, which goes to the client unchanged; a client takes one buffer for each page."""
    return page[0] if len(page) == 1 else None


def size_of(page: Pieces) -> int:
    """The bytes of a page."""
    return sum(piece.nbytes for piece in page)


def scatter(page: memoryview, target: Pieces) -> None:
    """Copy the bytes of a page into its pieces."""
    begin = 0
    for piece in target:
        piece[:] = page[begin : begin + piece.nbytes]
        begin += piece.nbytes
