"""RedisServer: the exchanges with one server that speaks the Redis protocol; Page: what it stores."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, NamedTuple, TypeAlias

from hicache.storage.base import Pieces
from hicache.storage.page_io import HEADER_BYTES, checksum_bytes
from hicache.storage.paged import Answer, page_bytes
from hicache.storage.pause import Pause

READ_BYTES = 8 << 20
"""The bytes of pages that are requested at once: the server keeps replies that wait in its own memory."""

COMMANDS = 1_000
"""The most short commands that are sent before their replies are read."""

Address: TypeAlias = tuple[str, int]

Command: TypeAlias = Sequence[bytes]

_ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""The command before each one for a slot that this server is about to take over. It is answered as well."""

_BUFFER_BYTES = 16 << 10

_WRONG_KIND = b"-WRONGTYPE"
"""The error of a key that holds something else than a string."""

_REDIRECTED = re.compile(r"(MOVED|ASK) (\d+ \S+:\d+)")

_LENGTH = re.compile(rb"\$(-1|\d+)\r\n")


class Page(NamedTuple):
    """A page in memory, the key of the server under which it is stored, and the seed of its checksum."""

    name: bytes
    seed: int
    pieces: Pieces

    @property
    def size(self) -> int:
        """The bytes of its object."""
        return HEADER_BYTES + page_bytes(self.pieces)

    @property
    def header(self) -> bytes:
        """The first bytes of its object."""
        return checksum_bytes(self.pieces, self.seed)


