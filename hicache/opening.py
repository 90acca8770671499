"""The parts of a cache and how they are opened: `Resources` live as long as it, a reset may replace `Tiers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from hicache.components.component_tree import ComponentTree
from hicache.config import CacheConfig, Topology
from hicache.errors import ConfigurationError
from hicache.events import EventLog
from hicache.metrics import Counters, Liveness
from hicache.optional_torch import OutOfMemoryError, torch
from hicache.parallel.agree import Agreement, agreed_config
from hicache.parallel.group import Group
from hicache.parallel.mesh import AXES
from hicache.pools.copy import LayerOrder, PoolCopier, copy_method
from hicache.pools.device import DevicePools
from hicache.pools.host import HostPools, require_device, runtime_for
from hicache.prometheus import CacheMetrics
from hicache.runtime import Runtime
from hicache.stacks import layer_order, pool_specs
from hicache.storage.keys import StorageKeys, warn_of_no_fingerprint
from hicache.tiers.backup import BackupManager
from hicache.tiers.evict import DeviceEvictor, HostEvictor
from hicache.tiers.load_back import LoadBackManager
from hicache.tiers.prefetch import PrefetchManager, PrefetchStopPolicy
from hicache.tiers.quarantine import Quarantine
from hicache.tiers.storage_jobs import StorageJobs
from hicache.tiers.storage_tier import StorageTier
from hicache.tiers.storage_worker import StorageWorker
from hicache.tiers.store import StorageWriter
from hicache.tiers.transfer import HybridCacheController
from hicache.transfer.queue import TransferQueue


@dataclass(frozen=True, slots=True)
class HostTier:
    """The parts of a cache's host tier. `order`: the layers of the model's whole stack."""

    pools: HostPools
    order: LayerOrder
    controller: HybridCacheController
    evictor: HostEvictor
    backups: BackupManager
    load_backs: LoadBackManager

    @property
    def layers(self) -> int:
        """Layers of the model's whole stack."""
        return len(self.order)


@dataclass(frozen=True, slots=True)
class Resources:
    """Everything that lives as long as the cache; a reset does not replace it.

    `worker`: calls the storage backend. Without the tier below, `host_pools` and `worker` are None. `metrics`: exposes
    what the cache does, or None.
    """

    config: CacheConfig
    runtime: Runtime
    agreement: Agreement
    events: EventLog
    counters: Counters
    liveness: Liveness
    pools: DevicePools
    host_pools: HostPools | None
    worker: StorageWorker | None
    metrics: CacheMetrics | None


@dataclass(frozen=True, slots=True)
class Tiers:
    """A tree and the managers over it: what is made anew when a verb was interrupted."""

    tree: ComponentTree
    evictor: DeviceEvictor
    host: HostTier | None
    storage: StorageTier | None

    @classmethod
    def over(cls, kept: Resources, opened: ExitStack) -> Tiers:
        """An empty tree, and executors for its tiers. `opened`: closes them on failure."""
        tree = ComponentTree(kept.config, kept.pools, kept.host_pools, kept.events, kept.counters)
        if kept.host_pools is None:
            return cls(tree, DeviceEvictor(tree, kept.pools, None), None, None)
        host, evictor = _open_host(tree, kept, kept.host_pools, opened)
        storage = None if kept.worker is None else _open_storage(tree, host, kept, kept.worker, opened)
        return cls(tree, evictor, host, storage)


def _open_host(
    tree: ComponentTree, kept: Resources, host_pools: HostPools, opened: ExitStack
) -> tuple[HostTier, DeviceEvictor]:
    """The host tier, and the device evictor, which backs up with write_back. `opened`: closes them on failure."""
    pools, runtime = kept.pools, kept.runtime
    order = layer_order({name: one.spec for name, one in pools.buffers.items()})
    copier = PoolCopier(pools, host_pools, order, copy_method(kept.config.io_backend, pools.device))
    controller = HybridCacheController(lambda kind: runtime.open_copies(kind, copier))
    opened.callback(controller.close)
    evictor = HostEvictor(tree, host_pools)
    backups = BackupManager(tree, host_pools, evictor, controller, kept.agreement)
    device_evictor = DeviceEvictor(tree, pools, backups if tree.is_write_back else None)
    load_backs = LoadBackManager(tree, pools, device_evictor, controller)
    return HostTier(host_pools, copier.order, controller, evictor, backups, load_backs), device_evictor


