"""The host tier of the standard configurations: write policies, layouts and executors over tiny host pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hicache.config import CacheConfig, ExecutorKind, HostConfig, Layout, WritePolicy
from hicache.types import Component, Pool

FULL, SWA, MAMBA = (component.value for component in Component)

Kind = tuple[tuple[str, ...], tuple[str, ...]]
"""Components and sidecars."""

Tiny = Callable[[Kind, int], CacheConfig]
"""Makes a tiny configuration of the device tier from a kind and a page size."""

HOST_PAGES = {FULL: 20, SWA: 12}
HOST_STATES = 5
"""A little fewer than on the device, so that both tiers are soon under pressure."""

THRESHOLD_PAGES = 2
"""Pages of FULL from which on a load is worth it, in the configurations with a threshold."""

ALONE: Kind = ((FULL,), ())
ALL: Kind = ((FULL, SWA, MAMBA), (Pool.INDEXER.value,))

QUICK_HOST = frozenset(
    {
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-stepped",
        "full/page1/lru/write_back-page_first-stepped",
        "full+swa/page16/lru/write_through-page_first-stepped",
        "full+mamba/page1/lru/write_through-page_first-stepped",
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-threaded",
    }
)
"""The names of those that a quick run is made of."""


def host_configurations(kinds: tuple[Kind, ...], tiny: Tiny) -> Iterator[CacheConfig]:
    """Every kind with write_through; the other policies, layouts, executors and thresholds where they matter."""
    for kind in kinds:
        for page_size in (1, 16):
            yield with_host(tiny(kind, page_size))
    for policy in (WritePolicy.WRITE_BACK, WritePolicy.WRITE_THROUGH_SELECTIVE):
        for kind, page_size in ((ALONE, 1), (ALONE, 16), (ALL, 16)):
            yield with_host(tiny(kind, page_size), policy=policy)
    mixed = replace(tiny(ALL, 16), layout=Layout.PAGE_FIRST_DIRECT)
    yield with_host(mixed, layout=Layout.LAYER_FIRST)
    yield with_host(replace(mixed, layout=Layout.PAGE_FIRST), layout=Layout.PAGE_FIRST_DIRECT)
    for kind in (ALONE, ALL):
        yield with_host(tiny(kind, 3), threshold_pages=THRESHOLD_PAGES)
    for kind in (ALONE, ((FULL, SWA), ()), ((FULL, MAMBA), ()), ALL):
        yield with_host(tiny(kind, 16), executor=ExecutorKind.THREADED)
    yield with_host(tiny(ALL, 16), policy=WritePolicy.WRITE_BACK, executor=ExecutorKind.THREADED)
    for kind in kinds:
        yield with_host(replace(tiny(kind, 16), device="cuda"), executor=ExecutorKind.STREAMS)


def with_host(
    config: CacheConfig,
    *,
    policy: WritePolicy = WritePolicy.WRITE_THROUGH,
    layout: Layout = Layout.PAGE_FIRST,
    executor: ExecutorKind = ExecutorKind.STEPPED,
    threshold_pages: int = 0,
) -> CacheConfig:
    """A configuration of the device tier with a host tier below it."""
    capacities = {name: pages * config.page_size for name, pages in HOST_PAGES.items()} | {MAMBA: HOST_STATES}
    host = HostConfig(
        capacity_tokens={name: capacities[name] for name in config.components},
        layout=layout,
        write_policy=policy,
        selective_hits=1,
        load_back_threshold_tokens=threshold_pages * config.page_size,
        executor=executor,
    )
    return replace(config, host=host)
