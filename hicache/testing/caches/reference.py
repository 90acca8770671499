"""ReferenceAdapter: the reference under the suites, and its snapshot; ModelledReference: on a model of CUDA devices."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, fields
from functools import cache, lru_cache, wraps
from inspect import getattr_static
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

import numpy as np

from hicache.cache import UnifiedRadixCache, stats_of
from hicache.clock import VirtualClock
from hicache.components.component_tree import LockReceipt
from hicache.config import CacheConfig, ExecutorKind, Recency, read_extra_config
from hicache.config_mapping import config_to_mapping, read_config
from hicache.opening import HostTier
from hicache.optional_torch import torch
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.parallel.mesh import world_rank
from hicache.parallel.torch_group import open_groups
from hicache.pools.allocator import PageAllocator
from hicache.pools.buffers import PoolBuffers
from hicache.prometheus import METRICS, CacheMetrics
from hicache.request import Request, RequestManager
from hicache.runtime import Runtime, open_copies
from hicache.stacks import layer_order
from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes, Pending
from hicache.testing.cuda.model import CudaModel, Items
from hicache.testing.ranks.world import RankWorld
from hicache.testing.snapshot import (
    FetchView,
    HostNodeView,
    HostView,
    NodeView,
    PoolView,
    Snapshot,
    StorageView,
    TransferView,
)
from hicache.tiers.load_back import LoadBackTicket
from hicache.tiers.prefetch import Prefetch
from hicache.tiers.storage_tier import StorageTier
from hicache.transfer.executors import Executor, FailingWaits, StepExecutor, ThreadExecutor
from hicache.transfer.job import (
    CopyJob,
    CopyWorker,
    JobT,
    LayeredCopier,
    PageBatch,
    Progress,
    StorageJob,
    StoreBatch,
    Worker,
)
from hicache.tree.invariants import check_invariants
from hicache.tree.node import FULL, ComponentData, Node
from hicache.types import (
    NO_SLOTS,
    Component,
    Event,
    EvictResult,
    InsertResult,
    Key,
    LoadBack,
    MatchResult,
    Pool,
    Sizes,
    Slots,
    StorageKind,
    Tier,
    Tokens,
    TransferKind,
    TransferPhase,
)

REPORTED = {
    "match_device": ("hicache_match_tokens", "device"),
    "match_host": ("hicache_match_tokens", "host"),
    "match_none": ("hicache_match_tokens", "none"),
    "refused_swa": ("hicache_refused_tokens", "swa"),
    "refused_mamba": ("hicache_refused_tokens", "mamba"),
    "backup_bytes": ("hicache_bytes", "backup"),
    "load_bytes": ("hicache_bytes", "load"),
}
"""The sample of `hicache.prometheus` behind each name of `reported_metrics`."""

MAX_PAUSE_S = 0.001
"""Of a run by a thread, where tests are to meet it at every moment."""

Counts = defaultdict[int, dict[str, int]]
"""Locks by component of some nodes, by the nodes' identity."""

Adapter = TypeVar("Adapter", bound="ReferenceAdapter")


