"""The standard configurations: every kind of cache that an adapter may declare, with capacities that soon run out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, ExecutorKind, Layout
from hicache.testing.adapter import Capability
from hicache.testing.host_configurations import QUICK_HOST, Kind, host_configurations
from hicache.testing.hybrid_model import tiny_model
from hicache.testing.storage_configurations import QUICK_STORAGE, storage_configurations
from hicache.types import Component, Pool

FULL, SWA, MAMBA = (component.value for component in Component)
INDEXER = Pool.INDEXER.value

ALL_POLICIES = tuple(EvictionPolicy)

CAPACITY_PAGES = {FULL: 24, SWA: 16}
CAPACITY_STATES = 6

WINDOWS = {1: 4, 3: 5, 16: 24, 64: 48}
"""Window in tokens by page size: not always a multiple of the page size, and sometimes shorter than a page."""

KINDS = {
    ((FULL,), ()): (1, 3, 16, 64),
    ((FULL, SWA), ()): (3, 16),
    ((FULL, MAMBA), ()): (16,),
    ((FULL, SWA, MAMBA), ()): (16,),
    ((FULL,), (INDEXER,)): (16,),
    ((FULL, SWA, MAMBA), (INDEXER,)): (1, 3, 16, 64),
}
"""Page sizes by components and sidecars: all page sizes for FULL alone, and for all components with the indexer."""

QUICK = frozenset(
    {
        "full/page1/lru",
        "full/page16/lru",
        "full+swa/page3/lru",
        "full+mamba/page16/lru",
        "full+swa+mamba+indexer/page16/lru",
        "full/page1/lru/bigram",
        *(f"full/page1/{policy.value}" for policy in ALL_POLICIES),
        *QUICK_HOST,
        *QUICK_STORAGE,
    }
)
"""The names of the configurations of a quick run."""


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
        Capability.BIGRAM: config.bigram,
        Capability.POLICIES: config.policy is not EvictionPolicy.LRU,
        Capability.HOST: config.host is not None,
        Capability.STORAGE: config.storage is not None,
        Capability.STEPPED: config.host is not None and config.host.executor is ExecutorKind.STEPPED,
        Capability.STEPPED_STORAGE: config.storage is not None and config.storage.executor is ExecutorKind.STEPPED,
    }
    return frozenset(capability for capability, is_shown in shown.items() if is_shown)


def _fitting(configs: Iterable[CacheConfig], capabilities: Collection[Capability]) -> tuple[CacheConfig, ...]:
    served = (_served(config, capabilities) for config in configs)
    return tuple({config.name: config for config in served if needs_of(config).issubset(capabilities)}.values())


def _served(config: CacheConfig, capabilities: Collection[Capability]) -> CacheConfig:
    """The same configuration, with threads when the adapter cannot step transfers or storage."""
    host, storage = config.host, config.storage
    if host is not None and host.executor is ExecutorKind.STEPPED and Capability.STEPPED not in capabilities:
        host = replace(host, executor=ExecutorKind.THREADED)
    if storage is not None and Capability.STEPPED_STORAGE not in capabilities:
        storage = replace(storage, executor=ExecutorKind.THREADED)
    return replace(config, host=host, storage=storage)


def _product() -> Iterator[CacheConfig]:
    lru = EvictionPolicy.LRU
    for (components, sidecars), page_sizes in KINDS.items():
        for page_size in page_sizes:
            yield _tiny(components, sidecars, page_size, lru, bigram=False)
    for policy in ALL_POLICIES:
        if policy is not lru:
            yield _tiny((FULL,), (), 1, policy, bigram=False)
            yield _tiny((FULL, SWA, MAMBA), (), 16, policy, bigram=False)
    yield _tiny((FULL,), (), 1, lru, bigram=True)
    yield _tiny((FULL, SWA), (), 16, lru, bigram=True)
    yield from host_configurations(_of_kind)
    yield from storage_configurations(_of_kind)


def _of_kind(kind: Kind, page_size: int) -> CacheConfig:
    return _tiny(*kind, page_size, EvictionPolicy.LRU, bigram=False)


def _tiny(
    components: tuple[str, ...], sidecars: tuple[str, ...], page_size: int, policy: EvictionPolicy, *, bigram: bool
) -> CacheConfig:
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
