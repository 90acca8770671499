"""SglangStorageVerbs: SGLang's storage tier under the suites, over a backend of this project.

SGLang calls storage in threads of its own. Each verb returns when these threads are idle or wait for storage, so that
a test is reproducible. With stepped storage each of their calls waits until the test releases it.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hicache.config import ExecutorKind, HostConfig, StorageConfig, Topology
from hicache.engines.sglang.host import Receipt, SglangHostVerbs
from hicache.engines.sglang.imports import import_from
from hicache.engines.sglang.pages import backend_options
from hicache.engines.sglang.pools import FULL, NAMES, SglangHostPools
from hicache.engines.sglang.workers import Gate, StorageThreads, WorkQueue
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.storage.base import BATCH_PAGES
from hicache.testing.adapter import Pending, SteppedVerbs, StorageVerbs
from hicache.testing.snapshot import FetchView, StorageView
from hicache.types import COMPONENT_POOL, Handle, Key, Slots, StorageKind

CONTROLLER = "sglang.srt.managers.cache_controller"

HYBRID_CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"

OWN_KEYS = (
    *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
    "hicache_storage_pass_prefix_keys",
)
"""The keys of an extra configuration that SGLang itself reads, in the order in which it returns them."""

COMPONENT = {pool: component for component, pool in NAMES.items()}
"""The component of each of SGLang's host pools, by the pool's name."""

Held: TypeAlias = "list[tuple[str, torch.Tensor]]"
"""Names of SGLang's host pools, with slots in them."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchTicket:
    """A prefetch that a caller waits for: its request, as SGLang names it."""

    request: Handle