class RedisServer:
    """One server. Each verb returns an answer for each command or page, or the exception in the place of it.

    The answer of a server of a cluster may be the redirection to another one, an AskError or MovedError of redis-py. A
    failure of the server or of the connection is an OSError for all that was not answered, and begins a pause.

    `address`: the host and the port, or the path of a socket and 0. `connections`: a pool of redis-py that tries
    nothing again. `pause`: shared by the servers of one backend. `asking`: whether an AskError has named the server.
    """

    def __init__(self, library: Any, address: Address, connections: Any, pause: Pause) -> None:
        self._library = library
        self._pool = connections
        self._pause = pause
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        # redis-py raises ValueError for a reply that should be a number.
        self._failures = (library.RedisError, OSError, ValueError)

    def replies(self, commands: Sequence[Command], *, asking: bool = False) -> list[Any]:
        """The replies to short commands, in their order."""
        replies: list[Any] = []
        try:
            for begin in range(0, len(commands), COMMANDS):
                replies += self._replies(commands[begin : begin + COMMANDS], asking)
        except OSError as error:
            return _completed(replies, commands, error)
        return replies

    def read(self, pages: Sequence[Page], deadline: float, *, asking: bool = False) -> list[Any]:
        """Read pages into memory. No part of them, except the first one, is requested after the deadline."""
        answers: list[Any] = []
        try:
            while len(answers) < len(pages) and (not answers or time.monotonic() < deadline):
                begin = len(answers)
                self._read_part(pages[begin : _end_of_part(pages, begin)], asking, answers)
        except OSError as error:
            return _completed(answers, pages, error)
        return _completed(answers, pages, _late())

    def write(self, pages: Sequence[Page], deadline: float, *, asking: bool = False) -> list[Any]:
        """Store pages whose keys do not exist. None of them, except the first one, is sent after the deadline."""
        answers: list[Any] = []
        before = [_ASKING] if asking else []
        try:
            with self._connected() as connection:
                sent = 0
                while sent < len(pages) and (not sent or time.monotonic() < deadline):
                    connection.send_packed_command([*before, *_stored(pages[sent])])
                    sent += 1
                while len(answers) < sent:
                    answers.append(self._written(self._reply(connection, asking)))
        except OSError as error:
            return _completed(answers, pages, error)
        return _completed(answers, pages, _late())

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.disconnect(inuse_connections=False)

    def _replies(self, commands: Sequence[Command], asking: bool) -> list[Any]:
        with self._connected() as connection:
            connection.send_packed_command([_packed(commands, asking)])
            return [self._reply(connection, asking) for _ in commands]

    def _reply(self, connection: Any, asking: bool) -> Any:
        if asking:
            self._next(connection)
        return self._next(connection)

    def _next(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except self._library.ResponseError as error:
            return error

    def _read_part(self, pages: Sequence[Page], asking: bool, answers: list[Any]) -> None:
        """Read pages with one request. Each answer is added when its page has arrived."""
        with self._connected() as connection:
            connection.send_packed_command([_packed([(b"GET", page.name) for page in pages], asking)])
            # redis-py copies each reply. Its connection has no public name for its socket.
            with connection._sock.makefile("rb", _BUFFER_BYTES) as replies:  # noqa: SLF001
                for page in pages:
                    if asking:
                        replies.readline(_BUFFER_BYTES)
                    answers.append(self._read_one(replies, page))

    def _read_one(self, replies: BufferedReader, page: Page) -> Any:
        line = replies.readline(_BUFFER_BYTES)
        if line.startswith(_WRONG_KIND):
            return Answer.CORRUPT
        if line.startswith(b"-"):
            return self._error(line[1:].decode(errors="replace").strip())
        if (length := _LENGTH.fullmatch(line)) is None:
            raise OSError(f"expected the length of a page, got {line[:80]!r}")
        size, expected = int(length[1]), page.size
        if size < 0:
            return Answer.ABSENT
        if size != expected:
            _skip(replies, size + 2)
            return Answer.SHORT if size < expected else Answer.LONG
        header = _exactly(replies, HEADER_BYTES)
        for piece in page.pieces:
            if replies.readinto(piece) != piece.nbytes:
                raise OSError("the server closed the connection within a page")
        _exactly(replies, 2)
        return Answer.DONE if header == page.header else Answer.CORRUPT

    def _error(self, text: str) -> Exception:
        if (found := _REDIRECTED.fullmatch(text)) is None:
            return self._library.ResponseError(text)  # type: ignore[no-any-return]
        errors = self._library.exceptions
        return (errors.MovedError if found[1] == "MOVED" else errors.AskError)(found[2])  # type: ignore[no-any-return]

    def _written(self, reply: Any) -> Any:
        if isinstance(reply, self._library.OutOfMemoryError):
            return Answer.FULL
        if isinstance(reply, Exception):
            return reply
        return Answer.PRESENT if reply is None else Answer.DONE

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection for one exchange. Raises OSError for any failure of the server or of the connection.

        After an error the connection is closed: replies that were not read would answer the next request.
        """
        with self._pause.attempt(self._failures, self.name):
            connection = self._pool.get_connection()
            try:
                yield connection
            except BaseException:
                connection.disconnect()
                raise
            finally:
                self._pool.release(connection)


def _completed(answers: list[Any], asked: Sequence[object], error: Exception) -> list[Any]:
    """The answers, with the error for all that has none."""
    return answers + [error] * (len(asked) - len(answers))


def _late() -> OSError:
    return OSError("the time for a batch was over before all of it was sent")


def _packed(commands: Sequence[Command], asking: bool) -> bytes:
    parts: list[bytes] = []
    for command in commands:
        parts += [_ASKING] if asking else []
        parts += [b"*%d\r\n" % len(command), *[b"$%d\r\n%s\r\n" % (len(word), word) for word in command]]
    return b"".join(parts)


def _stored(page: Page) -> list[bytes | memoryview]:
    """The command that stores a page unless its key exists, without a copy of its bytes."""
    name = page.name
    start = b"*4\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s" % (len(name), name, page.size, page.header)
    return [start, *page.pieces, b"\r\n$2\r\nNX\r\n"]


def _end_of_part(pages: Sequence[Page], begin: int) -> int:
    """The end of the pages from `begin` on that are requested at once: at least one."""
    end, size = begin, 0
    while end < len(pages) and (end == begin or size + pages[end].size <= READ_BYTES):
        size += pages[end].size
        end += 1
    return end


def _exactly(replies: BufferedReader, count: int) -> bytes:
    found = replies.read(count)
    if len(found) != count:
        raise OSError("the server closed the connection within a reply")
    return found


def _skip(replies: BufferedReader, count: int) -> None:
    """Read and drop bytes."""
    while count:
        count -= len(_exactly(replies, min(count, _BUFFER_BYTES)))
