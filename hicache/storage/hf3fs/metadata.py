"""PageMetadata: which page of which namespace has a key, asked of a metadata service in any way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.pages import MAX_KEYS, NO_PAGE

T = TypeVar("T")

BATCH = "/batch"
"""The path of a request to the service that consists of several, for any ranks and namespaces."""


class MetadataError(OSError):
    """The metadata could not be asked or changed, or the answer is invalid."""


class Namespace(NamedTuple):
    """The pages of one pool of one rank. `num_pages`: how many it is created with."""

    rank: int
    name: str
    num_pages: int

    @property
    def state(self) -> str:
        """Its name among the namespaces of all ranks."""
        return f"{self.rank}:{self.name}"


class Reserved(NamedTuple):
    """For each key whether it has a page, and the page or a reserved one, None if there is no room.

    `evicted`: the number of keys that were evicted. `reservation`: its id, None from a service that gives none.
    """

    indices: list[tuple[bool, int | None]]
    evicted: int
    reservation: str | None


class Written(NamedTuple):
    """What became of the pages of a reservation: those written, with their keys, and those to be released."""

    written: Collection[tuple[str, int]]
    released: Collection[int]
    reservation: str | None


Asked = Mapping[Namespace, Sequence[str]]
"""Keys by namespace."""

Content: TypeAlias = Mapping[str, Any]
"""The fields of a request or of an answer."""

_FOUND, _DONE, _UNKNOWN = 200, 204, 404

_REFUSALS = (401, 403, 409, 421)
"""The answers to a client that is configured wrongly: its token, its address of the service, its number of pages."""


class PageMetadata(ABC):
    """Assigns the pages of namespaces to keys, from any thread. Methods raise MetadataError.

    Each method takes any number of namespaces, and asks for all of them in one request, a batch. A namespace is created
    before it is first used, and again if it is not known any more; `clear` and `confirmed` create none. `where`: names
    the service in messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._known = set[Namespace]()

    def initialise(self, spaces: Collection[Namespace]) -> None:
        """Create namespaces. Raises ConfigurationError if the service refuses the client or a number of pages."""
        replies = self._exchange("initialize", {space: {"num_pages": space.num_pages} for space in spaces})
        for space, (status, content) in replies.items():
            if status in _REFUSALS:
                raise ConfigurationError(
                    f"{self._where} refuses this client with {space.num_pages} "
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
        """The page of each key, which is marked as used. The number of keys is not limited."""
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

    @abstractmethod
    def close(self) -> None:
        """Release connections and files."""

    @abstractmethod
    def _sent(self, path: str, fields: Content, *, is_repeatable: bool) -> tuple[int, Content]:
        """The status and the fields of the answer to a request. `is_repeatable`: it changes nothing."""

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
            status, content = self._sent(BATCH, {"requests": requests}, is_repeatable=is_repeatable)
            return dict(zip(asked, _replies(status, content, len(requests)), strict=True))
        return {space: self._sent(*requests[0], is_repeatable=is_repeatable) for space in asked}


def exchanges(asked: Asked) -> Iterator[dict[Namespace, list[str]]]:
    """The keys of one exchange after the other: none has more than MAX_KEYS."""
    some, room = dict[Namespace, list[str]](), MAX_KEYS
    for space, keys in asked.items():
        for key in keys:
            if not room:
                yield some
                some, room = {}, MAX_KEYS
            some.setdefault(space, []).append(key)
            room -= 1
    if some:
        yield some


def joined(found: Iterable[Mapping[Namespace, list[T]]]) -> dict[Namespace, list[T]]:
    """The answers of several exchanges, by namespace, in the order of their keys."""
    answers: dict[Namespace, list[T]] = {}
    for one in found:
        for space, some in one.items():
            answers.setdefault(space, []).extend(some)
    return answers


def _keys(asked: Asked) -> dict[Namespace, Content]:
    return {space: {"keys": keys} for space, keys in asked.items()}


def _reserved(space: Namespace, keys: Sequence[str], content: Content) -> Reserved:
    found = map(list, _checked(content, "indices", keys, (list, tuple)))
    indices = [(pair[:1] == [True], None if pair[1:] == [NO_PAGE] else _page(space, *pair[1:])) for pair in found]
    (evicted,) = _checked({"evicted": [content.get("evicted", 0)]}, "evicted", [""], (int,))
    reservation = content.get("reservation")
    return Reserved(indices, evicted, reservation if isinstance(reservation, str) else None)


def _confirmation(one: Written) -> Content:
    fields = {"written_keys_to_confirm": [list(pair) for pair in one.written], "pages_to_release": list(one.released)}
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


def _checked(content: Content, name: str, keys: Sequence[str], types: tuple[type, ...]) -> list[Any]:
    found = content.get(name)
    if isinstance(found, list) and len(found) == len(keys) and all(isinstance(one, types) for one in found):
        return found
    raise MetadataError(f"expected {name} for {len(keys)} keys from the service, got {str(found)[:100]}")


def _detail(content: Content) -> str:
    return str(content.get("detail", ""))[:500]
