"""MetadataService: the metadata of 3FS over HTTP, for as many processes as there are."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.fields import RefusalError
from hicache.storage.hf3fs.routes import Reply, reply

LOG = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

MOST_BODY_BYTES = 4 << 20

SILENCE_S = 60.0
"""How long a connection may say nothing before it is closed."""

_MOST_UNREAD_BYTES = 64 << 20
_STEP_BYTES = 1 << 16
_PATIENCE_S = 2.0
"""What is still read of a body that is too long, and how long it may take to come."""

_CLOSE = {"Connection": "close"}
"""Who is told so finds the connection closed after it."""

_LENGTH = re.compile(r"[0-9]{1,15}")

_UNKNOWN_METHOD = 501
_STATUS_OF_CLIENT = {_UNKNOWN_METHOD: 405, 505: 400}
"""What the standard library answers to a method or version that it does not know: the fault is that of who asked."""


class MetadataService:
    """Listens from the start, and serves from `start` until `close`, which closes all connections.

    `host`: loopback unless another is named. `port`: 0 for any that is free. `most_body_bytes`: a longer body is
    answered with 413. The catalogue is the caller's, to be closed after this. Raises OSError for an address that
    cannot be had.
    """

    def __init__(
        self, catalogue: Catalogue, *, host: str = LOOPBACK, port: int = 0, most_body_bytes: int = MOST_BODY_BYTES
    ) -> None:
        self._server = _Server((host, port), catalogue, most_body_bytes)
        self._thread = Thread(target=self._serve, daemon=True)
        self._is_closing = False
        self.host, self.port = self._server.server_address[:2]

    @property
    def url(self) -> str:
        """Where it can be asked."""
        return f"http://{self.host!s}:{self.port}"

    def start(self) -> None:
        """Serve, in threads of its own."""
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        if self._thread.is_alive():
            self._is_closing = True
            # It waits for somebody to come.
            socket.create_connection((str(self.host), self.port)).close()
            self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while not self._is_closing:
            self._server.handle_request()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], catalogue: Catalogue, most_body_bytes: int) -> None:
        self.catalogue = catalogue
        self.most_body_bytes = most_body_bytes
        self._connections = set[socket.socket]()
        self._lock = Lock()
        super().__init__(address, _Exchange)

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
    """One connection, one request after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "hicache"
    timeout = SILENCE_S
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        try:
            body = self._body()
        except RefusalError as refusal:
            # What is left of the body would pass for the next request.
            self._send(Reply(refusal.status, {"detail": str(refusal)}), _CLOSE)
            self._drop_rest()
        else:
            self._send(reply(self.server.catalogue, self.path, body), {})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library finds wrong, in JSON as well."""
        allowed = {"Allow": "POST"} if code == _UNKNOWN_METHOD else {}
        status = _STATUS_OF_CLIENT.get(code, code)
        self._send(Reply(status, {"detail": message or "this cannot be read"}), {**allowed, **_CLOSE})
        self._drop_rest()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        LOG.debug(format, *args)

    def _body(self) -> bytes:
        """The body. Raises RefusalError, before any of it was read or after all that came."""
        length = self._length()
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            raise RefusalError(408, f"{length} bytes were announced, and did not come") from None
        if len(body) < length:
            raise RefusalError(400, f"{length} bytes were announced, and {len(body)} came")
        return body

    def _length(self) -> int:
        told = set(self.headers.get_all("Content-Length", []))
        if "Transfer-Encoding" in self.headers or not told:
            raise RefusalError(411, "a body of a known length is expected: Content-Length")
        if len(told) > 1 or not _LENGTH.fullmatch(next(iter(told))):
            raise RefusalError(400, f"Content-Length: got {sorted(told)}, expected one number")
        length, most = int(told.pop()), self.server.most_body_bytes
        if length > most:
            raise RefusalError(413, f"a body of {length} bytes, at most {most} are taken")
        return length

    def _drop_rest(self) -> None:
        """Let a client that writes all before it reads come to its answer."""
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_PATIENCE_S)
            left = _MOST_UNREAD_BYTES
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
