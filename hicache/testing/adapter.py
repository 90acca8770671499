"""CacheAdapter: the one class that a third party writes so that the suites can drive its cache.

Only the abstract verbs are needed. Everything else is a capability: declare it and override its verbs. What is not
declared is skipped with its reason; what is declared and not overridden fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from hicache.config import CacheConfig
from hicache.testing.host_verbs import HostVerbs, PageBytes
from hicache.testing.rank_verbs import RankVerbs
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage_verbs import StorageVerbs
from hicache.types import (
    Event,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    MatchResult,
    Pool,
    Sizes,
    Slots,
    Tokens,
)

__all__ = ["Admission", "CacheAdapter", "Capability", "PageBytes", "load_adapter"]


class Capability(str, Enum):
    """What a cache can do beyond match, insert, lock, unlock and evict."""

    PAGED = "page sizes above 1"
    NAMESPACES = "prefixes are kept apart by namespace"
    BIGRAM = "keys of token pairs"
    SWA = "the SWA component: allocate gives SWA partners; `partners`, `release_window`"
    MAMBA = "the MAMBA component: `allocate_state`, `free_state`, `fork_state`"
    INDEXER = "an indexer sidecar pool that follows KV"
    POLICIES = "all seven eviction policies, not only LRU"
    BYTES = "pools that can be written and read: `layers`, `slot_bytes`, `write`, `read`"
    SNAPSHOT = "the whole state can be shown: `snapshot`"
    SIZES = "size counters: `sizes`"
    EVENTS = "an event log: `events`"
    HASHES = "page hashes: `page_hashes`"
    REFUSALS = "misuse is refused with an error: a stale receipt, a slot freed twice; the properties try it at random"
    HITS = "nodes count the requests that matched them: `hits` in the snapshot"
    COUNTERS = "counts of the work done: `counters`"
    REQUESTS = "the life of a request: `admit`, `extend`, `checkpoint`, `finish`, `abort`"
    HOST = "a host tier"
    STORAGE = "a storage tier"
    MARKS = "nodes say what storage was given of them: `persisted` in the snapshot"
    EXTRA_CONFIG = "an extra configuration in JSON, TOML or YAML: `extra_config`"
    STEPPED = "transfers that finish when the test says so"
    STEPPED_STORAGE = "storage that answers when the test says so"
    RANKS = "one cache on several ranks: `on_rank`"


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A request that runs.

    `request`: opaque, for the verbs that follow. `table`: the request's FULL slots, one per token, rounded up to whole
    pages; the first `cached_tokens` are the tree's. `state`: the request's own MAMBA slot, which holds the state after
    `cached_tokens` tokens, or None without MAMBA. `loading`: part of what is cached comes from the host and has not
    arrived: the request waits, and `resume` says how it stands.
    """

    request: Handle
    table: Slots
    cached_tokens: int
    state: int | None
    loading: bool


