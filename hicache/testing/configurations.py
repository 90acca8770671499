"""The standard configurations: every kind of cache that an adapter may declare, on all tiers, with small capacities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from hicache.config import (
    SINGLE_RANK,
    CacheConfig,
    EvictionPolicy,
    ExecutorKind,
    HostConfig,
    IoBackend,
    Layout,
    StorageConfig,
    WritePolicy,
)
from hicache.testing.adapter import Capability
from hicache.testing.hybrid_model import DRAFT, EXPERTS, GROUPS, OTHER_SIDECARS, SCALES, SECOND_INDEX, tiny_model
from hicache.testing.storage.scripted import BACKEND as SCRIPTED
from hicache.types import Component, Pool, StopPolicy

FULL, SWA, MAMBA = (component.value for component in Component)
INDEXER = Pool.INDEXER.value

ALL_POLICIES = tuple(EvictionPolicy)

Kind = tuple[tuple[str, ...], tuple[str, ...]]
"""Components, sidecars."""

ALONE: Kind = ((FULL,), ())
ALL: Kind = ((FULL, SWA, MAMBA), (INDEXER,))
TWO_SIDECARS: Kind = ((FULL,), (DRAFT, SECOND_INDEX))
GROUPED: Kind = ((FULL,), (GROUPS,))
THREE_SIDECARS: Kind = ((FULL, SWA, MAMBA), (INDEXER, SCALES, EXPERTS))

CAPACITY_PAGES = {FULL: 24, SWA: 16}
CAPACITY_STATES = 6

HOST_PAGES = {FULL: 20, SWA: 12}
HOST_STATES = 5
"""Slightly less than on the device, so that both tiers soon run out of slots."""

WINDOWS = {1: 4, 3: 5, 16: 24, 64: 48}
"""Window in tokens by page size: not always a multiple of the page size, and sometimes shorter than a page."""

KINDS = {
    ALONE: (1, 3, 16, 64),
    ((FULL, SWA), ()): (3, 16),
    ((FULL, MAMBA), ()): (16,),
    ((FULL, SWA, MAMBA), ()): (16,),
    ((FULL,), (INDEXER,)): (16,),
    ALL: (1, 3, 16, 64),
    TWO_SIDECARS: (16,),
    GROUPED: (16,),
    THREE_SIDECARS: (16,),
}
"""Page sizes by components and sidecars: all page sizes for FULL alone, and for all components with the indexer."""

TIERED_KINDS = (ALONE, ((FULL, SWA), ()), ((FULL, MAMBA), ()), ALL)
"""The kinds of configurations with a host: each component with FULL, and all together with a sidecar."""

SEVERAL_SIDECARS = (TWO_SIDECARS, THREE_SIDECARS)
"""The kinds with more sidecars than the indexer, which differ in layers, items and tokens of an entry."""

GROUPED_OVER_ALL: Kind = ((FULL, SWA, MAMBA), (GROUPS,))
"""All components, and a sidecar that has one entry for several pages."""

USUAL_LAYOUTS = (Layout.LAYER_FIRST, Layout.PAGE_FIRST)
"""The layouts of device and host in all configurations except those for other layouts."""

THRESHOLD_PAGES = 2
"""The smallest number of FULL pages that is loaded back or prefetched, in the configurations with a threshold."""

LIMIT_PAGES = 8
"""The number of pages that prefetches may have in flight."""

TIMEOUT_BASE_S = 1.0
TIMEOUT_PER_PAGE_S = 0.5
TIMEOUT_CAP_S = 3.0
"""Limits the timeout of prefetches of more than four pages."""

OF_NAME = {
    Component.SWA.value: Capability.SWA,
    Component.MAMBA.value: Capability.MAMBA,
    Pool.INDEXER.value: Capability.INDEXER,
    **dict.fromkeys(OTHER_SIDECARS, Capability.SIDECARS),
    GROUPS: Capability.GROUPS,
}
"""The capability that a component or sidecar needs."""

THREE_SIDECARS_THREADED = "full+swa+mamba+indexer+scales+experts/page16/lru/write_through-page_first-threaded"

QUICK = frozenset(
    {
        "full/page1/lru",
        "full/page16/lru",
        "full+swa/page3/lru",
        "full+mamba/page16/lru",
        "full+swa+mamba+indexer/page16/lru",
        "full/page1/lru/bigram",
        *(f"full/page1/{policy.value}" for policy in ALL_POLICIES),
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-stepped",
        "full/page16/lru/write_back-page_first-stepped",
        "full+swa/page16/lru/write_through-page_first-stepped",
        "full+mamba/page16/lru/write_through-page_first-stepped",
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-threaded",
        "full/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped",
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped",
        f"{THREE_SIDECARS_THREADED}/ScriptedStorage-wait_complete-threaded",
        "full+groups/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped",
        "full/page16/lru/write_through-page_first-stepped/ScriptedStorage-timeout-stepped",
    }
)
"""The names of the configurations of a quick run."""


ON_MODEL = frozenset(
    {
        "full+swa+mamba+indexer/page16/lru/write_through-page_first_direct-streams-direct",
        "full/page16/lru/write_through-page_first-streams",
        "full/page16/lru/write_through-page_first-streams/ScriptedStorage-wait_complete-threaded",
    }
)
"""The names of the configurations that run on a model of CUDA where there is no device."""


def standard_configurations(capabilities: Collection[Capability]) -> tuple[CacheConfig, ...]:
    """The standard configurations that these capabilities allow. No two have the same name.

    When the adapter does not declare STEPPED, the stepped configurations run with threads instead.
    """
    return _fitting(_product(), capabilities)


def quick_configurations(capabilities: Collection[Capability]) -> tuple[CacheConfig, ...]:
    """A subset that has each component, a page of several tokens, each policy, bigram keys, and each tier."""
    return _fitting((config for config in _product() if config.name in QUICK), capabilities)


def needs_of(config: CacheConfig) -> frozenset[Capability]:
    """The capabilities that an adapter must declare for a configuration."""
    shown = {
        Capability.PAGED: config.page_size > 1,
        Capability.SWA: SWA in config.components,
        Capability.MAMBA: MAMBA in config.components,
        Capability.INDEXER: INDEXER in config.sidecars,
        Capability.SIDECARS: not {INDEXER}.issuperset(config.sidecars),
        Capability.GROUPS: GROUPS in config.sidecars,
        Capability.BIGRAM: config.bigram,
        Capability.POLICIES: config.policy is not EvictionPolicy.LRU,
        Capability.EVENTS: config.events,
        Capability.HOST: config.host is not None,
        Capability.STORAGE: config.storage is not None,
        Capability.STEPPED: config.host is not None and config.host.executor is ExecutorKind.STEPPED,
        Capability.STEPPED_STORAGE: config.storage is not None and config.storage.executor is ExecutorKind.STEPPED,
    }
    return frozenset(capability for capability, is_shown in shown.items() if is_shown)


def with_host(
    config: CacheConfig,
    *,
    policy: WritePolicy = WritePolicy.WRITE_THROUGH,
    layout: Layout = Layout.PAGE_FIRST,
    executor: ExecutorKind = ExecutorKind.STEPPED,
    io_backend: IoBackend | None = None,
    threshold_pages: int = 0,
) -> CacheConfig:
    """Add a host tier to a configuration of the device tier."""
    capacities = {name: pages * config.page_size for name, pages in HOST_PAGES.items()} | {MAMBA: HOST_STATES}
    host = HostConfig(
        capacity_tokens={name: capacities[name] for name in config.components},
        layout=layout,
        write_policy=policy,
        selective_hits=1,
        load_back_threshold_tokens=threshold_pages * config.page_size,
        executor=executor,
        io_backend=io_backend,
    )
    return replace(config, host=host)


def with_storage(
    config: CacheConfig,
    *,
    stop_policy: StopPolicy = StopPolicy.WAIT_COMPLETE,
    executor: ExecutorKind = ExecutorKind.STEPPED,
    threshold_pages: int = 0,
) -> CacheConfig:
    """Add a storage tier, with its own in-memory store, to a configuration with a host tier."""
    storage = StorageConfig(
        backend=SCRIPTED,
        model="tiny",
        model_fingerprint="of tests",
        options={"store": f"{config.name}/{stop_policy.value}"},
        prefetch_threshold=threshold_pages * config.page_size,
        prefetch_timeout_base=TIMEOUT_BASE_S,
        prefetch_timeout_per_ki_token=TIMEOUT_PER_PAGE_S * 1024 / config.page_size,
        stop_policy=stop_policy,
        timeout_cap_s=TIMEOUT_CAP_S,
        limit_tokens=LIMIT_PAGES * config.page_size,
        executor=executor,
    )
    return replace(config, storage=storage)


def _fitting(configs: Iterable[CacheConfig], capabilities: Collection[Capability]) -> tuple[CacheConfig, ...]:
    served = (_served(config, capabilities) for config in configs)
    return tuple({config.name: config for config in served if needs_of(config).issubset(capabilities)}.values())


def _served(config: CacheConfig, capabilities: Collection[Capability]) -> CacheConfig:
    """The same configuration, with threads when the adapter cannot step transfers or storage, and with its events."""
    host, storage = config.host, config.storage
    if host is not None and host.executor is ExecutorKind.STEPPED and Capability.STEPPED not in capabilities:
        host = replace(host, executor=ExecutorKind.THREADED)
    if storage is not None and Capability.STEPPED_STORAGE not in capabilities:
        storage = replace(storage, executor=ExecutorKind.THREADED)
    return replace(config, host=host, storage=storage, events=config.events and Capability.EVENTS in capabilities)


def _product() -> Iterator[CacheConfig]:
    for kind, page_sizes in KINDS.items():
        for page_size in page_sizes:
            yield _tiny(kind, page_size)
    for policy in ALL_POLICIES:
        if policy is not EvictionPolicy.LRU:
            yield _tiny(ALONE, 1, policy=policy)
            yield _tiny(((FULL, SWA, MAMBA), ()), 16, policy=policy)
    yield _tiny(ALONE, 1, bigram=True)
    yield _tiny(((FULL, SWA), ()), 16, bigram=True)
    yield from _host_product()
    yield from _storage_product()


def _host_product() -> Iterator[CacheConfig]:
    """Every kind with write_through; other policies, layouts, executors and thresholds with some of the kinds."""
    for kind in (*TIERED_KINDS, *SEVERAL_SIDECARS, GROUPED):
        yield with_host(_tiny(kind, 16))
    for kind in (ALONE, ALL):
        yield with_host(_tiny(kind, 1))
        yield with_host(_tiny(kind, 3), threshold_pages=THRESHOLD_PAGES)
        for policy in (WritePolicy.WRITE_BACK, WritePolicy.WRITE_THROUGH_SELECTIVE):
            yield with_host(_tiny(kind, 16), policy=policy)
    mixed, gpu = replace(_tiny(ALL, 16), layout=Layout.PAGE_FIRST_DIRECT), replace(_tiny(ALL, 16), device="cuda")
    yield with_host(mixed, layout=Layout.LAYER_FIRST)
    by_kernel = replace(mixed, layout=Layout.PAGE_FIRST)
    yield with_host(by_kernel, layout=Layout.PAGE_FIRST_DIRECT, io_backend=IoBackend.KERNEL)
    for kind in TIERED_KINDS:
        yield with_host(_tiny(kind, 16), executor=ExecutorKind.THREADED)
        yield with_host(replace(_tiny(kind, 16), device="cuda"), executor=ExecutorKind.STREAMS)
    streams, direct = ExecutorKind.STREAMS, IoBackend.DIRECT
    yield with_host(gpu, layout=Layout.PAGE_FIRST_DIRECT, executor=streams, io_backend=direct)
    threaded, kernel = ExecutorKind.THREADED, IoBackend.KERNEL
    yield with_host(_tiny(ALL, 16), policy=WritePolicy.WRITE_BACK, executor=threaded, io_backend=kernel)


def _storage_product() -> Iterator[CacheConfig]:
    """Each component beside FULL; then stop policies, write_back, threads and a threshold with some of the kinds.

    With the policy timeout there are no events: what is computed for them, such as hashes, hides that it is missing.
    """
    for kind in (*TIERED_KINDS, ((FULL,), (INDEXER,)), *SEVERAL_SIDECARS, GROUPED, GROUPED_OVER_ALL):
        yield with_storage(with_host(_tiny(kind, 16)))
    yield with_storage(with_host(_tiny(ALONE, 1)))
    yield with_storage(with_host(_tiny(ALL, 1), policy=WritePolicy.WRITE_BACK))
    for kind in TIERED_KINDS[:-1]:
        yield with_storage(with_host(_tiny(kind, 16), policy=WritePolicy.WRITE_BACK))
    for kind in (ALONE, ALL):
        yield with_storage(with_host(_tiny(kind, 16)), stop_policy=StopPolicy.BEST_EFFORT)
        yield with_storage(with_host(replace(_tiny(kind, 16), events=False)), stop_policy=StopPolicy.TIMEOUT)
    for kind in (ALL, THREE_SIDECARS):
        threaded = with_host(_tiny(kind, 16), executor=ExecutorKind.THREADED)
        yield with_storage(threaded, executor=ExecutorKind.THREADED)
    streams = with_host(replace(_tiny(ALONE, 16), device="cuda"), executor=ExecutorKind.STREAMS)
    yield with_storage(streams, executor=ExecutorKind.THREADED)
    yield with_storage(with_host(_tiny(ALONE, 3)), threshold_pages=THRESHOLD_PAGES)


def _tiny(
    kind: Kind, page_size: int, *, policy: EvictionPolicy = EvictionPolicy.LRU, bigram: bool = False
) -> CacheConfig:
    """A configuration of the device tier."""
    components, sidecars = kind
    capacities = {name: pages * page_size for name, pages in CAPACITY_PAGES.items()} | {MAMBA: CAPACITY_STATES}
    return CacheConfig(
        components=components,
        page_size=page_size,
        capacity_tokens={name: capacities[name] for name in components},
        sliding_window_size=WINDOWS[page_size] if SWA in components else None,
        mamba_chunk_size=2 * page_size if MAMBA in components else None,
        policy=policy,
        bigram=bigram,
        events=True,
        layout=Layout.LAYER_FIRST,
        device="cpu",
        model=tiny_model(sidecars),
        topology=SINGLE_RANK,
    )
