"""MetadataClient: asks a metadata service over HTTP, from any thread."""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedReader
from typing import Any
from urllib.parse import urlsplit

from hicache.clock import WallClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.connection import TimedStream
from hicache.storage.hf3fs.metadata import Content, MetadataError, PageMetadata

MAX_ANSWER_BYTES = 16 << 20

MAX_IDLE_S = 20.0
"""How long an idle connection is reused: less than the idle timeout of the service."""

_HOST = re.compile(r"[!-~]{1,253}")


class _Response(HTTPResponse):
    """An answer that must arrive as a whole within the timeout of its connection."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        clock, timeout_s = WallClock(), sock.gettimeout()
        if timeout_s is not None:
            self.fp.close()
            self.fp = BufferedReader(TimedStream(sock, clock, clock.now() + timeout_s))


class _Connection(HTTPConnection):
    """One connection. `timeout`: for the connecting, for the sending of a request, and for its whole answer."""

    response_class = _Response

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.sock is not None:
            # The last answer has shortened it.
            self.sock.settimeout(self.timeout)
        super().request(*arguments, **options)

    def getresponse(self) -> HTTPResponse:
        self.sock.settimeout(self.timeout)
        return super().getresponse()


class MetadataClient(PageMetadata):
    """PageMetadata over HTTP.

    A request that changes nothing is repeated once when its connection breaks. `timeout_s`: for a request, and for its
    whole answer. `token`: of the service, if it has one. Raises ConfigurationError for a URL that is not
    `http://host:port`.
    """

    def __init__(self, url: str, timeout_s: float, token: str | None = None) -> None:
        self._host, self._port = _address(url)
        super().__init__(f"the metadata service at {self._host}:{self._port}")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._clock = WallClock()
        self._idle: deque[tuple[float, HTTPConnection]] = deque()

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    def _sent(self, path: str, fields: Content, *, is_repeatable: bool) -> tuple[int, Content]:
        try:
            return self._post(path, fields)
        except MetadataError as error:
            if not is_repeatable or isinstance(error.__cause__, TimeoutError):
                raise
            return self._post(path, fields)

    def _post(self, path: str, fields: Content) -> tuple[int, Content]:
        body = json.dumps(fields, separators=(",", ":"))
        connection = self._connection()
        try:
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            found = response.read(MAX_ANSWER_BYTES)
            content = json.loads(found) if found else {}
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            raise MetadataError(f"{path} at {self._host}:{self._port}: {error!r}") from error
        self._idle.append((self._clock.now(), connection))
        return response.status, content if isinstance(content, dict) else {}

    def _connection(self) -> HTTPConnection:
        while self._idle:
            try:
                since_s, connection = self._idle.pop()
            except IndexError:
                break
            if self._clock.now() - since_s < MAX_IDLE_S:
                return connection
            connection.close()
        return _Connection(self._host, self._port, timeout=self._timeout_s)


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not _HOST.fullmatch(host) or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
        raise ConfigurationError(f"storage option 'metadata_url': got {url!r}, expected http://host:port")
    return host, port