class CacheAdapter(HostVerbs, StorageVerbs, RankVerbs, ABC):
    """A cache under test. One instance is one cache, opened with one configuration. Lengths are in tokens.

    `departures`: clauses in whose place the cache has a rule of its own, by design. Their laws are not checked after
    each verb, so that what else is wrong is seen; the tests that name them run as ever, and are known to fail.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    departures: frozenset[str] = frozenset()

    @abstractmethod
    def __init__(self, config: CacheConfig) -> None:
        """Open an empty cache. Raises ConfigurationError when the combination cannot be served."""

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig] | None:
        """The configurations to run the suites over, or None for the standard product."""
        return None

    @classmethod
    def delayed(cls) -> type[CacheAdapter]:
        """The class that tests open: one whose transfers take longer at random, so that they are met at any moment."""
        return cls

    def close(self) -> None:
        """End what is under way, and give back what the cache holds outside itself. May be called twice."""

    # What a scheduler does.

    @abstractmethod
    def allocate(self, tokens: int) -> Slots | None:
        """Slots for a multiple of page_size tokens, whole aligned pages in order, or None when short.

        Evicts what is missing and no more. With SWA each slot gets an SWA partner.
        """

    @abstractmethod
    def free(self, slots: Slots) -> None:
        """Give back slots that the caller holds, and their SWA partners. Raises on any other slot."""

    @abstractmethod
    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        """The longest cached prefix. `chunked`: a request that was counted before looks again."""

    @abstractmethod
    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        """Hand the slots of the key's whole pages to the tree, which keeps them or frees them.

        `slots`: FULL slots, [tokens floored to pages]; the first `shared` are the tree's own.
        `window_start`: the request has no SWA data before this token. `state`: the MAMBA slot that holds the state
        after the last whole page, or None; the caller keeps it when the result says that it was not adopted.
        """

    @abstractmethod
    def lock(self, handle: Handle) -> Handle:
        """Protect the path to a node; returns the receipt. Raises on a handle whose node is gone."""

    @abstractmethod
    def unlock(self, receipt: Handle) -> None:
        """Undo what the acquire of this receipt did. Raises when it was released before, or is not this cache's."""

    @abstractmethod
    def evict(self, component: str, tokens: int) -> EvictResult:
        """Free at least so many of the component's slots, or all that can be evicted."""

    @abstractmethod
    def reset(self) -> None:
        """Drop everything that the tree holds."""

    def step(self) -> None:
        """Take over whatever transfers have finished."""

    def drain(self) -> None:
        """Let all that is under way end, and take it over; afterwards nothing is under way."""
        self.step()

    # SWA

    def partners(self, slots: Slots) -> Slots:
        """The SWA slot of each FULL slot, 0 where it has none."""
        self._lacks("partners")

    def release_window(self, slots: Slots) -> None:
        """Give back the SWA partners of FULL slots that the caller holds; slots without one are skipped."""
        self._lacks("release_window")

    # MAMBA

    def allocate_state(self) -> int | None:
        """A slot for one state, evicting what is missing, or None."""
        self._lacks("allocate_state")

    def free_state(self, slot: int) -> None:
        """Give back a state slot that the caller holds."""
        self._lacks("free_state")

    def fork_state(self, handle: Handle) -> int | None:
        """A slot of the caller's own with a copy of the node's state, or None when no slot can be had."""
        self._lacks("fork_state")

    # What a model runner does: straight to the pools, so that checking bytes does not trust the cache.

    def layers(self, pool: Pool) -> int:
        """How many layers the pool has; 0 when there is no such pool."""
        self._lacks("layers")

    def slot_bytes(self, pool: Pool) -> int:
        """Bytes of one slot in one layer."""
        self._lacks("slot_bytes")

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        """Store bytes at the pool's own slots (for SWA: at the partners)."""
        self._lacks("write")

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        """The bytes at the pool's own slots."""
        self._lacks("read")

    # The life of a request.

    def admit(self, key: Key) -> Admission | None:
        """Match, load back, lock, take slots for the rest and an own state; None, with nothing taken, if too much."""
        self._lacks("admit")

    def resume(self, request: Handle) -> Admission | None:
        """How a request stands that was loading, or None while it still waits. After a failed load less is cached."""
        self._lacks("resume")

    def extend(self, request: Handle, tokens: Tokens) -> Slots | None:
        """Append tokens; the longer table, or None, with nothing changed, when it does not fit."""
        self._lacks("extend")

    def checkpoint(self, request: Handle, computed_tokens: int) -> Slots:
        """A chunk was computed: cache it, match again, move the lock. Returns the table, which shares more now."""
        self._lacks("checkpoint")

    def finish(self, request: Handle) -> None:
        """Cache what was computed, give everything back."""
        self._lacks("finish")

    def abort(self, request: Handle) -> None:
        """Give everything back, cache nothing more."""
        self._lacks("abort")

    # Read-only.

    def snapshot(self) -> Snapshot:
        """The whole cache at this moment, in values that the caller owns."""
        self._lacks("snapshot")

    def sizes(self) -> Mapping[str, Sizes]:
        """The size counters of each component."""
        self._lacks("sizes")

    def events(self) -> Sequence[Event]:
        """Every event since the cache was opened."""
        self._lacks("events")

    def page_hashes(self, key: Key) -> Sequence[str]:
        """The hash of each whole page of a key, in hex."""
        self._lacks("page_hashes")

    def counters(self) -> Mapping[str, int]:
        """Running totals of the work done. Counts, unlike times, are the same on every machine.

        `nodes_visited`: by match and insert. `bytes_compared`: of keys. `pages_hashed`: by the hash chain.
        `nodes_locked`: lock counts that lock and unlock changed, over all components. `candidates_popped`: looked at
        by evictions. `states_copied`: by copy-on-write. With a host tier: `bytes_backed_up` and `bytes_loaded`, of
        operations that arrived, over all layers and pools; `backups_refused` for lack of host space.
        """
        self._lacks("counters")

    def sanity_check(self) -> None:
        """The cache's own check of itself, if it has one; raises when something is wrong. Called after our laws."""


def load_adapter(path: str) -> type[CacheAdapter]:
    """Import `package.module:Class`. Raises ValueError or ImportError, naming the path, when that is no adapter."""
    import importlib

    module, separator, name = path.partition(":")
    if not separator or not module or not name:
        raise ValueError(f"adapter {path!r} is not of the form package.module:Class")
    found: Any = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, CacheAdapter)):
        raise ValueError(f"adapter {path!r}: {name} is {found!r}, not a CacheAdapter class")
    return found
