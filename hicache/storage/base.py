"""StorageBackend: the interface that a storage vendor implements; PoolQuery, StorageStats, Breaker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from hicache.types import HitPolicy

BATCH_PAGES = 128
"""The most pages of one `get`, and of each pool in one `set`, which has pages of all pools of a node."""

Pieces: TypeAlias = Sequence[memoryview]
"""One page in memory: its contiguous byte buffers (format B), in the order of their bytes in the object."""


@dataclass(frozen=True, slots=True)
class PoolQuery:
    """Which objects of one more pool a prefix needs, besides the pages of the `keys` of `exists`.

    `keys`: the key of the pool's own object for each page, in order. `policy`: whether a prefix needs all of its
    objects, or the last `trailing_pages` of them (all, if the prefix has fewer pages).
    """

    keys: Sequence[str]
    policy: HitPolicy
    trailing_pages: int


@dataclass(frozen=True, slots=True)
class StorageStats:
    """Totals of one instance since it was opened; `objects` and `object_bytes` are those of its whole scope.

    `hits`: pages for which `get` answered True. `misses`: pages for which it answered False, by reason (`absent`,
    `short`, `long`, `corrupt`, `error`, `mismatch`). `written`: pages that `set` wrote. `present`: pages that it found
    stored already. `refused`: pages for which it answered False, by reason (`full`, `error`, `mismatch`). `removed`:
    objects that were evicted for others.
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


@dataclass(frozen=True, slots=True)
class Breaker:
    """What keeps a cache from asking a server that does not answer.

    `is_open`: the server failed, and has not answered since. `pauses`: how often the server was not asked for a while.
    """

    is_open: bool
    pauses: int


class StorageBackend(ABC):
    """Stores pages under keys, within one scope.

    A scope is a name such as `model-4f2a`: it stands for everything that two caches must agree on to read each other's
    pages. Objects of other scopes are invisible. A key is a name such as `kv.0of2/9f86d0…`. `hicache.storage.keys`
    defines the grammar of both. A failure is an answer of False, counted with its reason in `stats`: no verb raises
    because a disk is full, a peer is down or an object is damaged. Verbs may be called from several threads.

    `prefix_keys`: the keys of the pages before the first one, root first; empty unless the configuration enables them.
    """

    SECRET_OPTIONS: ClassVar[tuple[str, ...]] = ()
    """The options that no log, message or record may show."""

    @abstractmethod
    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        """Open a scope. Raises ConfigurationError, naming the option and its value, for an invalid option."""

    @abstractmethod
    def has(self, keys: Sequence[str]) -> list[bool]:
        """Whether each key has an object. The number of keys is not limited."""

    @abstractmethod
    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        """Read objects directly into memory; True for each key whose target now has the complete, verified bytes.

        For an absent, short, long, torn or corrupt object the answer is False, and the bytes of the target are
        undefined. If the numbers of keys and targets differ, every answer is False, and nothing is written.
        """

    @abstractmethod
    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        """Store pages; True for each key that has a complete object now.

        An object that exists already is not changed: the answer is True, and nothing is written. If the numbers of keys
        and sources differ, every answer is False.
        """

    @abstractmethod
    def clear(self) -> bool:
        """Remove all objects of this scope, and no others. Returns whether all were removed."""

    @abstractmethod
    def stats(self) -> StorageStats:
        """The totals of this instance since it was opened, and the size of the scope."""

    @abstractmethod
    def close(self) -> None:
        """Release files and memory; stored objects remain. A second call has no effect."""

    def register_pools(self, page_bytes: Mapping[str, int]) -> None:
        """Announce the pools of a cache: the bytes of a page, by the first segment of the keys of each pool.

        Called once, before all other verbs; not called by who uses a backend without a cache. Raises ConfigurationError
        for a pool that the options of the backend do not allow.
        """

    def register(self, regions: Sequence[memoryview]) -> bool:
        """Announce all host memory of a cache, once, before the first get or set. Returns whether it is accepted.

        A backend that returns True uses the memory of a get or set until the call has returned or raised, however long
        that takes, and not after it. Its targets and sources are then views of these regions: nothing is copied on the
        way. Otherwise, as here, each call has memory of its own, and what is written late reaches no page of the cache.
        """
        return False

    def breaker(self) -> Breaker | None:
        """The state of the breaker, without asking the server; None for a backend that has none."""
        return None

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        """How many pages of a prefix can be used: the largest number that every pool accepts.

        `keys`: the key of each page; a usable prefix has objects for all its pages. A backend that can answer faster
        may override this method. Raises ValueError if the number of keys in a query differs.
        """
        check_queries(keys, queries)
        present = _only_true(self.has(keys), len(keys))
        whole = present.index(False) if False in present else len(present)
        wants = [
            (_only_true(self.has(query.keys[:whole]), whole), query.policy, query.trailing_pages) for query in queries
        ]
        return usable_pages(whole, wants)


def check_queries(keys: Sequence[str], queries: Sequence[PoolQuery]) -> None:
    """Raise ValueError unless each pool has a key for each page."""
    for query in queries:
        if len(query.keys) != len(keys):
            raise ValueError(f"expected {len(keys)} keys of a pool, one for each page, got {len(query.keys)}")


def _only_true(answers: Sequence[bool], count: int) -> list[bool]:
    """What `has` answers. Only True itself means that an object is there."""
    # No method: a backend may have one of any name.
    if len(answers) != count:
        raise ValueError(f"expected {count} answers of has, got {len(answers)}")
    return [one is True for one in answers]


Want = tuple[Sequence[bool], HitPolicy, int]
"""For one pool: which of its pages exist, in order; the policy; and the number of trailing pages that it needs."""


def usable_pages(pages: int, wants: Sequence[Want]) -> int:
    """The largest number of pages, up to `pages`, that all pools accept; 0 is always accepted.

    The minimum of the pools' largest numbers is not the answer: a pool may accept 5 and 2 pages, but not 4.
    """
    lengths = set(range(pages + 1))
    for present, policy, trailing_pages in wants:
        lengths &= set(accepted_pages(present, policy, trailing_pages))
    return max(lengths)


def accepted_pages(present: Sequence[bool], policy: HitPolicy, trailing_pages: int) -> Iterator[int]:
    """The numbers of pages that one pool accepts, ascending."""
    run = 0
    yield 0
    for end, is_present in enumerate(present, start=1):
        run = run + 1 if is_present else 0
        if run >= (end if policy is HitPolicy.ALL_PAGES else min(trailing_pages, end)):
            yield end
