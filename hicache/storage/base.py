"""StorageBackend: the one class that a vendor of storage writes; PoolQuery and StorageStats, which it uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hicache.types import HitPolicy

BATCH_PAGES = 128
"""The most pages that one `get` or `set` is asked for."""

Pieces: TypeAlias = Sequence[memoryview]
"""One page in memory: its runs of bytes (contiguous, format B), in the order in which the object holds them."""


@dataclass(frozen=True, slots=True)
class PoolQuery:
    """What a prefix needs of one more pool besides the pages that are asked for.

    `keys`: the pool's own object for each page, in order. `policy`: whether a prefix needs all of its objects, or the
    last `trailing_pages` of them (all, where the prefix has no more than that).
    """

    keys: Sequence[str]
    policy: HitPolicy
    trailing_pages: int


@dataclass(frozen=True, slots=True)
class StorageStats:
    """Totals of one instance; `objects` and `object_bytes` of its whole scope.

    `hits`, `misses`: pages that `get` answered True and False, those by reason (`absent`, `short`, `long`, `corrupt`,
    `error`, `mismatch`). `written`, `present`, `refused`: pages that `set` wrote, found there already, and answered
    False, by reason (`full`, `error`, `mismatch`). `removed`: objects that made room for others.
    """

    objects: int
    object_bytes: int
    hits: int
    misses: Mapping[str, int]
    written: int
    present: int
    refused: Mapping[str, int]
    removed: int
    bytes_read: int
    bytes_written: int


class StorageBackend(ABC):
    """Keeps pages under keys, within one scope.

    A scope is a name such as `model-4f2a` and stands for all that two caches must agree on to read each other's pages;
    objects of other scopes are out of sight. A key is a name such as `kv.0of2/9f86d0…`. Both keep to the grammar of
    `hicache.storage.keys`. What fails is an answer, counted with its reason in `stats`: no verb raises
    because a disk is full, a peer is down or an object is damaged. Verbs may be called from several threads.

    `prefix_keys`: the keys of the pages before the first one, root first; empty unless the configuration asks for it.
    """

    @abstractmethod
    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        """Open a scope. Raises ConfigurationError, naming the option and its value, for options that cannot be."""

    @abstractmethod
    def has(self, keys: Sequence[str]) -> list[bool]:
        """Whether an object is there, key by key. Any number of keys."""

    @abstractmethod
    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        """Read objects straight into memory; True for each key whose bytes are there now, whole and checked.

        What an absent, short, long, torn or corrupt object leaves in its target is no data. When keys and targets
        differ in number the answer is False for each key, and nothing is written.
        """

    @abstractmethod
    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        """Keep pages; True for each key under which there is a whole object now.

        An object that is there already is kept as it is: True, and nothing is written. When keys and sources differ in
        number the answer is False for each key.
        """

    @abstractmethod
    def clear(self) -> bool:
        """Remove the objects of this scope, and no others; whether all are gone."""

    @abstractmethod
    def stats(self) -> StorageStats:
        """What this instance has done since it was opened, and what the scope holds."""

    @abstractmethod
    def close(self) -> None:
        """Give back files and memory. May be called twice; objects stay."""

    def register(self, regions: Sequence[memoryview]) -> None:
        """All targets and sources will lie in these regions of memory. Called once, before the first get or set."""

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        """How many pages of a prefix can be used: the largest number that every pool accepts.

        `keys`: the object of each page, needed without a gap. A backend that can answer faster may override this.
        Raises ValueError when a query has another number of keys.
        """
        for query in queries:
            if len(query.keys) != len(keys):
                raise ValueError(f"{len(query.keys)} keys of a pool were given for {len(keys)} pages")
        present = self.has(keys)
        whole = present.index(False) if False in present else len(present)
        wants = [(self.has(query.keys[:whole]), query.policy, query.trailing_pages) for query in queries]
        return usable_pages(whole, wants)


Want = tuple[Sequence[bool], HitPolicy, int]
"""Of one pool: which of its pages are there, in order; what a prefix needs of them; and for trailing pages how many."""


def usable_pages(pages: int, wants: Sequence[Want]) -> int:
    """The largest number of pages, up to `pages`, that all pools accept; 0 is always accepted.

    The minimum of each pool's own best will not do: a pool may accept 5 and 2 pages, and not the 4 of another.
    """
    lengths = set(range(pages + 1))
    for present, policy, trailing_pages in wants:
        lengths &= set(_accepted(present, policy, trailing_pages))
    return max(lengths)


def _accepted(present: Sequence[bool], policy: HitPolicy, trailing_pages: int) -> Iterator[int]:
    """The lengths that one pool accepts, ascending."""
    run = 0
    yield 0
    for end, is_present in enumerate(present, start=1):
        run = run + 1 if is_present else 0
        if run >= (end if policy is HitPolicy.ALL_PAGES else min(trailing_pages, end)):
            yield end
