"""MetadataService: serves the metadata of 3FS over HTTP to any number of processes."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from itertools import islice
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from selectors import EVENT_READ, PollSelector
from threading import Condition, Thread
from typing import Any, NamedTuple

from hicache.clock import Clock, WallClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.access import Access, is_loopback
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.connection import REQUEST_S, RequestStream
from hicache.storage.hf3fs.fields import RefusalError
from hicache.storage.hf3fs.routes import Reply, reply

LOG = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

MAX_BODY_BYTES = 4 << 20

MAX_CONNECTIONS = 1024
"""The most connections at a time. Each has a thread."""

PAUSE_S = 0.5
"""How long the service waits for a connection to end before it tries again to accept one."""

CLOSE_S = 30.0
"""How long a closing service waits for the requests that are being served."""

_MAX_UNREAD_BYTES = 64 << 20
_STEP_BYTES = 1 << 16
_DRAIN_S = 2.0
"""How much of the rest of a refused request is still read, and for how long."""

_CLOSE = {"Connection": "close"}
"""The header of an answer after which the connection is closed."""

_LENGTH = re.compile(r"[0-9]{1,15}")

_UNAUTHORISED = 401
_UNKNOWN_METHOD = 501
_STATUS_OF_CLIENT = {_UNKNOWN_METHOD: 405, 505: 400}
"""4xx in place of the 5xx of the standard library for an unknown method or version, which is the client's error."""


class MetadataService:
    """Listens from its construction, and serves from `start` until `close`, which closes all connections.

    `host`: loopback by default. `port`: 0 for any free port. `max_body_bytes`: a longer body is answered with 413.
    `token`: what each request must present. `names`: further names by which clients reach the service, such as those
    of DNS. `clock`: for the deadlines of requests. The caller closes the catalogue, after this. Raises OSError for an
    address that cannot be used, and ConfigurationError for one that is not loopback when there is no token.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        max_body_bytes: int = MAX_BODY_BYTES,
        token: str | None = None,
        names: Collection[str] = (),
        clock: Clock | None = None,
    ) -> None:
        rules = Rules(catalogue, Access((host, *names), token), max_body_bytes, clock or WallClock())
        self._server = _Server((host, port), rules, needs_loopback=token is None)
        # Made now: when no descriptor is left, the service must still be able to end.
        self._end, self._ended = socket.socketpair()
        self._thread = Thread(target=self._serve, daemon=True)
        self.host, self.port = self._server.server_address[:2]

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://{self.host!s}:{self.port}"

    def start(self) -> None:
        """Serve requests in other threads."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving, close all connections, and wait for the requests that are being served."""
        if self._thread.is_alive():
            self._end.send(b"\0")
            self._server.end_pause()
            self._thread.join()
        self._server.server_close()
        self._end.close()
        self._ended.close()

    def _serve(self) -> None:
        with PollSelector() as waiting:
            waiting.register(self._server.socket, EVENT_READ)
            waiting.register(self._ended, EVENT_READ)
            while all(key.fileobj is not self._ended for key, _ in waiting.select()):
                self._server.make_room()
                self._server.handle_request()


class Rules(NamedTuple):
    """What a connection needs: the catalogue, who may ask, the longest body, and the clock of deadlines."""

    catalogue: Catalogue
    access: Access
    max_body_bytes: int
    clock: Clock


