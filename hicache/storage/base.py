"""StorageBackend: the protocol of what keeps pages under keys, and the one class that a vendor writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hicache.storage.stats import StorageStats
from hicache.storage.usable import usable_pages
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


class StorageBackend(ABC):
    """Keeps pages under keys, within one scope.

    A scope is a name such as `model-4f2a` and stands for all that two caches must agree on to read each other's pages;
    objects of other scopes are out of sight. A key is a name such as `kv.0of2/9f86d0…`. Both keep to the grammar of
    `hicache.storage.object_keys`. What fails is an answer, counted with its reason in `stats`: no verb raises
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
