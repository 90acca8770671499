"""MetadataClient: asks a metadata service over HTTP, from any thread; one exchange is for any number of namespaces."""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedReader
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from hicache.clock import WallClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.connection import TimedStream
from hicache.storage.hf3fs.metadata import (
    BATCH,
    Asked,
    MetadataError,
    Namespace,
    Reserved,
    Written,
    exchanges,
    joined,
)
from hicache.storage.hf3fs.pages import NO_PAGE

MAX_ANSWER_BYTES = 16 << 20

MAX_IDLE_S = 20.0
"""How long an idle connection is reused: less than the idle timeout of the service."""

_FOUND, _DONE, _UNKNOWN = 200, 204, 404

_HOST = re.compile(r"[!-~]{1,253}")

_REFUSALS = (401, 403, 409, 421)
"""The answers to a client that is configured wrongly: its token, its address of the service, its number of pages."""


Content: TypeAlias = Mapping[str, Any]
"""The fields of a request or of an answer."""


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
    """PageMetadata over HTTP. Methods raise MetadataError.

    Several namespaces are asked for in one request, a batch. A request that changes nothing is repeated once when its
    connection breaks. `timeout_s`: for a request, and for its whole answer. `token`: of the service, if it has one.
    Raises ConfigurationError for a URL that is not `http://host:port`.
    """

    def __init__(self, url: str, timeout_s: float, token: str | None = None) -> None:
        self._host, self._port = _address(url)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._known = set[Namespace]()
        self._clock = WallClock()
        self._idle: deque[tuple[float, HTTPConnection]] = deque()

    def initialise(self, spaces: Collection[Namespace]) -> None:
        """Create namespaces. Raises ConfigurationError if the service refuses the client or a number of pages."""
        replies = self._exchange("initialize", {space: {"num_pages": space.num_pages} for space in spaces})
        for space, (status, content) in replies.items():
            if status in _REFUSALS:
                raise ConfigurationError(
                    f"the metadata service at {self._host}:{self._port} refuses this client with {space.num_pages} "
                    f"pages of {space.state}: {status} {_detail(content)}"
                )
            if status != _DONE:
                raise MetadataError(f"initialize: {status} {_detail(content)}")
            self._known.add(space)

    def exist(self, asked: Asked) -> dict[Namespace, list[bool]]:
        """Whether each key has a confirmed page. The number of keys is not limited."""
        return joined(
            {
                space: _checked(content, "exists", some[space], (bool,))
                for space, content in self._ask("exists", _keys(some), is_repeatable=True).items()
            }
            for some in exchanges(asked)
        )

    def find(self, asked: Asked) -> dict[Namespace, list[int | None]]:
        """The page of each key. The number of keys is not limited."""
        return joined(
            {
                space: [
                    None if page is None else _page(space, page)
                    for page in _checked(content, "indices", some[space], (int, type(None)))
                ]
                for space, content in self._ask("get_page_indices", _keys(some), is_repeatable=True).items()
            }
            for some in exchanges(asked)
        )

    def reserve(self, asked: Asked) -> dict[Namespace, Reserved]:
        """The page of each of up to MAX_KEYS keys, or a reserved one."""
        fields = {
            space: {"keys": [[key, ""] for key in keys], "with_reservation": True} for space, keys in asked.items()
        }
        answers = self._ask("reserve_and_allocate_page_indices", fields)
        return {space: _reserved(space, asked[space], content) for space, content in answers.items()}

    def confirm(self, written: Mapping[Namespace, Written]) -> dict[Namespace, set[int]]:
        """Confirm written pages, and release others. Returns the refused pages, which had expired."""
        fields = {space: _confirmation(one) for space, one in written.items()}
        answers = {space: content.get("refused") for space, content in self._ask("confirm_write", fields).items()}
        return {
            space: {_page(space, page) for page in refused} if isinstance(refused, list) else set()
            for space, refused in answers.items()
        }

    def remove(self, asked: Asked) -> None:
        """Free the pages of keys. The number of keys is not limited."""
        for some in exchanges(asked):
            self._ask("delete_keys", _keys(some))

    def clear(self, spaces: Collection[Namespace]) -> None:
        """Free all pages of those namespaces that exist."""
        for status, content in self._exchange("clear", {space: {} for space in spaces}).values():
            if status not in (_DONE, _UNKNOWN):
                raise MetadataError(f"clear: {status} {_detail(content)}")

    def confirmed(self, spaces: Sequence[Namespace]) -> list[int]:
        """How many keys of each namespace have a page."""
        replies = self._exchange("usage", {space: {} for space in spaces}, is_repeatable=True)
        for status, content in replies.values():
            if status not in (_FOUND, _UNKNOWN):
                raise MetadataError(f"usage: {status} {_detail(content)}")
        return [int(replies[space][1].get("confirmed", 0)) for space in spaces]

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    def _ask(
        self, operation: str, asked: Mapping[Namespace, Content], *, is_repeatable: bool = False
    ) -> dict[Namespace, Content]:
        """The answer of each namespace. Those that the service does not know are created, and asked again."""
        self._create([space for space in asked if space not in self._known])
        replies = self._exchange(operation, asked, is_repeatable=is_repeatable)
        unknown = [space for space, (status, _) in replies.items() if status == _UNKNOWN]
        self._create(unknown)
        replies.update(self._exchange(operation, {space: asked[space] for space in unknown}))
        for status, content in replies.values():
            if status not in (_FOUND, _DONE) and "refused" not in content:
                raise MetadataError(f"{operation}: {status} {_detail(content)}")
        return {space: content for space, (_, content) in replies.items()}

    def _create(self, spaces: Sequence[Namespace]) -> None:
        try:
            self.initialise(spaces)
        except ConfigurationError as error:
            # The service was not reachable when the backend was opened, so this becomes an error of the request.
            raise MetadataError(str(error)) from error

    def _exchange(
        self, operation: str, asked: Mapping[Namespace, Content], *, is_repeatable: bool = False
    ) -> dict[Namespace, tuple[int, Content]]:
        """The status and the answer of each namespace, from one request; from none if there is no namespace."""
        requests = [
            (f"/{space.rank}/{operation}", {**fields, "namespace": space.name}) for space, fields in asked.items()
        ]
        if len(requests) > 1:
            status, content = self._sent(BATCH, {"requests": requests}, is_repeatable)
            return dict(zip(asked, _replies(status, content, len(requests)), strict=True))
        return {space: self._sent(*requests[0], is_repeatable) for space in asked}

    def _sent(self, path: str, fields: Content, is_repeatable: bool) -> tuple[int, Content]:
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


