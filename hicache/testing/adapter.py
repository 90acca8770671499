"""CacheAdapter: the one class that a third party implements so that the suites can drive its cache.

An adapter opens a cache through one door, or through both. With VERBS the tests match, insert, lock and evict prefixes
one by one. With REQUESTS they admit, extend, checkpoint and finish requests, and need no other verb. Every method but
`__init__` belongs to a capability: declare the capability and override its methods. A test that needs an undeclared
capability is skipped with that reason. A declared capability whose method is not overridden makes the test fail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig, Recency
from hicache.testing.ranks.world import RankWorld
from hicache.testing.snapshot import BlockSnapshot, Snapshot
from hicache.types import (
    Event,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    LoadBack,
    MatchResult,
    Sizes,
    Slots,
    StorageKind,
    Tier,
    Tokens,
    TransferKind,
    TransferPhase,
)

PageBytes = npt.NDArray[np.uint8]
"""Raw bytes of some slots in one layer: uint8, shape [slots, bytes per slot and layer]."""

Adapter = TypeVar("Adapter", bound="RankVerbs")


INTERFACE_VERSION = 2
"""The version of this interface. An adapter states the version that it was written for, as `interface`."""


class Capability(str, Enum):
    """What a cache supports. VERBS and REQUESTS are the two doors: an adapter declares one of them at least."""

    VERBS = "one verb at a time: `allocate`, `free`, `match`, `insert`, `lock`, `unlock`, `evict`"
    RESET = "everything can be removed at once: `reset`"
    PAGED = "page sizes above 1"
    NAMESPACES = "prefixes are kept apart by namespace"
    MEDIA = "images and other media identify a prompt: `media` of a key"
    BIGRAM = "keys of token pairs"
    SWA = "the SWA component: allocate gives SWA partners; `partners`, `release_window`"
    MAMBA = "the MAMBA component: `allocate_state`, `free_state`, `fork_state`"
    INDEXER = "an indexer sidecar pool that follows KV"
    SIDECARS = "any number of sidecar pools that follow KV, as the model names them"
    GROUPS = "with SIDECARS: pools that have one entry for several pages"
    POLICIES = "all seven eviction policies, not only LRU"
    BYTES = "pools that can be written and read: `layers`, `slot_bytes`, `write`, `read`"
    CENSUS = "every tensor that is indexed by slot can be found: `slot_roots`, `slot_counts`"
    SNAPSHOT = "the whole state can be shown: `snapshot`, or `block_snapshot` with blocks and offload"
    SIZES = "size counters: `sizes`"
    EVENTS = "an event log: `events`"
    HASHES = "page hashes: `page_hashes`"
    REFUSALS = "misuse is refused with an error: a stale receipt, a slot freed twice; the properties try it at random"
    EARLY_UNLOCK = "the window of a lock can be released before the rest: `unlock_window`"
    STATELESS_LOCKS = "a lock can leave out the MAMBA state: `lock_without_state`"
    DEMOTED_LOCKS = "a node that is on the host alone can be locked: `lock`"
    BRANCHING = "a match says where the next state should be kept: `branching_seqlen`"
    PARTIAL_HITS = "a hit goes on inside a page, a part of which is copied: `copied_tokens` of an admission"
    MISSES = "a match says which component cut it: `tokens_refused`"
    COLLISIONS = "a test can make all page hashes equal: `colliding`"
    HITS = "nodes count the requests that matched them: `hits` in the snapshot"
    COUNTERS = "counts of the work done: `counters`"
    METRICS = "metrics for operators can be read: `reported_metrics`"
    REQUESTS = "the life of a request: `lookup`, `admit`, `extend`, `checkpoint`, `finish`, `abort`"
    PINS = "a prompt can be pinned for longer than its requests run: `pin`, `unpin`"
    PREEMPTION = "a running request can be preempted: `preempt`, and `resume` admits it again"
    TABLES = "each component has a table of its own, not slots paired with those of FULL: `tables`"
    HOST = "a host tier"
    STORAGE = "a storage tier"
    DEADLINES = "a backend that does not answer within `StorageConfig.answer_timeout_s` is abandoned"
    MARKS = "nodes say what storage was given of them: `persisted` in the snapshot"
    EXTRA_CONFIG = "an extra configuration in JSON, TOML or YAML: `extra_config`"
    CONFIG_FILES = "a whole configuration in JSON, TOML or YAML: `read_config`, `config_table`"
    STEPPED = "transfers that finish when the test says so: `pending`, `advance`, `complete`, `fail`, `fail_waits`"
    HELD = "threads of transfers can be held: `hold_transfers`, `release_transfers`"
    LAYER_WAITS = "a reader can wait for a layer of a load: `wait_layer`"
    REQUEST_LAYERS = "a request can be computed layer by layer while it loads: `wait_request_layer`"
    STEPPED_STORAGE = "storage that answers when the test says so: `pending`, `advance`, `complete`, `advance_clock`"
    RANKS = "one cache on several ranks: `on_rank`"


METHODS: Mapping[Capability, tuple[str, ...]] = {
    Capability.VERBS: ("allocate", "free", "match", "insert", "lock", "unlock", "evict"),
    Capability.RESET: ("reset",),
    Capability.SWA: ("partners", "release_window"),
    Capability.MAMBA: ("allocate_state", "free_state", "fork_state"),
    Capability.EARLY_UNLOCK: ("unlock_window",),
    Capability.STATELESS_LOCKS: ("lock_without_state",),
    Capability.BYTES: ("layers", "slot_bytes", "write", "read"),
    Capability.CENSUS: ("slot_roots", "slot_counts"),
    Capability.SNAPSHOT: ("snapshot",),
    Capability.SIZES: ("sizes",),
    Capability.EVENTS: ("events",),
    Capability.HASHES: ("page_hashes",),
    Capability.COLLISIONS: ("colliding",),
    Capability.COUNTERS: ("counters",),
    Capability.METRICS: ("reported_metrics",),
    Capability.REQUESTS: ("lookup", "admit", "resume", "extend", "checkpoint", "finish", "abort"),
    Capability.PINS: ("pin", "unpin"),
    Capability.PREEMPTION: ("preempt",),
    Capability.TABLES: ("tables",),
    Capability.HOST: (
        *("evict_host", "lock_host", "unlock_host", "load_back", "load_phase", "claim", "abandon"),
        *("host_sizes", "read_host", "is_pinned", "layer_ready"),
    ),
    Capability.STORAGE: (
        *("prefetch", "check_prefetch", "abort_prefetch"),
        *("attach_storage", "detach_storage", "clear_storage", "storage_keys"),
    ),
    Capability.EXTRA_CONFIG: ("extra_config",),
    Capability.CONFIG_FILES: ("read_config", "config_table"),
    Capability.STEPPED: ("pending", "advance", "complete", "fail", "fail_waits"),
    Capability.HELD: ("hold_transfers", "release_transfers"),
    Capability.LAYER_WAITS: ("wait_layer",),
    Capability.REQUEST_LAYERS: ("wait_request_layer",),
    Capability.STEPPED_STORAGE: ("pending", "advance", "complete", "advance_clock"),
    Capability.RANKS: ("on_rank",),
}
"""The methods of each capability that has some. A cache of blocks has `block_snapshot` in the place of `snapshot`."""

WITH_VERBS = frozenset(
    {
        *("evict_host", "lock_host", "unlock_host", "load_back", "load_phase", "claim", "abandon", "layer_ready"),
        *("prefetch", "check_prefetch", "abort_prefetch", "attach_storage", "detach_storage", "clear_storage"),
    }
)
"""Methods of HOST and STORAGE that a cache without VERBS need not have."""


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A running request.

    `request`: an opaque handle for the later verbs. `table`: the FULL slots of the request, one for each token and for
    each of `reserved_tokens`, rounded up to whole pages; with TABLES those of `tables`, lookahead included. The first
    `cached_tokens` slots belong to the tree. `state`: the request's own MAMBA slot, which holds the state after the
    cached and copied tokens, or None without MAMBA. `loading`: a part of the cached prefix is still being loaded from
    the host; the request must wait, and `resume` tells when it may run. `keep_at`: with MAMBA, the lengths of the
    prompt at which later prompts need a state, in order; a scheduler computes up to each of them and calls
    `checkpoint`. None, as adapters give that do not know it, leaves the choice to the scheduler. `copied_tokens`: how
    many tokens after the cached ones the cache has copied from a cached page into the request's own slots, because the
    prompt shares a part of that page.
    """

    request: Handle
    table: Slots
    cached_tokens: int
    state: int | None
    loading: bool
    keep_at: tuple[int, ...] | None = None
    copied_tokens: int = 0


