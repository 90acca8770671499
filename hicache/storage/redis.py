"""RedisStorage: stores each page as a string in servers that speak the Redis protocol, such as Redis or Valkey."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, ClassVar

from hicache.errors import ConfigurationError
from hicache.storage.base import Breaker, Pieces
from hicache.storage.page_io import HEADER_BYTES, identity
from hicache.storage.paged import Answer, PagedStorage
from hicache.storage.pause import Pause
from hicache.storage.redis_cluster import RedisCluster, SingleServer
from hicache.storage.redis_server import COMMANDS, Address, Page, RedisServer
from hicache.storage.registry import Options

NAME = "redis"

PLACE = ("socket", "host", "port", "database")
"""The options of a single server."""

OPTIONS = (*PLACE, "nodes", "username", "password", "timeout_s", "retry_s")

_NODE = re.compile(r"(?:\[(.+)\]|([^:\[\]]+)):(\d{1,5})")


class RedisStorage(PagedStorage):
    """Stores pages in one server, or in a cluster. The memory limits and the eviction policy there are the capacity.

    Options: `socket`, the path of a Unix socket, or `host` (127.0.0.1) and `port` (6379), and `database` (0); or
    `nodes`, some nodes of a cluster as `HOST:PORT`, which name all others; `username` and `password`; `timeout_s` (5),
    the longest wait for a part of a reply or until the server takes a piece of a page, and the time after which get and
    set begin no further page; `retry_s` (1), the shortest time until a server that failed is asked again. While a
    server does not answer, every answer for its keys is False. Raises ConfigurationError without the library of the
    extra `redis`, and when a server refuses the user, the database or the keys, or has no cluster.

    The key `hicache/SCOPE/KEY` has a checksum over scope, key and bytes, followed by the bytes. `clear` and `stats`
    visit all keys of all servers. The counter `removed` is that of the whole servers.
    """

    SECRET_OPTIONS: ClassVar[tuple[str, ...]] = ("password",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options(NAME, options, OPTIONS, self.SECRET_OPTIONS)
        self._library = _library()
        self._timeout_s = parsed.seconds("timeout_s", 5, 3_600)
        self._prefix = f"hicache/{scope}/"
        self._servers = self._opened(parsed)
        self._evicted: dict[str, int] = {}
        self._lock = Lock()
        self._check_access()
        self._count_evicted()

    def breaker(self) -> Breaker:
        return self._servers.breaker

    def _opened(self, parsed: Options) -> SingleServer | RedisCluster:
        retry_s = parsed.number("retry_s", 1, 3_600)
        pause = Pause(retry_s, time.monotonic)
        path, nodes = parsed.optional_text("socket"), _nodes(parsed)
        database = {"db": parsed.whole("database", 0)}
        address = (parsed.optional_text("host") or "127.0.0.1", parsed.optional_count("port") or 6379)
        how = {
            "username": parsed.optional_text("username"),
            "password": parsed.optional_text("password"),
            "socket_timeout": self._timeout_s,
            "socket_connect_timeout": self._timeout_s,
            "retry": self._library.retry.Retry(self._library.backoff.NoBackoff(), 0),
            "protocol": 2,
        }

        def at(to: Address, **place: Any) -> RedisServer:
            pool = self._library.ConnectionPool(**({"host": to[0], "port": to[1]} | place), **how)
            return RedisServer(self._library, to, pool, pause)

        if nodes:
            return RedisCluster(self._library, at, nodes, pause, retry_s)
        if path is None:
            return SingleServer(at(address, **database), pause)
        kind = self._library.UnixDomainSocketConnection
        pool = self._library.ConnectionPool(connection_class=kind, path=path, **how, **database)
        return SingleServer(RedisServer(self._library, (path, 0), pool, pause), pause)

    def _check_access(self) -> None:
        """Raise ConfigurationError if a server refuses the user, the database, the keys of the scope or the cluster."""
        commands = [(b"EXISTS", self._name("")), *self._servers.questions]
        for replies in self._servers.ask(self._servers.first, lambda server: server.replies(commands)):
            for reply in replies:
                cause = reply.__cause__ if isinstance(reply, OSError) else reply
                if isinstance(cause, (self._library.AuthenticationError, self._library.ResponseError)):
                    self._refuse(cause)
                if isinstance(reply, OSError):
                    self.failed(reply)

    def _refuse(self, cause: Exception) -> None:
        """Raise ConfigurationError, unless a node of the cluster only names another one, or has none to name."""
        errors = self._library.exceptions
        if isinstance(self._servers, SingleServer) or not isinstance(cause, (errors.AskError, errors.ClusterDownError)):
            hint = (
                ": it is a node of a cluster, which the option `nodes` is for"
                if isinstance(cause, errors.AskError)
                else ""
            )
            raise ConfigurationError(f"storage backend {NAME!r}: the server refuses the access: {cause}{hint}")

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return self._are_there(b"EXISTS", [self._name(key) for key in keys])

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        pages, deadline = self._pages(keys, targets), time.monotonic() + self._timeout_s

        def read(server: RedisServer, numbers: Sequence[int], asking: bool) -> list[Any]:
            return server.read([pages[number] for number in numbers], deadline, asking=asking)

        answers = self._as_answers(self._servers.each([page.name for page in pages], read, deadline))
        # An object that another instance has replaced meanwhile is lost with the damaged ones.
        self._each(b"UNLINK", [page.name for page, answer in zip(pages, answers, strict=True) if answer.is_damage])
        return answers

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        pages = self._pages(keys, sources)
        # TOUCH, unlike EXISTS, makes a page that exists the most recently used one.
        found = self._each(b"TOUCH", [page.name for page in pages])
        answers = [Answer.PRESENT if reply == 1 else Answer.ERROR for reply in found]
        absent = [number for number, reply in enumerate(found) if reply == 0]
        written = self._write_absent([pages[number] for number in absent])
        for number, answer in zip(absent, written, strict=True):
            answers[number] = answer
        return self._without_evicted(pages, answers)

    def _write_absent(self, pages: Sequence[Page]) -> list[Answer]:
        deadline = time.monotonic() + self._timeout_s

        def write(server: RedisServer, numbers: Sequence[int], asking: bool) -> list[Any]:
            return server.write([pages[number] for number in numbers], deadline, asking=asking)

        return self._as_answers(self._servers.each([page.name for page in pages], write, deadline))

    def _without_evicted(self, pages: Sequence[Page], answers: list[Answer]) -> list[Answer]:
        """The answers, without the pages that a server has evicted for others of the batch."""
        kept = [number for number, answer in enumerate(answers) if answer in (Answer.DONE, Answer.PRESENT)]
        there = self._each(b"EXISTS", [pages[number].name for number in kept])
        for number, reply in zip(kept, there, strict=True):
            if reply != 1:
                answers[number] = Answer.FULL if reply == 0 else Answer.ERROR
        return answers

    def _remove_all(self) -> bool:
        for names in self._scanned():
            self._each(b"UNLINK", names)
        return not any(self._scanned()) and not self._servers.uncovered

    def _holdings(self) -> tuple[int, int]:
        self._count_evicted()
        sizes: dict[bytes, int] = {}
        try:
            for names in self._scanned():
                replies = self._each(b"STRLEN", names)
                sizes.update({name: size for name, size in zip(names, replies, strict=True) if isinstance(size, int)})
        except OSError as error:
            # What the other servers have is counted.
            self.failed(error)
        kept = [size - HEADER_BYTES for size in sizes.values() if size >= HEADER_BYTES]
        return len(kept), sum(kept)

    def _release(self) -> None:
        self._servers.close()

    def _scanned(self) -> Iterator[list[bytes]]:
        """The names of the pages of this scope, in parts that are not empty. A name may come twice.

        Raises OSError at the end if a server did not answer.
        """
        cursors = dict.fromkeys(self._servers.primaries(), b"0")
        problem: Exception | None = None if cursors else OSError("no node of the cluster answers")
        while cursors:
            names: list[bytes] = []
            for server, reply in zip(list(cursors), self._scan(cursors), strict=True):
                if isinstance(reply, Exception):
                    problem, cursor = reply, b"0"
                else:
                    cursor = reply[0]
                    names += reply[1]
                cursors[server] = cursor
            cursors = {server: cursor for server, cursor in cursors.items() if cursor != b"0"}
            if names:
                yield names
        if problem is not None:
            raise OSError(str(problem)) from problem

    def _scan(self, cursors: Mapping[RedisServer, bytes]) -> list[Any]:
        """For each server its next cursor with some names, or the exception in the place of them."""
        how = (b"MATCH", self._prefix.encode() + b"*", b"COUNT", b"%d" % COMMANDS)
        found = self._servers.ask(cursors, lambda server: server.replies([(b"SCAN", cursors[server], *how)]))
        return [reply for (reply,) in found]

    def _count_evicted(self) -> None:
        """Count what the servers have evicted since the last time. A server that was restarted begins at 0."""
        servers = self._servers.primaries()
        found = self._servers.ask(servers, lambda server: server.replies([(b"INFO", b"stats")]))
        # Where a server does not answer, the verb that needs it says so.
        told = {server.name: reply for server, (reply,) in zip(servers, found, strict=True) if isinstance(reply, bytes)}
        with self._lock:
            for name, reply in told.items():
                fields = dict(line.split(b":", 1) for line in reply.split() if b":" in line)
                evicted = int(fields.get(b"evicted_keys", 0))
                self.tally.removed(max(0, evicted - self._evicted.get(name, evicted)))
                self._evicted[name] = evicted

    def _are_there(self, command: bytes, names: Sequence[bytes]) -> list[bool]:
        """Whether each object exists, by a command that answers with the number of those that do."""
        return [reply == 1 for reply in self._each(command, names)]

    def _each(self, command: bytes, names: Sequence[bytes]) -> list[Any]:
        """The reply to a short command for each name, or the exception in the place of it."""

        def ask(server: RedisServer, numbers: Sequence[int], asking: bool) -> list[Any]:
            return server.replies([(command, names[number]) for number in numbers], asking=asking)

        replies = self._servers.each(names, ask, time.monotonic() + self._timeout_s)
        self._as_answers(replies)
        return replies

    def _as_answers(self, found: Sequence[Any]) -> list[Any]:
        """The answers, with ERROR for each exception."""
        return [self.failed(one) if isinstance(one, Exception) else one for one in found]

    def _pages(self, keys: Sequence[str], pages: Sequence[Pieces]) -> list[Page]:
        named = zip(keys, pages, strict=True)
        return [Page(self._name(key), identity(self.scope, key), pieces) for key, pieces in named]

    def _name(self, key: str) -> bytes:
        return (self._prefix + key).encode()


def _library() -> Any:
    """The module of redis-py. Raises ConfigurationError, naming the extra, where it is not installed."""
    try:
        import redis
        import redis.backoff
        import redis.crc
        import redis.retry
    except ImportError as error:
        message = f"storage backend {NAME!r} needs redis-py, which is not installed: pip install 'hicache[redis]'"
        raise ConfigurationError(message) from error
    return redis


def _nodes(parsed: Options) -> list[Address]:
    """The addresses of the option `nodes`; none if it is missing."""
    nodes = parsed.optional_texts("nodes")
    if nodes is None:
        return []
    for name in PLACE:
        if parsed.has(name):
            parsed.refuse("nodes", nodes, f"nothing beside the option {name!r}, which is for a single server")
    found = [_NODE.fullmatch(node) for node in nodes]
    if not found or None in found:
        parsed.refuse("nodes", nodes, "a list of HOST:PORT that is not empty")
    return [(one[1] or one[2], int(one[3])) for one in found if one is not None]