def _keys(asked: Asked) -> dict[Namespace, Content]:
    return {space: {"keys": keys} for space, keys in asked.items()}


def _reserved(space: Namespace, keys: Sequence[str], content: Content) -> Reserved:
    found = _checked(content, "indices", keys, (list,))
    indices = [(pair[:1] == [True], None if pair[1:] == [NO_PAGE] else _page(space, *pair[1:])) for pair in found]
    (evicted,) = _checked({"evicted": [content.get("evicted", 0)]}, "evicted", [""], (int,))
    reservation = content.get("reservation")
    return Reserved(indices, evicted, reservation if isinstance(reservation, str) else None)


def _confirmation(one: Written) -> Content:
    fields = {
        "written_keys_to_confirm": [list(pair) for pair in one.written],
        "pages_to_release": list(one.released),
    }
    return fields if one.reservation is None else {**fields, "reservation": one.reservation}


def _page(space: Namespace, page: Any = None, *_: Any) -> int:
    if type(page) is int and 0 <= page < space.num_pages:
        return page
    raise MetadataError(f"expected a page below {space.num_pages} from the service, got {page!r}")


def _replies(status: int, content: Content, count: int) -> list[tuple[int, Content]]:
    """The answers of a batch. A service that refuses the client refuses each of its requests."""
    if status in _REFUSALS:
        return [(status, content)] * count
    if status != _FOUND:
        raise MetadataError(f"{BATCH}: {status} {_detail(content)}")
    found = _checked(content, "replies", [""] * count, (list,))
    for pair in found:
        if len(pair) != 2 or type(pair[0]) is not int or not isinstance(pair[1], dict):  # noqa: PLR2004 - a pair
            raise MetadataError(f"expected a status and fields for each request of a batch, got {str(pair)[:100]}")
    return [(pair[0], pair[1]) for pair in found]


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not _HOST.fullmatch(host) or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
        raise ConfigurationError(f"storage option 'metadata_url': got {url!r}, expected http://host:port")
    return host, port


def _checked(content: Content, name: str, keys: Sequence[str], types: tuple[type, ...]) -> list[Any]:
    found = content.get(name)
    if isinstance(found, list) and len(found) == len(keys) and all(isinstance(one, types) for one in found):
        return found
    raise MetadataError(f"expected {name} for {len(keys)} keys from the service, got {str(found)[:100]}")


def _detail(content: Content) -> str:
    return str(content.get("detail", ""))[:500]
