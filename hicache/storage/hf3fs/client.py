"""MetadataClient: sends the requests of one namespace to a metadata service, from any thread."""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedReader
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hicache.clock import WallClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.connection import TimedStream
from hicache.storage.hf3fs.pages import MAX_KEYS, NO_PAGE

MAX_ANSWER_BYTES = 16 << 20

MAX_IDLE_S = 20.0
"""How long an idle connection is reused: less than the idle timeout of the service."""

_DONE, _UNKNOWN = 204, 404

_HOST = re.compile(r"[!-~]{1,253}")

_REFUSALS = (401, 403, 409, 421)
"""The answers to a client that is configured wrongly: its token, its address of the service, its number of pages."""


class MetadataError(OSError):
    """The service could not be reached, refused a request, or sent an invalid answer."""


class Reserved(NamedTuple):
    """For each key whether it has a page, and the page or a reserved one, None if there is no room.

    `evicted`: the number of keys that were evicted. `reservation`: its id, None from a service that gives none.
    """

    indices: list[tuple[bool, int | None]]
    evicted: int
    reservation: str | None


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


class MetadataClient:
    """One namespace of rank 0; keys distinguish the ranks of a cache. Methods raise MetadataError.

    The namespace is initialised before the first request, and again if the service does not know it. A request that
    changes nothing is repeated once when its connection breaks. `timeout_s`: for a request, and for its whole answer.
    `token`: of the service, if it has one. Raises ConfigurationError for a URL that is not `http://host:port`.
    """

    def __init__(self, url: str, namespace: str, num_pages: int, timeout_s: float, token: str | None = None) -> None:
        self._host, self._port = _address(url)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._namespace = namespace
        self._num_pages = num_pages
        self._timeout_s = timeout_s
        self._is_known = False
        self._clock = WallClock()
        self._idle: deque[tuple[float, HTTPConnection]] = deque()

    def initialise(self) -> None:
        """Create the namespace. Raises ConfigurationError if the service refuses the client or the number of pages."""
        status, content = self._post("initialize", {"num_pages": self._num_pages})
        if status in _REFUSALS:
            raise ConfigurationError(
                f"the metadata service at {self._host}:{self._port} refuses this client with {self._num_pages} pages: "
                f"{status} {_detail(content)}"
            )
        if status != _DONE:
            raise MetadataError(f"initialize: {status} {_detail(content)}")
        self._is_known = True

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Whether each key has a confirmed page. The number of keys is not limited."""
        found = list[bool]()
        for some in parts(keys):
            content = self._call("exists", {"keys": some}, is_repeatable=True)
            found += _checked(content, "exists", some, (bool,))
        return found

    def find(self, keys: Sequence[str]) -> list[int | None]:
        """The page of each key. The number of keys is not limited."""
        found = list[Any]()
        for some in parts(keys):
            content = self._call("get_page_indices", {"keys": some}, is_repeatable=True)
            found += _checked(content, "indices", some, (int, type(None)))
        return [self._page(page) if page is not None else None for page in found]

    def reserve(self, keys: Sequence[str]) -> Reserved:
        """The page of each of up to MAX_KEYS keys, or a reserved one."""
        pairs = [[key, ""] for key in keys]
        content = self._call("reserve_and_allocate_page_indices", {"keys": pairs, "with_reservation": True})
        found = _checked(content, "indices", keys, (list,))
        indices = [(pair[:1] == [True], None if pair[1:] == [NO_PAGE] else self._page(*pair[1:])) for pair in found]
        (evicted,) = _checked({"evicted": [content.get("evicted", 0)]}, "evicted", [""], (int,))
        reservation = content.get("reservation")
        return Reserved(indices, evicted, reservation if isinstance(reservation, str) else None)

    def confirm(
        self, written: Collection[tuple[str, int]], released: Collection[int], reservation: str | None
    ) -> set[int]:
        """Confirm written pages of a reservation, and release others. Returns the refused pages, which had expired."""
        fields = {"written_keys_to_confirm": [list(pair) for pair in written], "pages_to_release": list(released)}
        named = {} if reservation is None else {"reservation": reservation}
        refused = self._call("confirm_write", {**fields, **named}).get("refused")
        return {self._page(page) for page in refused} if isinstance(refused, list) else set()

    def remove(self, keys: Sequence[str]) -> None:
        """Free the pages of keys. The number of keys is not limited."""
        for some in parts(keys):
            self._call("delete_keys", {"keys": some})

    def clear(self) -> None:
        """Free all pages."""
        self._call("clear", {})

    def delete_namespace(self) -> None:
        """Remove the namespace with all its keys. The next request of any client creates it again."""
        self._call("delete_namespace", {})
        self._is_known = False

    def confirmed(self) -> int:
        """How many keys have a page."""
        return int(self._call("usage", {}, is_repeatable=True).get("confirmed", 0))

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    def _call(self, operation: str, fields: Mapping[str, Any], *, is_repeatable: bool = False) -> Mapping[str, Any]:
        if not self._is_known:
            self._ensure_namespace()
        status, content = self._repeated(operation, fields) if is_repeatable else self._post(operation, fields)
        if status == _UNKNOWN:
            self._ensure_namespace()
            status, content = self._post(operation, fields)
        if status not in (200, _DONE) and "refused" not in content:
            raise MetadataError(f"{operation}: {status} {_detail(content)}")
        return content

    def _ensure_namespace(self) -> None:
        try:
            self.initialise()
        except ConfigurationError as error:
            # The service was not reachable when the backend was opened, so this becomes an error of the request.
            raise MetadataError(str(error)) from error

    def _repeated(self, operation: str, fields: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        try:
            return self._post(operation, fields)
        except MetadataError as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            return self._post(operation, fields)

    def _post(self, operation: str, fields: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        body = json.dumps({**fields, "namespace": self._namespace}, separators=(",", ":"))
        connection = self._connection()
        try:
            connection.request("POST", f"/0/{operation}", body, self._headers)
            response = connection.getresponse()
            found = response.read(MAX_ANSWER_BYTES)
            content = json.loads(found) if found else {}
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            raise MetadataError(f"{operation} at {self._host}:{self._port}: {error!r}") from error
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

    def _page(self, page: Any = None, *_: Any) -> int:
        if type(page) is int and 0 <= page < self._num_pages:
            return page
        raise MetadataError(f"expected a page below {self._num_pages} from the service, got {page!r}")


def parts(keys: Sequence[str]) -> Iterator[list[str]]:
    """The keys of one request after the other: no request has more than MAX_KEYS."""
    return (list(keys[begin : begin + MAX_KEYS]) for begin in range(0, len(keys), MAX_KEYS))


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not _HOST.fullmatch(host) or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
        raise ConfigurationError(f"storage option 'metadata_url': got {url!r}, expected http://host:port")
    return host, port


def _checked(content: Mapping[str, Any], name: str, keys: Sequence[str], types: tuple[type, ...]) -> list[Any]:
    found = content.get(name)
    if isinstance(found, list) and len(found) == len(keys) and all(isinstance(one, types) for one in found):
        return found
    raise MetadataError(f"expected {name} for {len(keys)} keys from the service, got {str(found)[:100]}")


def _detail(content: Mapping[str, Any]) -> str:
    return str(content.get("detail", ""))[:500]
