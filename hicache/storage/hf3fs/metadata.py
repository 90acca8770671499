"""PageMetadata: which page of which namespace has a key; Namespace, Written and Reserved, which it uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from hicache.storage.hf3fs.pages import MAX_KEYS

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


class PageMetadata(Protocol):
    """Assigns the pages of namespaces to keys, from any thread. Methods raise MetadataError.

    Each method takes any number of namespaces, and asks for all of them at once. A namespace is created before it is
    first used, and again if it is not known any more; `clear` and `confirmed` create none.
    """

    def initialise(self, spaces: Collection[Namespace]) -> None:
        """Create namespaces. Raises ConfigurationError if one exists with another number of pages."""

    def exist(self, asked: Asked) -> dict[Namespace, list[bool]]:
        """Whether each key has a confirmed page. The number of keys is not limited."""

    def find(self, asked: Asked) -> dict[Namespace, list[int | None]]:
        """The page of each key, which is marked as used. The number of keys is not limited."""

    def reserve(self, asked: Asked) -> dict[Namespace, Reserved]:
        """The page of each of up to MAX_KEYS keys, or a reserved one."""

    def confirm(self, written: Mapping[Namespace, Written]) -> dict[Namespace, set[int]]:
        """Confirm written pages, and release others. Returns the refused pages, which had expired."""

    def remove(self, asked: Asked) -> None:
        """Free the pages of keys. The number of keys is not limited."""

    def clear(self, spaces: Collection[Namespace]) -> None:
        """Free all pages of those namespaces that exist."""

    def confirmed(self, spaces: Sequence[Namespace]) -> list[int]:
        """How many keys of each namespace have a page."""

    def close(self) -> None:
        """Release connections and files."""


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
