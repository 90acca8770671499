"""MetadataClient: asks a metadata service about one namespace, from any thread."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from hicache.clock import WallClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.pages import NO_PAGE

MOST_ANSWER_BYTES = 16 << 20

FRESH_S = 20.0
"""How long an unused connection is trusted: less than a service keeps it."""

_DONE, _UNKNOWN, _CONFLICT = 204, 404, 409


class MetadataError(OSError):
    """The service could not be asked, or refused, or said what nobody understands."""


class MetadataClient:
    """One namespace of rank 0: that ranks differ is told by their keys. Methods raise MetadataError.

    A namespace that the service does not know, or was not asked about yet, is initialised. A question that changes
    nothing is asked once more when its connection breaks. `timeout_s`: for each step of an exchange. Raises
    ConfigurationError for a URL that is not `http://host:port`.
    """

    def __init__(self, url: str, namespace: str, num_pages: int, timeout_s: float) -> None:
        self._host, self._port = _address(url)
        self._namespace = namespace
        self._num_pages = num_pages
        self._timeout_s = timeout_s
        self._is_known = False
        self._clock = WallClock()
        self._idle: deque[tuple[float, HTTPConnection]] = deque()

    def initialise(self) -> None:
        """Make the namespace. Raises ConfigurationError when it is there with another number of pages."""
        status, content = self._post("initialize", {"num_pages": self._num_pages})
        if status == _CONFLICT:
            raise ConfigurationError(f"the metadata service refuses {self._num_pages} pages: {_detail(content)}")
        if status != _DONE:
            raise MetadataError(f"initialize: {status} {_detail(content)}")
        self._is_known = True

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Whether keys have a page that was confirmed."""
        content = self._ask("exists", {"keys": list(keys)}, is_repeatable=True)
        return _checked(content, "exists", keys, (bool,))

    def find(self, keys: Sequence[str]) -> list[int | None]:
        """The page of each key."""
        content = self._ask("get_page_indices", {"keys": list(keys)}, is_repeatable=True)
        pages = _checked(content, "indices", keys, (int, type(None)))
        return [self._page(page) if page is not None else None for page in pages]

    def reserve(self, keys: Sequence[str]) -> tuple[list[tuple[bool, int | None]], int]:
        """For each key whether it has a page, and else one to write to, None for no room; and how many made room."""
        content = self._ask("reserve_and_allocate_page_indices", {"keys": [[key, ""] for key in keys]})
        pairs = _checked(content, "indices", keys, (list,))
        indices = [(pair[:1] == [True], None if pair[1:] == [NO_PAGE] else self._page(*pair[1:])) for pair in pairs]
        (evicted,) = _checked({"evicted": [content.get("evicted", 0)]}, "evicted", [""], (int,))
        return indices, evicted

    def confirm(self, written: Collection[tuple[str, int]], released: Collection[int]) -> set[int]:
        """Say which pages were written and which were not; those that were not ours any more."""
        told = {"written_keys_to_confirm": [list(pair) for pair in written], "pages_to_release": list(released)}
        refused = self._ask("confirm_write", told).get("refused")
        return {self._page(page) for page in refused} if isinstance(refused, list) else set()

    def remove(self, keys: Sequence[str]) -> None:
        """Free the pages of keys."""
        self._ask("delete_keys", {"keys": list(keys)})

    def clear(self) -> None:
        """Free all pages."""
        self._ask("clear", {})

    def confirmed(self) -> int:
        """How many keys have a page."""
        return int(self._ask("usage", {}, is_repeatable=True).get("confirmed", 0))

    def close(self) -> None:
        """Close all connections that nobody uses."""
        while self._idle:
            self._idle.pop()[1].close()

    def _ask(self, operation: str, told: Mapping[str, Any], *, is_repeatable: bool = False) -> Mapping[str, Any]:
        if not self._is_known:
            self._introduce()
        status, content = self._repeated(operation, told) if is_repeatable else self._post(operation, told)
        if status == _UNKNOWN:
            self._introduce()
            status, content = self._post(operation, told)
        if status not in (200, _DONE) and "refused" not in content:
            raise MetadataError(f"{operation}: {status} {_detail(content)}")
        return content

    def _introduce(self) -> None:
        try:
            self.initialise()
        except ConfigurationError as error:
            # When it was opened there was no service that could have said so.
            raise MetadataError(str(error)) from error

    def _repeated(self, operation: str, told: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        try:
            return self._post(operation, told)
        except MetadataError as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
            return self._post(operation, told)

    def _post(self, operation: str, told: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        body = json.dumps({**told, "namespace": self._namespace}, separators=(",", ":"))
        connection = self._connection()
        try:
            connection.request("POST", f"/0/{operation}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            found = response.read(MOST_ANSWER_BYTES)
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
            if self._clock.now() - since_s < FRESH_S:
                return connection
            connection.close()
        return HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _page(self, page: Any = None, *_: Any) -> int:
        if type(page) is int and 0 <= page < self._num_pages:
            return page
        raise MetadataError(f"the service told page {page!r} of {self._num_pages}")


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
        raise ConfigurationError(f"storage option 'metadata_url': got {url!r}, expected http://host:port")
    return host, port


def _checked(content: Mapping[str, Any], name: str, keys: Sequence[str], types: tuple[type, ...]) -> list[Any]:
    found = content.get(name)
    if isinstance(found, list) and len(found) == len(keys) and all(isinstance(one, types) for one in found):
        return found
    raise MetadataError(f"the service told {str(found)[:100]} as {name} of {len(keys)} keys")


def _detail(content: Mapping[str, Any]) -> str:
    return str(content.get("detail", ""))[:500]