class _Server(ThreadingHTTPServer):
    """Accepts connections while there are descriptors for them, and some for the catalogue."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], rules: Rules, *, needs_loopback: bool) -> None:
        self.rules = rules
        self._needs_loopback = needs_loopback
        self._most = max_connections()
        # Those that wait for a request come first, the longest waiting one before the others.
        self._idle = dict[socket.socket, None]()
        self._connections = set[socket.socket]()
        self._changed = Condition()
        self._is_ending = self._has_failed = False
        super().__init__(address, _Exchange)

    def server_bind(self) -> None:
        super().server_bind()
        self.socket.setblocking(False)
        address = str(self.server_address[0])
        if self._needs_loopback and not is_loopback(address):
            raise ConfigurationError(f"{address} is not a loopback address: the service needs a token to listen there")

    def make_room(self) -> None:
        """Wait until there may be one more connection; the one that waits longest for a request is closed for it."""
        with self._changed:
            while len(self._connections) >= self._most and not self._is_ending:
                for connection in islice(self._idle, 1):
                    _shut(connection)
                self._changed.wait(PAUSE_S)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except BlockingIOError:
            raise
        except OSError as error:
            self._pause(error)
            raise

    def end_pause(self) -> None:
        """Wait for no connection any more."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def waits(self, connection: Any, *, is_idle: bool) -> None:
        """Tell whether a connection waits for its next request."""
        with self._changed:
            self._idle.pop(connection, None)
            if is_idle:
                self._idle[connection] = None

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._connections.discard(request)
            self._idle.pop(request, None)
            self._changed.notify_all()

    def server_close(self) -> None:
        super().server_close()
        with self._changed:
            for connection in self._connections:
                _shut(connection)
            self._changed.wait_for(lambda: not self._connections, CLOSE_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        is_of_connection = isinstance(error, OSError)
        level = logging.INFO if is_of_connection else logging.ERROR
        LOG.log(level, "connection of %s ended: %r", client_address, error, exc_info=not is_of_connection)

    def _pause(self, error: OSError) -> None:
        """Wait until a connection ends: without descriptors, the next attempt would fail at once."""
        if not self._has_failed:
            self._has_failed = True
            LOG.warning("a connection cannot be accepted: %s; further failures are not logged", error)
        with self._changed:
            if not self._is_ending:
                self._changed.wait(PAUSE_S)


def max_connections() -> int:
    """How many connections there may be: half of the descriptors are left to the catalogue and the process."""
    limit = getrlimit(RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if limit == RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, limit // 2))


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Exchange(BaseHTTPRequestHandler):
    """Serves the requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "hicache"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._stream = RequestStream(self.connection, self.server.rules.clock)
        self.rfile = BufferedReader(self._stream)

    def handle_one_request(self) -> None:
        self._stream.begin()
        self.server.waits(self.connection, is_idle=True)
        super().handle_one_request()

    def parse_request(self) -> bool:
        self.server.waits(self.connection, is_idle=False)
        return super().parse_request()

    def do_POST(self) -> None:
        try:
            self.server.rules.access.check(self.headers, self.connection.getsockname()[0])
            body = self._body()
        except RefusalError as refusal:
            # The rest of the body would be parsed as the next request, so the connection is closed.
            challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == _UNAUTHORISED else {}
            self._send(Reply(refusal.status, {"detail": str(refusal)}), {**challenge, **_CLOSE})
            self._drop_rest()
        else:
            self._send(reply(self.server.rules.catalogue, self.path, body), {})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the errors of the standard library as JSON too."""
        allowed = {"Allow": "POST"} if code == _UNKNOWN_METHOD else {}
        status = _STATUS_OF_CLIENT.get(code, code)
        self._send(Reply(status, {"detail": message or "the request cannot be parsed"}), {**allowed, **_CLOSE})
        self._drop_rest()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        LOG.debug(format, *args)

    def _body(self) -> bytes:
        """Read the body. Raises RefusalError for an invalid length, and for a body that is shorter than announced."""
        length = self._length()
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            raise RefusalError(408, f"expected a body of {length} bytes, which did not arrive in time") from None
        if len(body) < length:
            raise RefusalError(400, f"expected a body of {length} bytes, got {len(body)}")
        return body

    def _length(self) -> int:
        lengths = set(self.headers.get_all("Content-Length", []))
        if "Transfer-Encoding" in self.headers or not lengths:
            raise RefusalError(411, "expected a body with Content-Length")
        if len(lengths) > 1 or not _LENGTH.fullmatch(next(iter(lengths))):
            raise RefusalError(400, f"Content-Length: got {sorted(lengths)}, expected one number")
        length, limit = int(lengths.pop()), self.server.rules.max_body_bytes
        if length > limit:
            raise RefusalError(413, f"expected a body of at most {limit} bytes, got {length}")
        return length

    def _drop_rest(self) -> None:
        """Read the rest of the request, so that a client that first sends everything receives its answer."""
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_DRAIN_S)
            left = _MAX_UNREAD_BYTES
            while left > 0 and (found := self.connection.recv(_STEP_BYTES)):
                left -= len(found)

    def _send(self, answer: Reply, headers: Mapping[str, str]) -> None:
        self.connection.settimeout(REQUEST_S)
        content = b"" if answer.content is None else json.dumps(answer.content, separators=(",", ":")).encode()
        self.send_response(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        if answer.content is not None:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
