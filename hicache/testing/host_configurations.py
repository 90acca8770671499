"""The host tier of the standard configurations: write policies, layouts and executors with small host pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hicache.config import CacheConfig, ExecutorKind, HostConfig, Layout, WritePolicy
from hicache.types import Component, Pool

FULL, SWA, MAMBA = (component.value for component in Component)

Kind = tuple[tuple[str, ...], tuple[str, ...]]
"""Components, sidecars."""

Tiny = Callable[[Kind, int], CacheConfig]
"""Makes a small configuration of the device tier from a kind and a page size."""

HOST_PAGES = {FULL: 20, SWA: 12}
HOST_STATES = 5
"""Slightly less than on the device, so that both tiers soon run out of slots."""

THRESHOLD_PAGES = 2
"""The smallest number of FULL pages that is loaded back, in the configurations with a threshold."""

ALONE: Kind = ((FULL,), ())
ALL: Kind = ((FULL, SWA, MAMBA), (Pool.INDEXER.value,))
KINDS = (ALONE, ((FULL, SWA), ()), ((FULL, MAMBA), ()), ALL)
"""Each component with FULL, and all together with a sidecar."""

USUAL_LAYOUTS = (Layout.LAYER_FIRST, Layout.PAGE_FIRST)
"""The layouts of device and host in all configurations except those for other layouts."""

QUICK_HOST = frozenset(
    {
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-stepped",
        "full/page16/lru/write_back-page_first-stepped",
        "full+swa/page16/lru/write_through-page_first-stepped",
        "full+mamba/page16/lru/write_through-page_first-stepped",
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-threaded",
    }
)
"""The names of the configurations of a quick run."""


def host_configurations(tiny: Tiny) -> Iterator[CacheConfig]:
    """Every kind with write_through; other policies, layouts, executors and thresholds with some of the kinds."""
    for kind in KINDS:
        yield with_host(tiny(kind, 16))
    for kind in (ALONE, ALL):
        yield with_host(tiny(kind, 1))
        yield with_host(tiny(kind, 3), threshold_pages=THRESHOLD_PAGES)
        for policy in (WritePolicy.WRITE_BACK, WritePolicy.WRITE_THROUGH_SELECTIVE):
            yield with_host(tiny(kind, 16), policy=policy)
    mixed = replace(tiny(ALL, 16), layout=Layout.PAGE_FIRST_DIRECT)
    yield with_host(mixed, layout=Layout.LAYER_FIRST)
    yield with_host(replace(mixed, layout=Layout.PAGE_FIRST), layout=Layout.PAGE_FIRST_DIRECT)
    for kind in KINDS:
        yield with_host(tiny(kind, 16), executor=ExecutorKind.THREADED)
        yield with_host(replace(tiny(kind, 16), device="cuda"), executor=ExecutorKind.STREAMS)
    yield with_host(tiny(ALL, 16), policy=WritePolicy.WRITE_BACK, executor=ExecutorKind.THREADED)


def with_host(
    config: CacheConfig,
    *,
    policy: WritePolicy = WritePolicy.WRITE_THROUGH,
    layout: Layout = Layout.PAGE_FIRST,
    executor: ExecutorKind = ExecutorKind.STEPPED,
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
    )
    return replace(config, host=host)
