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
from threading import Lock, Thread
from typing import Any

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.access import Access, is_loopback
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.fields import RefusalError
from hicache.storage.hf3fs.routes import Reply, reply
from hicache.storage.hf3fs.saver import Saver

LOG = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

MAX_BODY_BYTES = 4 << 20

IDLE_TIMEOUT_S = 60.0
"""How long a connection may be idle before it is closed."""

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
    of DNS. The caller closes the catalogue, after this. Raises OSError for an address that cannot be used, and
    ConfigurationError for one that is not loopback when there is no token.
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
    ) -> None:
        access = Access((host, *names), token)
        self._server = _Server((host, port), catalogue, access, max_body_bytes, needs_loopback=token is None)
        self._thread = Thread(target=self._serve, daemon=True)
        self._is_closing = False
        self._saver = self._server.saver
        self.host, self.port = self._server.server_address[:2]

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://{self.host!s}:{self.port}"

    def start(self) -> None:
        """Serve requests in other threads."""
        self._saver.start()
        self._thread.start()

    def close(self) -> None:
        """Stop serving, and close all connections."""
        if self._thread.is_alive():
            self._is_closing = True
            # The server waits for a connection: this one ends the wait.
            socket.create_connection((str(self.host), self.port)).close()
            self._thread.join()
        self._server.server_close()
        self._saver.close()

    def _serve(self) -> None:
        while not self._is_closing:
            self._server.handle_request()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        catalogue: Catalogue,
        access: Access,
        max_body_bytes: int,
        *,
        needs_loopback: bool,
    ) -> None:
        self.catalogue = catalogue
        self.saver = Saver(catalogue)
        self.access = access
        self.max_body_bytes = max_body_bytes
        self._needs_loopback = needs_loopback
        self._connections = set[socket.socket]()
        self._lock = Lock()
        super().__init__(address, _Exchange)

    def server_bind(self) -> None:
        super().server_bind()
        address = str(self.server_address[0])
        if self._needs_loopback and not is_loopback(address):
            raise ConfigurationError(f"{address} is not a loopback address: the service needs a token to listen there")

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.info("connection of %s ended: %r", client_address, sys.exc_info()[1])


class _Exchange(BaseHTTPRequestHandler):
    """Serves the requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "hicache"
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        try:
            self.server.access.check(self.headers, self.connection.getsockname()[0])
            body = self._body()
        except RefusalError as refusal:
            # The rest of the body would be parsed as the next request, so the connection is closed.
            challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == _UNAUTHORISED else {}
            self._send(Reply(refusal.status, {"detail": str(refusal)}), {**challenge, **_CLOSE})
            self._drop_rest()
        else:
            self._send(reply(self.server.catalogue, self.path, body), {})
            self.server.saver.wake()

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
        length, limit = int(lengths.pop()), self.server.max_body_bytes
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