class _Verbs:
    """What all groups of verbs share."""

    def _lacks(self, verb: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} declares a capability that needs {verb}(), which it lacks")


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A transfer or a request to storage that was started and has not ended.

    `parts`: the number of operations merged into a transfer, each of which can fail; 1 for a storage request. `units`:
    what one `advance` does one of: the layers of the whole stack for a transfer, the batches of a storage request, each
    of at most 128 pages of a pool; 1 for a query. `units_done`: fewer than `units`.
    """

    ticket: Handle
    kind: TransferKind | StorageKind
    parts: int
    units: int
    units_done: int


class HostVerbs(_Verbs):
    """Backups and loads that the cache has decided on are started by `step`, which also applies the finished ones."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        """Free at least `tokens` of the component's host slots, or all that can be evicted."""
        self._lacks("evict_host")

    def lock_host(self, handle: Handle) -> Handle:
        """Lock the node and its host data of every component; returns the receipt."""
        self._lacks("lock_host")

    def unlock_host(self, receipt: Handle) -> None:
        """Release the lock of `lock_host`. Raises when it was released before, or is from another cache."""
        self._lacks("unlock_host")

    def load_back(self, handle: Handle, *, quota: int | None) -> LoadBack | None:
        """Load to the device the data that a reader of the prefix up to the node needs and that is only on the host.

        Returns None, with no effect, below the threshold, above the `quota` of FULL tokens, without enough memory, or
        when there is nothing to load. The path is locked until the ticket is claimed or abandoned. Raises for a removed
        node.
        """
        self._lacks("load_back")

    def load_phase(self, ticket: Handle) -> TransferPhase:
        """The phase of a load, as of the last `step`."""
        self._lacks("load_phase")

    def claim(self, ticket: Handle) -> Slots | None:
        """Finish a load that has ended: the tree's slots for what `load_back` loaded, or None when the load failed.

        The lock of the ticket is released: lock the node before. Raises when the load has not ended, or when the ticket
        was claimed or abandoned before.
        """
        self._lacks("claim")

    def abandon(self, ticket: Handle) -> None:
        """Give up a load: no caller waits for it. Raises when the ticket was claimed or abandoned before."""
        self._lacks("abandon")

    def host_sizes(self) -> Mapping[str, Sizes]:
        """The size counters of each component on the host."""
        self._lacks("host_sizes")

    def read_host(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        """The bytes at slots of the host pool, as `read` returns those of the device pool."""
        self._lacks("read_host")

    def is_pinned(self, pool: str) -> bool:
        """Whether CUDA has registered all host memory of the pool. Called only when the device is a GPU."""
        self._lacks("is_pinned")

    def layer_ready(self, ticket: Handle, pool: str, layer: int) -> bool:
        """Whether the target slots of a load can be read in one layer of one pool. `ticket`: from `load_back`."""
        self._lacks("layer_ready")

    def wait_layer(self, ticket: Handle, pool: str, layer: int) -> None:
        """Return when the target slots of a load can be read in one layer of one pool, or when the load has failed.

        The load was started by a `step`. A cache whose transfers are stepped moves what the reader waits for itself.
        """
        self._lacks("wait_layer")

    def hold_transfers(self) -> None:
        """From now on no thread begins to copy; a transfer that is started waits."""
        self._lacks("hold_transfers")

    def release_transfers(self) -> None:
        """Let the threads copy what was started. Any thread may call it, also while another verb runs."""
        self._lacks("release_transfers")


class StorageVerbs(_Verbs):
    """`step` sends requests to storage and applies the finished ones. Of these methods only `drain` blocks."""

    @classmethod
    def extra_config(cls, source: str) -> Mapping[str, Any]:
        """Read an extra configuration as the cache does: its own four keys, given or by default, and `options`.

        `options`: all other keys, which the backend receives.
        Raises an error that names the file, the key and the Python type of the wrong value.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs extra_config(), which it lacks")

    def prefetch(self, key: Key) -> Handle | None:
        """Start to prefetch a prompt's pages, those past the cached prefix, from storage to the host.

        Returns the ticket, or None when the prefetch is refused. `key`: the same that `match` gets at the admission.
        """
        self._lacks("prefetch")

    def check_prefetch(self, ticket: Handle) -> int | None:
        """The number of tokens that a prefetch loaded, or None while the stop policy lets the request wait.

        Ends the ticket, and stops the prefetch early where the policy says so. Raises when the ticket has ended before.
        """
        self._lacks("check_prefetch")

    def abort_prefetch(self, ticket: Handle) -> None:
        """Cancel a prefetch: it loads nothing, and no caller waits for it. Raises when the ticket has ended before."""
        self._lacks("abort_prefetch")

    def attach_storage(self) -> bool:
        """Open the configured backend after a detach; False, with no effect, when a backend is attached."""
        self._lacks("attach_storage")

    def detach_storage(self) -> bool:
        """Close the backend; False, with no effect, while requests are in flight or when none is attached."""
        self._lacks("detach_storage")

    def clear_storage(self) -> bool:
        """Remove the cache's objects from storage; False, with no effect, while requests are in flight."""
        self._lacks("clear_storage")

    def storage_keys(self, pool: str, key: Key) -> Sequence[str]:
        """The object key of each whole page in one pool (MAMBA: of the state after the page), with its scope.

        A page that has no entry of the pool, because its group ends later, is named by the key of its KV.
        """
        self._lacks("storage_keys")

    def advance_clock(self, seconds: float) -> None:
        """Advance the clock of the cache."""
        self._lacks("advance_clock")


class SteppedVerbs(_Verbs):
    """Transfers and requests to storage that move when the test says so, by the tickets of `pending`.

    Transfers do with STEPPED, requests to storage with STEPPED_STORAGE. Where their executor in the configuration is
    not stepped, they are not pending. What has ended is applied by the next `step`.
    """

    def pending(self) -> Sequence[Pending]:
        """The transfers and requests to storage that were started and have not ended, oldest first."""
        self._lacks("pending")

    def advance(self, ticket: Handle) -> None:
        """Do one more unit: copy a layer of a transfer, or let storage do a batch of a request.

        After the last unit it has ended. A request with a stop signal ends after this batch.
        """
        self._lacks("advance")

    def complete(self, ticket: Handle) -> None:
        """Do all remaining units."""
        self._lacks("complete")

    def fail(self, ticket: Handle, parts_done: int) -> None:
        """End a pending transfer after its first `parts_done` parts, fewer than it has; the other parts fail."""
        self._lacks("fail")

    def fail_waits(self, count: int) -> None:
        """Make the next `count` transfers fail that the cache itself waits for during an eviction."""
        self._lacks("fail_waits")


class RankVerbs:
    """Each rank has its own cache, in its own process or thread. All ranks serve the same requests."""

    @classmethod
    def on_rank(cls: type[Adapter], config: CacheConfig, world: RankWorld) -> Adapter:  # noqa: PYI019 - 3.10 has no Self
        """Open an empty cache on one rank; all ranks call this at the same time.

        `config`: with the topology of `world`. `world`: gives the process groups, or records the calls to
        torch.distributed. Raises ConfigurationError, on every rank, when the configurations of the ranks differ.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs on_rank(), which it lacks")


class CacheAdapter(HostVerbs, StorageVerbs, SteppedVerbs, RankVerbs, ABC):
    """A cache under test. One instance is one cache, opened with one configuration. Lengths are in tokens.

    `interface`: the INTERFACE_VERSION that the adapter was written for; an adapter that states none was written for 1.
    `profile`: the design of the cache, "tree", "blocks" or "offload". The contract says which clauses do not apply to
    a design.
    `departures`: ids of clauses that the cache replaces, by design, with a rule of its own. The driver does not check
    the laws of these clauses after each verb, so that other defects stay visible. The tests of these clauses still run,
    and are listed as known failures.
    `slot_axes`: by the pattern of a path of the census, the axis that counts slots; it is the first of other tensors.
    `not_restored`: by the pattern of a path of the census, the first tier from which the tensor does not come back.
    `recencies`: which states of MAMBA a use refreshes, as far as a configuration may choose; where it names another
    recency, the first of them.
    `state_options`: which of `mamba_checkpoint_interval` and `mamba_max_states_per_path` of a configuration it obeys.
    """

    interface: ClassVar[int] = 1
    profile: ClassVar[str] = "tree"
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    departures: frozenset[str] = frozenset()
    slot_axes: ClassVar[Mapping[str, int]] = MappingProxyType({})
    not_restored: ClassVar[Mapping[str, Tier]] = MappingProxyType({})
    recencies: ClassVar[tuple[Recency, ...]] = (Recency.PATH,)
    state_options: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def __init__(self, config: CacheConfig) -> None:
        """Open an empty cache. Raises ConfigurationError when the cache does not support the configuration."""

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig] | None:
        """The configurations to run the suites with, or None for the standard configurations."""
        return None

    @classmethod
    def recency_of(cls, config: CacheConfig) -> Recency:
        """Which states of MAMBA a use refreshes with this configuration."""
        return config.recency if config.recency in cls.recencies else cls.recencies[0]

    @classmethod
    def delayed(cls) -> type[CacheAdapter]:
        """The class that the tests open: one whose transfers are delayed at random, to vary when they finish."""
        return cls

    @classmethod
    def measured(cls, metrics: Any) -> type[CacheAdapter] | None:  # noqa: ARG003 - see ARG002
        """The class whose caches a `hicache.CacheMetrics` exposes; None: what the cache does is not exposed."""
        return None

    @classmethod
    def on_model(cls, order: int) -> type[CacheAdapter] | None:  # noqa: ARG003 - see ARG002
        """The class whose CUDA devices are those of `hicache.testing.cuda`; None: it has none.

        `order`: the seed of the order in which streams go on.
        """
        return None

    def close(self) -> None:
        """Stop all transfers and release all external resources. May be called twice."""

    # Scheduler.

    def allocate(self, tokens: int) -> Slots | None:
        """Allocate `tokens` slots, a multiple of page_size: whole aligned pages in order, or None when short.

        Evicts as many slots as are missing, and no more. With SWA each slot gets an SWA partner.
        """
        self._lacks("allocate")

    def free(self, slots: Slots) -> None:
        """Free slots that the caller holds, and their SWA partners. Raises for any other slot."""
        self._lacks("free")

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        """Find the longest cached prefix. `chunked`: the same request matches again and must not be counted again."""
        self._lacks("match")

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        """Give the slots of the key's whole pages to the tree, which keeps or frees them.

        `slots`: FULL slots, [tokens rounded down to whole pages]; the first `shared` belong to the tree already.
        `window_start`: the request has no SWA data before this token. `state`: the MAMBA slot that holds the state
        after the last whole page, or None; the caller keeps it when the result has `state_adopted` False.
        """
        self._lacks("insert")

    def lock(self, handle: Handle) -> Handle:
        """Lock the path from the root to a node; returns the receipt. Raises when the handle's node was removed.

        With DEMOTED_LOCKS the lock of a node that is on the host alone protects what is there: the host data of the
        node, and the part of its path that is on the device. Other caches may raise.
        """
        self._lacks("lock")

    def lock_without_state(self, handle: Handle) -> Handle:
        """Lock as `lock` does, except for the MAMBA state: the caller has a copy of it. `unlock` releases the lock."""
        self._lacks("lock_without_state")

    def unlock_window(self, receipt: Handle) -> Handle:
        """Release the SWA part of a lock early; FULL stays locked. Returns the receipt of the rest, for `unlock`.

        The receipt that is returned takes the place of this one, and may be the same object. The MAMBA state may be
        released too. Of a lock whose window was released before nothing changes. Raises as `unlock`.
        """
        self._lacks("unlock_window")

    def unlock(self, receipt: Handle) -> None:
        """Release the lock of this receipt. Raises when it was released before, or is from another cache."""
        self._lacks("unlock")

    def evict(self, component: str, tokens: int) -> EvictResult:
        """Free at least `tokens` of the component's slots, or all that can be evicted."""
        self._lacks("evict")

    def reset(self) -> None:
        """Remove every node from the tree, locked or not. Slots that the caller holds stay allocated."""
        self._lacks("reset")

    def step(self) -> None:
        """Apply the results of finished transfers."""

    def drain(self) -> None:
        """Wait for all transfers to finish and apply their results; afterwards none is in flight."""
        self.step()

    # SWA

    def partners(self, slots: Slots) -> Slots:
        """The SWA slot of each FULL slot, 0 where it has none."""
        self._lacks("partners")

    def release_window(self, slots: Slots) -> None:
        """Free the SWA partners of FULL slots that the caller holds; slots without a partner are skipped."""
        self._lacks("release_window")

    # MAMBA

    def allocate_state(self) -> int | None:
        """Allocate a slot for one state, evicting if needed; None when there is none."""
        self._lacks("allocate_state")

    def free_state(self, slot: int) -> None:
        """Free a state slot that the caller holds."""
        self._lacks("free_state")

    def fork_state(self, handle: Handle) -> int | None:
        """Copy the node's state to a new slot that the caller owns; None when no slot is available."""
        self._lacks("fork_state")

    # Model runner: direct access to the pools, so that checks of the bytes do not rely on the cache.

    def layers(self, pool: str) -> int:
        """The number of layers of the pool; 0 when there is no such pool."""
        self._lacks("layers")

    def slot_bytes(self, pool: str) -> int:
        """The bytes of one slot in one layer."""
        self._lacks("slot_bytes")

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        """Write bytes to slots of the pool (for SWA: to the partners, not to the FULL slots).

        A pool that has one entry for several tokens is addressed by entry: slot // tokens_per_entry. One for several
        pages has a row for each page, slot // page_size, and the entry in that of the last one.
        """
        self._lacks("write")

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        """Read the bytes at slots of the pool, which are those of `write`."""
        self._lacks("read")

    def slot_roots(self) -> Mapping[str, object]:
        """By name, the objects below which all tensors on the device lie that the model reads by slot.

        The kit walks attributes, mappings, lists and tuples, and overwrites what it finds: no allocator, no index.
        """
        self._lacks("slot_roots")

    def slot_counts(self) -> Mapping[str, int]:
        """By component, the length of a tensor with a row for each slot: the capacity with the padding slots."""
        self._lacks("slot_counts")

    # Requests.

    def lookup(self, key: Key) -> int:
        """How many tokens of a prompt are cached now, for a request that may use all. It takes and frees nothing.

        An admission may use less: most engines compute at least the last token. Whether a look-up counts as a use is
        left open.
        """
        self._lacks("lookup")

    def reserved_tokens(self, tokens: int) -> int:
        """For how many tokens of output an admission of a prompt of so many tokens takes slots.

        Its table has these slots from the admission on, and an extension uses them first.
        """
        return 0

    def admit(self, key: Key) -> Admission | None:
        """Match, load back, lock, and allocate the rest and a state; None, with no effect, when it does not fit."""
        self._lacks("admit")

    def resume(self, request: Handle) -> Admission | None:
        """The admission of a request that was loading, or None while it loads. After a failed load less is cached.

        After a failed load it is None also while there are no slots for what did not come. A prompt that does not fit
        an empty cache may never get them: its request can only be aborted.
        """
        self._lacks("resume")

    def wait_request_layer(self, request: Handle, pool: str, layer: int) -> bool:
        """Return when a request that waits for a load can read one layer of its cached prefix in its table and state.

        False where it cannot: the load was not started by a `step`, has failed, or has to be waited for as a whole. A
        cache whose transfers are stepped moves what the request waits for itself.
        """
        self._lacks("wait_request_layer")

    def extend(self, request: Handle, tokens: Tokens) -> Slots | None:
        """Append tokens; returns the longer table, or None, with no effect, when it does not fit."""
        self._lacks("extend")

    def checkpoint(self, request: Handle, computed_tokens: int) -> Slots:
        """Cache a computed chunk, match again and move the lock. Returns the table, which shares more slots now."""
        self._lacks("checkpoint")

    def finish(self, request: Handle) -> None:
        """Cache the computed tokens and release everything that the request holds."""
        self._lacks("finish")

    def abort(self, request: Handle) -> None:
        """Release everything that the request holds. A cache that keeps what was computed departs from REQ-6."""
        self._lacks("abort")

    def pin(self, key: Key) -> Handle:
        """Keep what is cached of a prompt now, whether a request reads it or not; returns the receipt."""
        self._lacks("pin")

    def unpin(self, receipt: Handle) -> None:
        """Remove a pin: what it kept can be evicted, unless something else keeps it."""
        self._lacks("unpin")

    def preempt(self, request: Handle) -> None:
        """Release everything that a running request holds; what it computed may stay cached.

        The request keeps its tokens. `resume` admits it again as `admit` does a prompt of all of them: None, with no
        effect, when it does not fit. Until then it can be aborted.
        """
        self._lacks("preempt")

    def tables(self, request: Handle) -> Mapping[str, Slots]:
        """The slots of a running request now, by component. Slot = block * slots of a block + offset in the block.

        FULL and SWA: one slot for each token and each lookahead slot in order, rounded up to whole blocks; 0 where the
        request has none any more. MAMBA: the states that the request keeps in use, the last one its own, which holds
        the state after its computed tokens.
        """
        self._lacks("tables")

    # Read-only.

    def snapshot(self) -> Snapshot:
        """The state of the whole cache now, in values that the caller owns. Only called with the profile tree."""
        self._lacks("snapshot")

    def block_snapshot(self) -> BlockSnapshot:
        """The state of a cache with the profile blocks or offload, in values that the caller owns. Needs TABLES.

        With offload there are no cached blocks, and `offload` is what the cache keeps beside the device.
        """
        self._lacks("block_snapshot")

    def sizes(self) -> Mapping[str, Sizes]:
        """The size counters of each component."""
        self._lacks("sizes")

    def events(self) -> Sequence[Event]:
        """All events since the cache was opened."""
        self._lacks("events")

    @classmethod
    def colliding(cls) -> AbstractContextManager[None]:
        """While this is entered, every hash by which the cache tells pages apart has one value.

        A cache that compares tokens declares COLLISIONS, and passes SEC-2 by that. A cache that trusts a cryptographic
        hash by design does not declare it, or departs from SEC-2.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs colliding(), which it lacks")

    @classmethod
    def read_config(cls, source: str) -> CacheConfig:
        """Read a whole configuration: a JSON string, or @file in JSON, TOML or YAML.

        Raises an error that names an unknown key and the known one that is most like it, or the key of a wrong value
        and the value.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs read_config(), which it lacks")

    @classmethod
    def config_table(cls, config: CacheConfig) -> Mapping[str, Any]:
        """What a file says for a configuration: tables, lists, numbers, bools and text, as JSON, TOML and YAML have.

        Any table in it with the name `options` is a storage backend's own, and has any keys.
        """
        raise NotImplementedError(f"{cls.__name__} declares a capability that needs config_table(), which it lacks")

    def page_hashes(self, key: Key) -> Sequence[str]:
        """The hash of each whole page of a key, as hex."""
        self._lacks("page_hashes")

    def counters(self) -> Mapping[str, int]:
        """Totals of the work done since the cache was opened. Unlike times they are the same on every machine.

        `nodes_visited`: by match and insert. `bytes_compared`: of keys. `pages_hashed`: by the hash chain.
        `nodes_locked`: lock counts that lock and unlock changed, over all components. `candidates_popped`: nodes that
        evictions examined. `states_copied`: by copy-on-write. With a host tier: `bytes_backed_up` and `bytes_loaded`,
        by transfers that succeeded, over all layers and pools; `backups_refused`: for lack of host space.
        """
        self._lacks("counters")

    def reported_metrics(self) -> Mapping[str, int]:
        """Totals that the cache reports to its operators, since it was opened, as a scrape would read them.

        `match_device`, `match_host`, `match_none`: tokens in whole pages of matched keys, by the tier on which they
        were found; a repeated look-up (`chunked`) is not counted. `backup_bytes`, `load_bytes`: of transfers that
        succeeded, over all layers and pools. With MISSES, `refused_swa` and `refused_mamba`: the `tokens_refused` of
        these components that the cache has.
        """
        self._lacks("reported_metrics")

    def sanity_check(self) -> None:
        """The cache's own consistency check, if it has one; raises on an error. Called after the laws of the kit."""