class ReferenceAdapter(CacheAdapter):
    """The reference cache, which has every capability of a tree: three tiers, on one rank and on several.

    `max_pause_s`: the longest that a thread is delayed before each run, at random. `metrics`: what exposes its caches.
    `clock`: the time of the cache.
    """

    interface = 2
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        *(Capability.TABLES, Capability.PARTIAL_HITS, Capability.PREEMPTION, Capability.PINS),
        Capability.MEDIA,
    }
    recencies: ClassVar[tuple[Recency, ...]] = tuple(Recency)
    state_options: ClassVar[frozenset[str]] = frozenset({"mamba_checkpoint_interval", "mamba_max_states_per_path"})
    max_pause_s: ClassVar[float] = 0.0
    metrics: ClassVar[CacheMetrics | None] = None

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self.clock = VirtualClock()
        self._config = config
        self._chance = random.Random(0)
        self._failing = FailingWaits()
        self._may_copy = threading.Event()
        self._may_copy.set()
        self._copies: dict[TransferKind, Executor[CopyJob]] = {}
        self._storage_jobs: dict[str, Executor[StorageJob]] = {}
        self._opened_groups = ExitStack()
        self.cache = self._open_cache(Agreement(groups or {}))
        self._requests = RequestManager(self.cache)

    @classmethod
    def on_rank(cls: type[Adapter], config: CacheConfig, world: RankWorld) -> Adapter:  # noqa: PYI019 - 3.10 has no Self
        with ExitStack() as opened:

            def own_groups() -> Mapping[str, Group]:
                groups = open_groups(config.topology, world.store, world.device, world.timeout_s)
                return opened.enter_context(groups)

            adapter = cls(config, world.groups(own_groups))
            adapter._opened_groups = opened.pop_all()
        return adapter

    @classmethod
    def delayed(cls) -> type[CacheAdapter]:
        # Another process finds it by its module and name, without the delays.
        named = {"__module__": cls.__module__, "max_pause_s": MAX_PAUSE_S}
        delayed: type[CacheAdapter] = type(cls.__name__, (cls,), named)
        return delayed

    @classmethod
    def measured(cls, metrics: Any) -> type[CacheAdapter]:
        measured: type[CacheAdapter] = type(cls.__name__, (cls,), {"__module__": cls.__module__, "metrics": metrics})
        return measured

    @classmethod
    def on_model(cls, order: int) -> type[CacheAdapter] | None:
        return ModelledReference.on_model(order)

    @classmethod
    def extra_config(cls, source: str) -> Mapping[str, Any]:
        return asdict(read_extra_config(source))

    @classmethod
    def read_config(cls, source: str) -> CacheConfig:
        return read_config(source)

    @classmethod
    def config_table(cls, config: CacheConfig) -> Mapping[str, Any]:
        return config_to_mapping(config)

    # Opening.

    def _open_cache(self, agreement: Agreement) -> UnifiedRadixCache:
        runtime = Runtime(self._open_copies, self._open_storage, self._open_backend, self.clock)
        return agreement.together(
            lambda: UnifiedRadixCache.open(self._config, runtime, agreement, metrics=self.metrics),
            UnifiedRadixCache.close,
            "open",
        )

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        host = self._config.host
        assert host is not None, "copies are made by a cache with a host tier"
        if host.executor is ExecutorKind.STREAMS:
            self._copies[kind] = open_copies(host.executor, kind, copier)
        else:
            self._copies[kind] = self._opened(host.executor, f"hicache-{kind.value}", CopyWorker(copier), is_copy=True)
        return self._copies[kind]

    def _open_storage(self, name: str, worker: Worker[StorageJob]) -> Executor[StorageJob]:
        storage = self._config.storage
        assert storage is not None, "storage is asked by a cache with a storage tier"
        self._storage_jobs[name] = self._opened(storage.executor, f"hicache-storage-{name}", worker, is_copy=False)
        return self._storage_jobs[name]

    def _opened(self, kind: ExecutorKind, name: str, worker: Worker[JobT], *, is_copy: bool) -> Executor[JobT]:
        if kind is ExecutorKind.STEPPED:
            return StepExecutor(worker, self._failing if is_copy else None)
        if is_copy or self._config.storage is None:
            return ThreadExecutor(name, worker.rest, self._held)
        pause = self._pause if self.max_pause_s else None
        return ThreadExecutor(name, worker.step, pause, self._config.storage.answer_timeout_s, self.clock)

    def _open_backend(self, scope: str) -> StorageBackend:
        storage = self._config.storage
        assert storage is not None, "a backend is opened by a cache with a storage tier"
        return open_backend(storage.backend, scope, storage.options)

    def _pause(self) -> None:
        time.sleep(self._chance.uniform(0, self.max_pause_s))

    def _held(self) -> None:
        self._may_copy.wait()
        if self.max_pause_s:
            self._pause()

    # The device tier.

    def allocate(self, tokens: int) -> Slots | None:
        return self.cache.allocate(tokens)

    def free(self, slots: Slots) -> None:
        self.cache.free(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        return self.cache.match(self.cache.key(key.tokens, key.namespace), chunked)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        # The reference sees what is shared, and what lost its SWA data, in the slots themselves.
        return self.cache.insert(self.cache.key(key.tokens, key.namespace), slots, state, priority)

    def lock(self, handle: Node) -> LockReceipt:
        return self.cache.lock(handle)

    def unlock(self, receipt: LockReceipt) -> None:
        self.cache.unlock(receipt)

    def lock_without_state(self, handle: Node) -> LockReceipt:
        return self.cache.lock(handle, with_state=False)

    def unlock_window(self, receipt: LockReceipt) -> LockReceipt:
        return self.cache.unlock_window(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        return self.cache.evict(component, tokens)

    def reset(self) -> None:
        self.cache.reset()

    def partners(self, slots: Slots) -> Slots:
        page = self.cache.config.page_size
        partners = self.cache.pools.partners(slots // page)
        return np.where(partners == 0, 0, partners * page + slots % page)

    def release_window(self, slots: Slots) -> None:
        self.cache.release_window(slots)

    def allocate_state(self) -> int | None:
        return self.cache.allocate_state()

    def free_state(self, slot: int) -> None:
        self.cache.free_state(slot)

    def fork_state(self, handle: Node) -> int | None:
        return self.cache.fork_state(handle)

    def layers(self, pool: str) -> int:
        buffers = self.cache.pools.buffers
        return buffers[pool].spec.layers if pool in buffers else 0

    def slot_bytes(self, pool: str) -> int:
        return self.cache.pools.buffers[pool].spec.slot_bytes

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.cache.pools.buffers[pool].write(slots, layer, data)

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        return self.cache.pools.buffers[pool].read(slots, layer)

    def slot_roots(self) -> Mapping[str, object]:
        return {"pools": self.cache.pools.buffers}

    def slot_counts(self) -> Mapping[str, int]:
        pools = self.cache.pools
        sizes = {name: 1 if name == Component.MAMBA else pools.page_size for name in self.cache.config.components}
        return {name: (pools.capacity_pages(name) + 1) * size for name, size in sizes.items()}

    # Requests.

    def lookup(self, key: Key) -> int:
        # Beyond the device anchor FULL may be on the device, where another component is on the host alone.
        found: MatchResult = self.match(key, chunked=True)
        best: Node = found.best_match
        return best.end * self.cache.config.page_size

    def admit(self, key: Key) -> Admission | None:
        request = self._requests.admit(key.tokens, key.namespace)
        return None if request is None else _admission(request)

    def resume(self, request: Request) -> Admission | None:
        return _admission(request) if self._requests.resume(request) else None

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return request.table.copy() if self._requests.extend(request, tokens) else None

    def wait_request_layer(self, request: Request, pool: str, layer: int) -> bool:
        return self._requests.wait_layer(request, self.stack_layer(pool, layer))

    def checkpoint(self, request: Request, computed_tokens: int) -> Slots:
        self._requests.checkpoint(request, computed_tokens)
        return request.table.copy()

    def finish(self, request: Request) -> None:
        self._requests.finish(request)

    def abort(self, request: Request) -> None:
        self._requests.abort(request)

    # What it shows.

    def snapshot(self) -> Snapshot:
        return ReferenceView(self.cache).snapshot()

    def sizes(self) -> Mapping[str, Sizes]:
        return self.cache.sizes()

    def events(self) -> Sequence[Event]:
        return self.cache.events.peek()

    @classmethod
    def colliding(cls) -> AbstractContextManager[None]:
        return _one_digest()

    def page_hashes(self, key: Key) -> Sequence[str]:
        return self.cache.page_hashes(self.cache.key(key.tokens, key.namespace))

    def counters(self) -> Mapping[str, int]:
        # `traffic` is what came of the work, not how much work it was.
        counters = self.cache.counters
        return {one.name: getattr(counters, one.name) for one in fields(counters) if one.name != "traffic"}

    def reported_metrics(self) -> Mapping[str, int]:
        stats = stats_of(self.cache)
        samples = {
            (metric.name, *labels): int(value)
            for metric in METRICS
            if metric.kind == "counter" and metric.read is not None
            for labels, value in metric.read(stats)
        }
        return {name: samples[sample] for name, sample in REPORTED.items() if sample in samples}

    def sanity_check(self) -> None:
        check_invariants(self.cache.tree.radix.root)

    # The host tier.

    def close(self) -> None:
        self._may_copy.set()
        with self._opened_groups:
            self.cache.close()

    def step(self) -> None:
        self.cache.step()

    def drain(self) -> None:
        self.cache.drain()

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        return self.cache.evict_host(component, tokens)

    def lock_host(self, handle: Node) -> LockReceipt:
        return self.cache.lock_host(handle)

    def unlock_host(self, receipt: LockReceipt) -> None:
        self.cache.unlock_host(receipt)

    def load_back(self, handle: Node, *, quota: int | None) -> LoadBack | None:
        return self.cache.load_back(handle, quota)

    def load_phase(self, ticket: LoadBackTicket) -> TransferPhase:
        return self.cache.load_phase(ticket)

    def claim(self, ticket: LoadBackTicket) -> Slots | None:
        return self.cache.claim(ticket)

    def abandon(self, ticket: LoadBackTicket) -> None:
        self.cache.abandon(ticket)

    def host_sizes(self) -> Mapping[str, Sizes]:
        return self.cache.host_sizes()

    def read_host(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        return self._host.pools.read(pool, slots, layer)

    def is_pinned(self, pool: str) -> bool:
        return all(raw.is_pinned() for raw in self._host.pools.buffers[pool].raw)

    def layer_ready(self, ticket: LoadBackTicket, pool: str, layer: int) -> bool:
        if self.stack_layer(pool, layer) >= self.cache.layers_done(ticket):
            return False
        is_partner = pool == Pool.SWA and not self.cache.load_phase(ticket).has_ended
        return not is_partner or self._host.load_backs.has_partners(ticket)

    def wait_layer(self, ticket: LoadBackTicket, pool: str, layer: int) -> None:
        self.cache.wait_layer(ticket, self.stack_layer(pool, layer))

    def hold_transfers(self) -> None:
        self._may_copy.clear()

    def release_transfers(self) -> None:
        self._may_copy.set()

    def stack_layer(self, pool: str, layer: int) -> int:
        """The layer of the whole stack that reads this layer of a pool."""
        specs = {pool: buffers.spec for pool, buffers in self.cache.pools.buffers.items()}
        return next(number for number, layers in enumerate(layer_order(specs)) if (pool, layer) in layers)

    # The storage tier.

    def prefetch(self, key: Key) -> Prefetch | None:
        return self.cache.prefetch(self.cache.key(key.tokens, key.namespace))

    def check_prefetch(self, ticket: Prefetch) -> int | None:
        return self.cache.check_prefetch(ticket)

    def abort_prefetch(self, ticket: Prefetch) -> None:
        self.cache.abort_prefetch(ticket)

    def attach_storage(self) -> bool:
        return self.cache.attach_storage()

    def detach_storage(self) -> bool:
        return self.cache.detach_storage()

    def clear_storage(self) -> bool:
        return self.cache.clear_storage()

    def storage_keys(self, pool: str, key: Key) -> Sequence[str]:
        keys = self._storage.jobs.keys
        hashes = self.cache.page_hashes(self.cache.key(key.tokens, key.namespace))
        return [f"{keys.scope}/{name}" for name in self._storage.jobs.page_keys(pool, hashes, 0)]

    def advance_clock(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # Transfers and storage jobs that a test moves.

    def pending(self) -> Sequence[Pending]:
        return [self._shown(job, stepper.progress(job.number)) for job, stepper in self._stepped()]

    def advance(self, ticket: int) -> None:
        self._stepper_of(ticket).advance(ticket)

    def complete(self, ticket: int) -> None:
        self._stepper_of(ticket).complete(ticket)

    def fail(self, ticket: int, parts_done: int) -> None:
        self._stepper_of(ticket).fail(ticket, parts_done)

    def fail_waits(self, count: int) -> None:
        self._failing.left = count

    def _shown(self, job: CopyJob | StorageJob, progress: Progress) -> Pending:
        if isinstance(job, CopyJob):
            return Pending(job.number, job.kind, len(job.parts), self._host.layers, progress.steps)
        units = 1 if job.kind is StorageKind.QUERY else len(job.parts)
        return Pending(job.number, job.kind, 1, units, progress.steps)

    def _stepped(self) -> list[tuple[CopyJob | StorageJob, StepExecutor[Any]]]:
        """The jobs that have not ended, by number, which is the order in which the cache made them."""
        executors = [*self._copies.values(), *self._storage_jobs.values()]
        jobs = [(job, one) for one in executors if isinstance(one, StepExecutor) for job in one.pending()]
        return sorted(jobs, key=lambda pair: pair[0].number)

    def _stepper_of(self, number: int) -> StepExecutor[Any]:
        for job, stepper in self._stepped():
            if job.number == number:
                return stepper
        raise ValueError(f"no transfer or storage job {number} is pending")

    @property
    def _host(self) -> HostTier:
        if self.cache.host is None:
            raise ValueError(f"{self._config.name} has no host tier")
        return self.cache.host

    @property
    def _storage(self) -> StorageTier:
        if self.cache.storage is None:
            raise ValueError(f"{self._config.name} has no storage tier")
        return self.cache.storage


def _admission(request: Request) -> Admission:
    cached = request.shared_tokens + request.loading_tokens
    loading = not request.is_ready
    return Admission(request, request.table.copy(), cached, request.state, loading, request.keep_at)


@contextmanager
def _one_digest() -> Iterator[None]:
    """Every SHA-256 digest is that of the same text."""
    real = hashlib.sha256
    with patch.object(hashlib, "sha256", lambda *_, **__: real(b"the same for all")):
        yield


class ReferenceView:
    """The whole reference cache as a Snapshot: nodes, pools, transfers, and who locks what."""

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self._cache = cache
        self._names = [name.value for name in Component if name in cache.config.components]
        self._units = {name: 1 if name == Component.MAMBA else cache.config.page_size for name in self._names}

    def snapshot(self) -> Snapshot:
        """The cache at this moment, in values of their own."""
        nodes = list(self._cache.tree.radix.nodes())
        numbers = {id(node): number for number, node in enumerate(nodes)}
        receipts = _receipts_through(nodes)
        views = tuple([self._node(node, count, numbers) for node, count in zip(nodes, receipts, strict=True)])
        pools = {name: self._pool(name, self._cache.pools.allocators[name]) for name in self._names}
        host = None if self._cache.host is None else self._host(self._cache.host, nodes)
        storage = None if self._cache.storage is None else self._storage(self._cache.storage, nodes)
        return Snapshot(views, pools, host, storage)

    def _node(self, node: Node, receipts: int, numbers: Mapping[int, int]) -> NodeView:
        page = self._cache.config.page_size
        return NodeView(
            parent=numbers.get(id(node.parent), -1),
            namespace=node.namespace,
            segment=node.key,
            start=node.start * page,
            end=node.end * page,
            slots=self._slots_of(node.device),
            locks=dict(zip(self._names, [receipts, *[data.lock_ref for data in node.device[1:]]], strict=True)),
            hits=node.hit_count,
        )

    def _host(self, host: HostTier, nodes: Sequence[Node]) -> HostView:
        pins, host_pins = self._pins(Tier.DEVICE), self._pins(Tier.HOST)
        none = dict.fromkeys(self._names, 0)
        views = tuple(
            [
                HostNodeView(
                    slots=self._slots_of(node.host),
                    locks=dict(zip(self._names, [data.lock_ref for data in node.host], strict=True)),
                    pins=pins.get(id(node), none),
                    host_pins=host_pins.get(id(node), none),
                )
                for node in nodes
            ]
        )
        pools = {name: self._pool(name, host.pools.allocators[name]) for name in self._names}
        return HostView(views, pools, tuple(self._transfers(host)), self._orphaned(host))

    def _storage(self, storage: StorageTier, nodes: Sequence[Node]) -> StorageView:
        stored = [
            frozenset(name for name, is_stored in zip(self._names, node.stored, strict=True) if is_stored)
            for node in nodes
        ]
        prefetches = [
            FetchView({name: self._existing(name, pages) for name, pages in prefetch.pages.items()})
            for prefetch in storage.prefetches.under_way
            if prefetch.pages
        ]
        is_silent = not storage.quarantine.is_empty
        held = {name: self._existing(name, pages) for name, pages in storage.quarantine.pages().items()}
        return StorageView(tuple(stored), tuple(prefetches), held if is_silent else None)

    def _slots_of(self, values: Sequence[ComponentData]) -> dict[str, Slots | None]:
        """The slots of a node on one tier, by component."""
        return {
            name: None if data.value is None else _slots(data.value, unit)
            for (name, unit), data in zip(self._units.items(), values, strict=True)
        }

    def _pool(self, component: str, allocator: PageAllocator) -> PoolView:
        capacity = allocator.capacity_pages * self._units[component]
        return PoolView(capacity, self._existing(component, allocator.free_set()))

    def _existing(self, component: str, pages: Slots) -> Slots:
        return _slots(pages, self._units[component])

    def _transfers(self, host: HostTier) -> Iterable[TransferView]:
        for transfer in host.controller.under_way():
            moves = transfer.moves.items()
            yield TransferView(
                kind=transfer.kind,
                device={name: self._existing(name, move.device) for name, move in moves},
                host={name: self._existing(name, move.host) for name, move in moves},
            )

    def _orphaned(self, host: HostTier) -> dict[str, Slots]:
        pages = host.load_backs.orphaned_pages()
        if not len(pages):
            return dict.fromkeys(self._names, NO_SLOTS)
        orphaned = {Component.FULL.value: self._existing(Component.FULL, pages)}
        if Component.SWA in self._names:
            partners = self._cache.pools.partners(np.setdiff1d(pages, host.load_backs.sharing_pages()))
            orphaned[Component.SWA.value] = self._existing(Component.SWA, partners[partners != 0])
        return orphaned

    def _pins(self, tier: Tier) -> Counts:
        counts: Counts = defaultdict(lambda: dict.fromkeys(self._names, 0))
        for receipt in _with_others(self._cache.tree.locks.pins):
            if receipt.tier is tier:
                self._count(receipt, counts)
        return counts

    def _count(self, receipt: LockReceipt, counts: Counts) -> None:
        """Count what a receipt locks, component by component, as its release would find it."""
        for name, mark in zip(self._names, receipt.marks, strict=True):
            node = receipt.node
            if name == Component.MAMBA:
                counts[id(node)][name] += mark
                continue
            while node.parent is not None and node.end > mark:
                counts[id(node)][name] += 1
                node = node.parent


REMEMBERED_PAGES = 1 << 10
"""The number of pages up to which their slots are remembered: few verbs change more than one node."""


def _slots(pages: Slots, page_size: int) -> Slots:
    """The slots of these pages, page by page, in an array that is not the cache's."""
    if len(pages) > REMEMBERED_PAGES:
        return _computed_slots(pages, page_size)
    return _remembered_slots(pages.tobytes(), page_size)


@lru_cache(maxsize=1 << 13)
def _remembered_slots(pages: bytes, page_size: int) -> Slots:
    slots = _computed_slots(np.frombuffer(pages, dtype=np.int64), page_size)
    slots.setflags(write=False)
    return slots


def _computed_slots(pages: Slots, page_size: int) -> Slots:
    return (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)


def _with_others(receipts: Iterable[LockReceipt]) -> Iterable[LockReceipt]:
    for receipt in receipts:
        yield receipt
        if receipt.other is not None:
            yield receipt.other


def _receipts_through(nodes: Sequence[Node]) -> list[int]:
    """Receipts that lock each node's FULL data: its own (its count less its locked children) and its children's."""
    totals: dict[int, int] = defaultdict(int)
    for node in reversed(nodes):
        locks = node.device[FULL].lock_ref
        totals[id(node)] += locks
        totals[id(node.parent)] += totals[id(node)] - bool(locks)
    return [totals[id(node)] for node in nodes]


class ModelledReference(ReferenceAdapter):
    """Each verb runs with torch.cuda replaced by a model, and raises when the model has found a race.

    `order`: the seed of the order in which streams go on. Each rank has another order.
    """

    order: ClassVar[int] = 0

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self.cuda = CudaModel(random.Random(self.order + world_rank(config.topology)))
        with self.cuda.installed():
            super().__init__(config, groups)

    @classmethod
    def on_model(cls, order: int) -> type[CacheAdapter]:
        return _ordered(cls, order)

    def close(self) -> None:
        with self.cuda.installed():
            super().close()
        self.cuda.machine.drain()
        self.cuda.require_no_races()

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        # The model's kernel. The pool's own writes from pageable memory, and so waits for most of what it did.
        buffers, items = self._items(self.cache.pools.buffers[pool], slots, layer)
        if not buffers.raw[0].is_cuda:
            super().write(pool, slots, layer, data)
            return
        widths = [raw.shape[-1] for raw in buffers.raw]
        parts = torch.split(torch.from_numpy(np.array(data)), widths, dim=1)

        def work() -> None:
            for raw, part in zip(buffers.raw, parts, strict=True):
                raw.raw[items] = part  # type: ignore[attr-defined]

        self.cuda.kernel("write of the model", work, writes=[(raw, items) for raw in buffers.raw])

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        buffers, items = self._items(self.cache.pools.buffers[pool], slots, layer)
        if not buffers.raw[0].is_cuda:
            return super().read(pool, slots, layer)
        found: list[torch.Tensor] = []

        def work() -> None:
            found.extend(raw.raw[items] for raw in buffers.raw)  # type: ignore[attr-defined]

        self.cuda.kernel("read of the model", work, reads=[(raw, items) for raw in buffers.raw])
        self.cuda.current_stream(buffers.raw[0].device).synchronize()
        rows: PageBytes = torch.cat(found, dim=1).numpy()
        return rows

    def read_host(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        buffers, items = self._items(self._host.pools.buffers[pool], slots, layer)
        for raw in buffers.raw:
            self.cuda.host_touches(raw, items, operation="read of a test")
        return super().read_host(pool, slots, layer)

    def _open_storage(self, name: str, worker: Worker[StorageJob]) -> Executor[StorageJob]:
        # The model knows one host: what other threads access is not declared.
        storage = self._config.storage
        is_stepped = storage is not None and storage.executor is ExecutorKind.STEPPED
        return super()._open_storage(name, _WatchedWorker(worker, self._moves) if is_stepped else worker)

    def _moves(self, job: StorageJob, part: int) -> None:
        """Storage reads pages of the host, or writes them."""
        moved = job.parts[part]
        batches = moved.pools if isinstance(moved, StoreBatch) else (moved,) if isinstance(moved, PageBatch) else ()
        for batch in batches:
            for raw in self._host.pools.buffers[batch.pool].raw:
                items = (torch.from_numpy(batch.pages),)
                is_write = job.kind is StorageKind.PREFETCH
                self.cuda.host_touches(raw, items, is_write=is_write, operation=f"{job.kind.value} of storage")

    def _items(self, buffers: PoolBuffers, slots: Slots, layer: int) -> tuple[PoolBuffers, Items]:
        pages, places = np.divmod(slots, buffers.page_size)
        return buffers, (torch.from_numpy(pages), layer, torch.from_numpy(places))


class _WatchedWorker:
    """A worker that says which part of a job it does before it does it."""

    def __init__(self, worker: Worker[StorageJob], on_part: Callable[[StorageJob, int], None]) -> None:
        self._worker = worker
        self._on_part = on_part

    def step(self, job: StorageJob, done: Progress) -> Progress:
        """Do the next batch."""
        if done.steps < len(job.parts):
            self._on_part(job, done.steps)
        return self._worker.step(job, done)

    def rest(self, job: StorageJob, done: Progress) -> Progress:
        """Do all batches that are left."""
        while not done.has_ended:
            done = self.step(job, done)
        return done


@cache
def _ordered(modelled: type[ModelledReference], order: int) -> type[CacheAdapter]:
    return type(modelled.__name__, (modelled,), {"__module__": modelled.__module__, "order": order})


def _on_model(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def called(self: ModelledReference, *args: Any, **kwargs: Any) -> Any:
        with self.cuda.installed():
            answer = verb(self, *args, **kwargs)
        self.cuda.require_no_races()
        return answer

    return called


WITHOUT_MODEL = frozenset(
    {
        *("close", "on_model", "read", "read_host", "write"),
        *("capabilities", "layers", "slot_bytes", "slots", "stack_layer", "partners"),
        *("snapshot", "sizes", "host_sizes", "events", "counters", "reported_metrics"),
        *("page_hashes", "storage_keys", "pending"),
    }
)
"""What needs no installed model, or installs it."""

for _name in [name for name in dir(ModelledReference) if not name.startswith("_") and name not in WITHOUT_MODEL]:
    _verb = getattr_static(ModelledReference, _name)
    if callable(_verb):
        setattr(ModelledReference, _name, _on_model(_verb))
