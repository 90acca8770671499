"""RedisStorage: stores each page as a string in a server that speaks the Redis protocol, such as Redis or Valkey."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from threading import Lock
from typing import Any, ClassVar

from hicache.errors import ConfigurationError
from hicache.storage.base import Breaker, Pieces
from hicache.storage.page_io import checksum, identity
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.pause import Pause
from hicache.storage.registry import Options

NAME = "redis"
OPTIONS = ("socket", "host", "port", "username", "password", "database", "timeout_s", "retry_s")

HEADER_BYTES = 8
"""The checksum in front of the bytes of a page, little-endian."""

READ_BYTES = 8 << 20
"""The bytes of pages that are requested at once: the server keeps replies that wait in its own memory."""

COMMANDS = 1_000
"""The most short commands that are sent before their replies are read."""

_BUFFER_BYTES = 16 << 10

_WRONG_KIND = b"-WRONGTYPE"
"""The error of a key that holds something else than a string."""

_LENGTH = re.compile(rb"\$(-1|\d+)\r\n")


class RedisStorage(PagedStorage):
    """Stores pages in one server. The memory limit and the eviction policy of the server are the capacity.

    Options: `socket`, the path of a Unix socket, or `host` (127.0.0.1) and `port` (6379); `username` and `password`;
    `database` (0); `timeout_s` (5), the longest wait for a part of a reply or until the server takes a piece of a page,
    and the time after which get and set begin no further page; `retry_s` (1), the shortest time until a server that
    failed is asked again. While the server does not answer, every answer is False. Raises ConfigurationError without
    the library of the extra `redis`, and when the server refuses the user, the database or the keys.

    The key `hicache/SCOPE/KEY` has a checksum over scope, key and bytes, followed by the bytes. `clear` and `stats`
    visit all keys of the server. The counter `removed` is that of the whole server.
    """

    SECRET_OPTIONS: ClassVar[tuple[str, ...]] = ("password",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options(NAME, options, OPTIONS, self.SECRET_OPTIONS)
        self._library = _library()
        self._timeout_s = parsed.number("timeout_s", 5, 3_600)
        if not self._timeout_s:
            parsed.refuse("timeout_s", self._timeout_s, "more than 0 seconds")
        self._prefix = f"hicache/{scope}/"
        self._pool = self._connections(parsed)
        # redis-py raises ValueError for a reply that should be a number.
        self._failures = (self._library.RedisError, OSError, ValueError)
        self._pause = Pause(parsed.number("retry_s", 1, 3_600), time.monotonic)
        self._evicted: int | None = None
        self._lock = Lock()
        self._check_access()
        self._count_evicted()

    def breaker(self) -> Breaker:
        return self._pause.breaker

    def _connections(self, parsed: Options) -> Any:
        place: dict[str, Any] = {"connection_class": self._library.Connection}
        path = parsed.optional_text("socket")
        if path is None:
            place["host"] = parsed.optional_text("host") or "127.0.0.1"
            place["port"] = parsed.optional_count("port") or 6379
        else:
            place["connection_class"], place["path"] = self._library.UnixDomainSocketConnection, path
        return self._library.ConnectionPool(
            **place,
            username=parsed.optional_text("username"),
            password=parsed.optional_text("password"),
            db=parsed.whole("database", 0),
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            retry=self._library.retry.Retry(self._library.backoff.NoBackoff(), 0),
            protocol=2,
        )

    def _check_access(self) -> None:
        """Raise ConfigurationError if the server refuses the user, the database or the keys of the scope."""
        try:
            (reply,) = self._replies([(b"EXISTS", self._name(""))])
        except OSError as error:
            reply = error.__cause__
            self.failed(error)
        if isinstance(reply, (self._library.AuthenticationError, self._library.ResponseError)):
            raise ConfigurationError(f"storage backend {NAME!r}: the server refuses the access: {reply}")

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return self._are_there(b"EXISTS", [self._name(key) for key in keys])

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        answers: list[Answer] = []
        deadline = time.monotonic() + self._timeout_s
        while len(answers) < len(keys) and (not answers or time.monotonic() < deadline):
            begin = len(answers)
            end = _end_of_read(targets, begin)
            try:
                self._read_some(keys[begin:end], targets[begin:end], answers)
            except OSError as error:
                self.failed(error)
                break
        self._remove([key for key, answer in zip(keys, answers, strict=False) if answer.is_damage])
        return answers + [Answer.ERROR] * (len(keys) - len(answers))

    def _read_some(self, keys: Sequence[str], targets: Sequence[Pieces], answers: list[Answer]) -> None:
        """Read pages with one request. Each answer is added when its page has arrived."""
        with self._connected() as connection:
            connection.send_packed_command([b"".join([_packed(b"GET", self._name(key)) for key in keys])])
            # redis-py copies each reply. Its connection has no public name for its socket.
            with connection._sock.makefile("rb", _BUFFER_BYTES) as replies:  # noqa: SLF001
                for key, pieces in zip(keys, targets, strict=True):
                    answers.append(self._read_one(replies, key, pieces))

    def _read_one(self, replies: BufferedReader, key: str, pieces: Pieces) -> Answer:
        line = replies.readline(_BUFFER_BYTES)
        if line.startswith(_WRONG_KIND):
            return Answer.CORRUPT
        if line.startswith(b"-"):
            return self.failed(OSError(line[1:].decode(errors="replace").strip()))
        if (length := _LENGTH.fullmatch(line)) is None:
            raise OSError(f"expected the length of a page, got {line[:80]!r}")
        size, expected = int(length[1]), HEADER_BYTES + page_bytes(pieces)
        if size < 0:
            return Answer.ABSENT
        if size != expected:
            _skip(replies, size + 2)
            return Answer.SHORT if size < expected else Answer.LONG
        header = _exactly(replies, HEADER_BYTES)
        for piece in pieces:
            if replies.readinto(piece) != piece.nbytes:
                raise OSError("the server closed the connection within a page")
        _exactly(replies, 2)
        return Answer.DONE if header == self._header(key, pieces) else Answer.CORRUPT

    def _remove(self, damaged: Sequence[str]) -> None:
        """Remove damaged objects. One that another instance has replaced meanwhile is lost with them."""
        try:
            self._replies([(b"UNLINK", self._name(key)) for key in damaged])
        except OSError as error:
            self.failed(error)

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        names = [self._name(key) for key in keys]
        # TOUCH, unlike EXISTS, makes a page that exists the most recently used one.
        is_there = self._are_there(b"TOUCH", names)
        absent = [number for number, there in enumerate(is_there) if not there]
        written = self._write_absent([keys[number] for number in absent], [sources[number] for number in absent])
        answers = [Answer.PRESENT] * len(keys)
        for number, answer in zip(absent, written, strict=True):
            answers[number] = answer
        return self._without_evicted(names, answers)

    def _write_absent(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        answers: list[Answer] = []
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._connected() as connection:
                sent = 0
                while sent < len(keys) and (not sent or time.monotonic() < deadline):
                    connection.send_packed_command(self._packed_page(keys[sent], sources[sent]))
                    sent += 1
                while len(answers) < sent:
                    answers.append(self._written(self._reply(connection)))
        except OSError as error:
            self.failed(error)
        return answers + [Answer.ERROR] * (len(keys) - len(answers))

    def _packed_page(self, key: str, pieces: Pieces) -> list[bytes | memoryview]:
        """The command that stores a page unless its key exists, without a copy of its bytes."""
        name, size = self._name(key), HEADER_BYTES + page_bytes(pieces)
        start = b"*4\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s" % (len(name), name, size, self._header(key, pieces))
        return [start, *pieces, b"\r\n$2\r\nNX\r\n"]

    def _written(self, reply: object) -> Answer:
        if isinstance(reply, self._library.OutOfMemoryError):
            return Answer.FULL
        if isinstance(reply, Exception):
            return self.failed(reply)
        return Answer.PRESENT if reply is None else Answer.DONE

    def _without_evicted(self, names: Sequence[bytes], answers: list[Answer]) -> list[Answer]:
        """The answers, without the pages that the server has evicted for others of the batch."""
        kept = [number for number, answer in enumerate(answers) if answer in (Answer.DONE, Answer.PRESENT)]
        if kept and self._replies([(b"EXISTS", *[names[number] for number in kept])]) != [len(kept)]:
            for number, is_there in zip(kept, self._are_there(b"EXISTS", [names[one] for one in kept]), strict=True):
                answers[number] = answers[number] if is_there else Answer.FULL
        return answers

    def _remove_all(self) -> bool:
        for names in self._scanned():
            self._replies([(b"UNLINK", *names)])
        return not any(self._scanned())

    def _holdings(self) -> tuple[int, int]:
        self._count_evicted()
        sizes: dict[bytes, int] = {}
        for names in self._scanned():
            replies = self._replies([(b"STRLEN", name) for name in names])
            sizes.update({name: size for name, size in zip(names, replies, strict=True) if isinstance(size, int)})
        kept = [size - HEADER_BYTES for size in sizes.values() if size >= HEADER_BYTES]
        return len(kept), sum(kept)

    def _release(self) -> None:
        self._pool.disconnect()

    def _scanned(self) -> Iterator[list[bytes]]:
        """The names of the pages of this scope, in parts that are not empty. A name may come twice."""
        cursor, pattern = b"0", self._prefix.encode() + b"*"
        while True:
            (reply,) = self._replies([(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % COMMANDS)])
            if isinstance(reply, Exception):
                raise OSError(str(reply))
            cursor, names = reply
            if names:
                yield names
            if cursor == b"0":
                return

    def _count_evicted(self) -> None:
        """Count what the server has evicted since the last time. A server that was restarted begins at 0."""
        try:
            (reply,) = self._replies([(b"INFO", b"stats")])
        except OSError:
            return  # The verb that needs the server says so.
        fields = dict(line.split(b":", 1) for line in reply.split() if b":" in line) if isinstance(reply, bytes) else {}
        evicted = int(fields.get(b"evicted_keys", 0))
        with self._lock:
            if self._evicted is not None:
                self.tally.removed(max(0, evicted - self._evicted))
            self._evicted = evicted

    def _are_there(self, command: bytes, names: Sequence[bytes]) -> list[bool]:
        """Whether each object exists, by a command that answers with the number of those that do."""
        replies = self._replies([(command, name) for name in names])
        refused = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if refused is not None:
            self.failed(refused)
        return [reply == 1 for reply in replies]

    def _replies(self, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """The replies to short commands, in their order; for a command that the server refuses, its error."""
        replies: list[Any] = []
        for begin in range(0, len(commands), COMMANDS):
            part = commands[begin : begin + COMMANDS]
            with self._connected() as connection:
                connection.send_packed_command([b"".join([_packed(*command) for command in part])])
                replies += [self._reply(connection) for _ in part]
        return replies

    def _reply(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except self._library.ResponseError as error:
            return error

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection for one exchange. Raises OSError for any failure of the server or of the connection.

        After an error the connection is closed: replies that were not read would answer the next request.
        """
        with self._pause.attempt(self._failures):
            connection = self._pool.get_connection()
            try:
                yield connection
            except BaseException:
                connection.disconnect()
                raise
            finally:
                self._pool.release(connection)

    def _name(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _header(self, key: str, pieces: Pieces) -> bytes:
        return checksum(pieces, identity(self.scope, key)).to_bytes(HEADER_BYTES, "little")


def _library() -> Any:
    """The module of redis-py. Raises ConfigurationError, naming the extra, where it is not installed."""
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError as error:
        message = f"storage backend {NAME!r} needs redis-py, which is not installed: pip install 'hicache[redis]'"
        raise ConfigurationError(message) from error
    return redis


def _packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words])


def _end_of_read(targets: Sequence[Pieces], begin: int) -> int:
    """The end of the pages from `begin` on that are requested at once: at least one."""
    end, size = begin, 0
    while end < len(targets) and (end == begin or size + page_bytes(targets[end]) <= READ_BYTES):
        size += page_bytes(targets[end])
        end += 1
    return end


def _exactly(replies: BufferedReader, count: int) -> bytes:
    found = replies.read(count)
    if len(found) != count:
        raise OSError("the server closed the connection within a reply")
    return found


def _skip(replies: BufferedReader, count: int) -> None:
    """Read bytes that nobody needs."""
    while count:
        count -= len(_exactly(replies, min(count, _BUFFER_BYTES)))