def _open_storage(
    tree: ComponentTree, host: HostTier, kept: Resources, worker: StorageWorker, opened: ExitStack
) -> StorageTier:
    """Open the storage tier without its backend. `opened`: closes it on failure."""
    runtime = kept.runtime
    jobs = StorageJobs(tree.config, host.pools, tree.counters, host.controller.numbers)
    reads = TransferQueue(runtime.open_storage("read", worker))
    opened.callback(reads.close)
    writes = TransferQueue(runtime.open_storage("write", worker))
    opened.callback(writes.close)
    writer = StorageWriter(tree, jobs, writes)
    stop_policy = PrefetchStopPolicy(tree.config, runtime.clock, kept.agreement)
    prefetches = PrefetchManager(tree, host.evictor, host.backups, jobs, reads, stop_policy)
    host.backups.listeners.append(prefetches.note_host_copy)
    host.backups.listeners.append(lambda node: writer.offer(node) if worker.is_attached else None)
    config = tree.config.storage
    assert config is not None, "a storage tier is opened where it is configured"
    return StorageTier(
        name=config.backend,
        limit_s=config.answer_timeout_s,
        open_backend=runtime.open_backend,
        jobs=jobs,
        worker=worker,
        reads=reads,
        writes=writes,
        writer=writer,
        prefetches=prefetches,
        quarantine=Quarantine(tree, host.evictor.free),
        abandoned=kept.liveness.abandoned,
    )


def open_parts(
    config: CacheConfig,
    runtime: Runtime | None,
    agreement: Agreement,
    tensors: Mapping[str, Sequence[torch.Tensor]] | None,
    metrics: CacheMetrics | None,
) -> tuple[Resources, Tiers]:
    """Open the parts of an empty cache, for UnifiedRadixCache.open. If one cannot be opened, the others are closed."""
    # First of all: the other ranks would wait for a rank that fails before it.
    config = agreed_config(config, agreement)
    require_device(config.device)
    runtime, specs = runtime or Runtime.of(config), pool_specs(config)
    if metrics is not None:
        runtime = replace(runtime, open_backend=metrics.measured_backend(runtime.open_backend, config))
    with ExitStack() as opened:
        opened.enter_context(_memory_of(config))
        pools = DevicePools(config, specs, tensors)
        host_pools = worker = None
        if config.host is not None:
            host_pools = HostPools(config, specs)
            opened.callback(host_pools.close)
            host_pools.pin(runtime_for(config.device))
            worker = StorageWorker(host_pools, StorageKeys.of(config).written) if config.storage else None
        events, counters, liveness = EventLog(config.events), Counters(), Liveness()
        kept = Resources(config, runtime, agreement, events, counters, liveness, pools, host_pools, worker, metrics)
        tiers = Tiers.over(kept, opened)
        if tiers.storage is not None:
            # Not by `attach_storage`: all ranks agree whether each has opened its backend when all of it is open.
            tiers.storage.open()
            if config.storage is not None and config.storage.model_fingerprint is None:
                warn_of_no_fingerprint()
        opened.pop_all()
    return kept, tiers


@contextmanager
def _memory_of(config: CacheConfig) -> Iterator[None]:
    """Name the requested size of memory that is not available."""
    try:
        yield
    except (MemoryError, OverflowError, NotImplementedError, OutOfMemoryError) as error:
        host = f", host.capacity_tokens={dict(config.host.capacity_tokens)}" if config.host else ""
        raise ConfigurationError(
            f"no memory on device {config.device!r} for capacity_tokens={dict(config.capacity_tokens)}{host}: {error}"
        ) from error


def check_groups(topology: Topology, groups: Mapping[str, Group]) -> None:
    """Without the group of an axis its ranks would decide alone, and their trees would soon differ."""
    places = {axis: (getattr(topology, f"{axis}_rank"), getattr(topology, f"{axis}_size")) for axis in AXES}
    expected = {axis: place for axis, place in places.items() if place[1] > 1}
    given = {axis: (group.rank, group.size) for axis, group in groups.items()}
    if given != expected:
        raise ConfigurationError(f"topology has ranks (rank, size) of {expected}, groups are given for {given}")