class SglangTime:
    """A clock that a test advances, used by SGLang while a request waits for storage."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        return self.now_s


class SglangStorageVerbs(SglangHostVerbs, StorageVerbs, SteppedVerbs):
    """The verbs of storage, over SGLang's `cache`. Without storage they only drive the host tier.

    `is_like_builtin`: the storage is like SGLang's own backends, and not as HicacheStorage is; see GatedPages.
    """

    is_like_builtin: ClassVar[bool] = True

    # Differences between the releases.

    @abstractmethod
    def ask_match(self, key: Key) -> Any:
        """SGLang's match of a key."""

    @abstractmethod
    def key_of(self, key: Key) -> Any:
        """A key in SGLang's type."""

    @abstractmethod
    def prefix_slots(self, found: Any) -> Slots:
        """The FULL slots up to the device anchor of a match."""

    @abstractmethod
    def clocks(self) -> Sequence[str]:
        """The modules of SGLang that measure how long a prefetch takes."""

    @abstractmethod
    def set_ranks(self, ranks: Topology) -> None:
        """Tell SGLang the rank of this cache and the number of ranks."""

    @abstractmethod
    def request_named(self, name: str) -> Handle:
        """SGLang's name for a request."""

    @abstractmethod
    def begin_prefetch(self, request: Handle, anchor: Handle, key: Key, start: int) -> None:
        """Start SGLang's prefetch of a key from element `start` on, past its anchor on the host."""

    @abstractmethod
    def can_anchor(self, anchor: Handle) -> bool:
        """Whether SGLang's scheduler prefetches past a node."""

    @abstractmethod
    def hashes_of(self, key: Any) -> Sequence[str]:
        """The hash of each page of a key of SGLang, which has whole pages."""

    @abstractmethod
    def transfers_of_thread(self, operation: Any) -> Iterable[Any]:
        """The transfers in other pools that an operation without a waiting request has not freed yet."""

    # Open and close.

    def open_tiers(self, host: HostConfig, params: Any) -> None:
        """Add a host tier to the cache, and a storage tier if it is configured.

        Raises ConfigurationError for a backend that cannot be opened.
        """
        if self.config.storage is None:
            self.open_host(host, params)
            return
        self._tier: StorageConfig = self.config.storage
        self._started = 0
        self._batches_done: Counter[Handle] = Counter()
        self.prefetches: list[PrefetchTicket] = []
        self.clock = SglangTime()
        for module in self.clocks():
            import_from(module).time = self.clock
        import_from(CONTROLLER).Queue = WorkQueue
        self.set_ranks(self.config.topology)
        try:
            self.open_host(host, params)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        self.adopt_backend()

    def adopt_backend(self) -> None:
        """Add the gate to the attached backend, and set the limit that SGLang would derive from its pools."""
        self.threads = StorageThreads(self._controller, Gate(is_open=self._is_threaded))
        self._controller.storage_backend.gate = self.threads.gate
        self._controller.storage_backend.is_like_builtin = self.is_like_builtin
        self._controller.prefetch_capacity_limit = self._tier.limit_tokens
        self._pages = self._controller.storage_backend

    def close(self) -> None:
        if self.config.storage is not None and self._controller.storage_backend is not None:
            self.release_all()
            self._controller.detach_storage_backend()

    def reset_tree(self) -> None:
        """SGLang's own reset, which waits for its threads."""
        if self.config.storage is not None:
            self.release_all()
        self.cache.reset()
        if self.config.storage is not None:
            self.threads.gate.set_open(is_open=self._is_threaded)

    def release_all(self) -> None:
        """Let storage answer all calls, as SGLang's threads end only then."""
        self.threads.gate.set_open(is_open=True)
        self.threads.wait_until_idle()

    # Verbs.

    @classmethod
    def extra_config(cls, source: str) -> Mapping[str, Any]:
        (controller,) = import_from(HYBRID_CONTROLLER, "HybridCacheController")
        options, *own = controller.parse_storage_backend_extra_config(source)
        return {**dict(zip(OWN_KEYS, own, strict=True)), "options": options}

    def step(self) -> None:
        super().step()
        if self.config.storage is not None:
            self.threads.wait_until_idle()

    def drain(self) -> None:
        self.step()
        if self.config.storage is None:
            return
        self.release_all()
        before: tuple[int, ...] = ()
        while any(left := self.threads.answers()) and left != before:
            before = left
            self.step()
        self.threads.gate.set_open(is_open=self._is_threaded)

    def prefetch(self, key: Key) -> PrefetchTicket | None:
        found = self.ask_match(key)
        if not self.can_anchor(found.last_host_node):
            return None
        self._started += 1
        request = self.request_named(f"prefetch-{self._started}")
        start = len(self.prefix_slots(found)) + found.host_hit_length
        self.begin_prefetch(request, found.last_host_node, key, start)
        self.threads.wait_until_idle()
        if request not in self.cache.ongoing_prefetch:
            return None
        self.prefetches.append(PrefetchTicket(request))
        return self.prefetches[-1]

    def check_prefetch(self, ticket: PrefetchTicket) -> int | None:
        self._require_open(ticket)
        if not self.cache.check_prefetch_progress(ticket.request):
            return None
        self.prefetches.remove(ticket)
        return int(self.cache.pop_prefetch_loaded_tokens(ticket.request))

    def abort_prefetch(self, ticket: PrefetchTicket) -> None:
        self._require_open(ticket)
        self.prefetches.remove(ticket)
        self.cache.release_aborted_request(ticket.request)

    def attach_storage(self) -> bool:
        if self._is_busy():
            return False
        is_done, _ = self.cache.attach_storage_backend("dynamic", backend_options(self._tier), self._tier.model)
        if is_done:
            self.adopt_backend()
        return bool(is_done)

    def detach_storage(self) -> bool:
        # As in SGLang's scheduler: not while requests wait, or anything is in flight.
        return not self._is_busy() and bool(self.cache.detach_storage_backend()[0])

    def clear_storage(self) -> bool:
        return bool(self.cache.clear_storage_backend())

    def storage_keys(self, pool: str, key: Key) -> Sequence[str]:
        component = next(name for name, own in COMPONENT_POOL.items() if own == pool)
        whole, _ = self.key_of(key).maybe_to_bigram_view(self.config.bigram)
        hashes = self.hashes_of(whole.page_aligned(self.config.page_size))
        return [f"{self._pages.scope}/{name}" for name in self._pages.names(NAMES[component], hashes)]

    def pending(self) -> Sequence[Pending]:
        # Copies between device and host are synchronous.
        if self.config.storage is None:
            return ()
        self.threads.wait_until_idle()
        return sorted((one for _, one in self._asked()), key=lambda one: one.ticket[1])

    def advance(self, ticket: Handle) -> None:
        thread = next(thread for thread, one in self._asked() if one.ticket == ticket)
        self._batches_done[ticket] += 1
        self.threads.gate.release(thread)
        self.threads.wait_until_idle()

    def complete(self, ticket: Handle) -> None:
        while any(one.ticket == ticket for one in self.pending()):
            self.advance(ticket)

    def advance_clock(self, seconds: float) -> None:
        self.clock.now_s += seconds

    # Snapshot.

    def storage_view(self) -> StorageView:
        """The slots that prefetches hold. SGLang does not mark nodes as stored."""
        self.threads.wait_until_idle()
        handled = {id(one): one for one in self.threads.operations()}
        held = []
        for _, _, _, operation, _, transfers in self.cache.ongoing_prefetch.values():
            several = [one for each in transfers.values() for one in each]
            is_worked_on = handled.pop(id(operation), None) is not None
            held.append(held_for_caller(operation, several, is_worked_on=is_worked_on))
        held += [held_by_thread(one, self.transfers_of_thread(one)) for one in handled.values()]
        held.append(held_until_next_step(self._controller))
        views = [view_of(one, self.host_pools) for one in held]
        return StorageView(None, tuple(view for view in views if view is not None))

    def own_host_receipts(self) -> Iterator[Receipt]:
        if self.config.storage is None:
            return
        for anchor, _, _, _, params, _ in self.cache.ongoing_prefetch.values():
            yield Receipt(anchor, params)
        for node, params in self.cache.ongoing_backup.values():
            yield Receipt(node, params)

    def reset_host(self) -> None:
        super().reset_host()
        if self.config.storage is not None:
            self.prefetches.clear()

    @property
    def _is_threaded(self) -> bool:
        return self._tier.executor is ExecutorKind.THREADED

    @property
    def _controller(self) -> Any:
        return self.cache.cache_controller

    def _asked(self) -> Iterator[tuple[threading.Thread, Pending]]:
        for thread, kind, operation in self.threads.waiting_at_gate():
            ticket = (kind, operation.id)
            others = [one for one in operation.pool_transfers or () if one.indices_from_pool is None]
            batches = 1 if kind is StorageKind.QUERY else -(-len(operation.hash_value) // BATCH_PAGES) + len(others)
            yield thread, Pending(ticket, kind, 1, batches, self._batches_done[ticket])

    def _is_busy(self) -> bool:
        in_flight = [self.cache.ongoing_write_through, self.cache.ongoing_load_back]
        if self.cache.enable_storage:
            in_flight += [self.cache.ongoing_prefetch, self.cache.ongoing_backup]
        return bool(self.prefetches or self.tickets or any(in_flight))

    def _require_open(self, ticket: PrefetchTicket) -> None:
        if ticket not in self.prefetches:
            raise ValueError(f"the prefetch {ticket.request} was checked to its end or aborted before")


def held_for_caller(operation: Any, transfers: Iterable[Any], *, is_worked_on: bool) -> Held:
    """The slots of an operation that a request waits for. `transfers`: those of its other pools.

    Slots that are not completed belong to the thread that works on the operation, which frees them at its end.
    """
    indices = operation.host_indices
    if indices is None:
        return held_by(transfers)
    end = len(indices) if is_worked_on else operation.completed_tokens
    return [(NAMES[FULL], indices[:end]), *held_by(transfers)]


def held_by_thread(operation: Any, transfers: Iterable[Any]) -> Held:
    """The slots that a thread holds of an operation without a waiting request. `transfers`: it frees them too."""
    indices = operation.host_indices
    if indices is None:
        return []
    return [(NAMES[FULL], indices[operation.completed_tokens :]), *held_by(transfers)]


def held_by(transfers: Iterable[Any]) -> Held:
    """The host slots of transfers that have their own."""
    own = [one for one in transfers if one.host_indices is not None and one.indices_from_pool is None]
    return [(one.name.value, one.host_indices) for one in own]


def held_until_next_step(controller: Any) -> Held:
    """The slots that were given back and will be freed by the next step."""
    extra = {name.value: several for name, several in controller.extra_host_mem_release_queues.items()}
    queues = {NAMES[FULL]: controller.host_mem_release_queue, **extra}
    return [(name, slots) for name, several in queues.items() for slots in several.queue]


def view_of(held: Held, pools: SglangHostPools) -> FetchView | None:
    """The view of these slots for a snapshot, or None when there are none."""
    parts: dict[str, list[Slots]] = {}
    for name, slots in held:
        if len(slots):
            parts.setdefault(COMPONENT[name], []).append(pools.shown(COMPONENT[name], slots))
    host: Mapping[str, Slots] = {component: np.concatenate(several) for component, several in parts.items()}
    return FetchView(host) if host else None
