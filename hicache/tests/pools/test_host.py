"""HostPools: pages by component, taken all or nothing, with the bytes of every pool that follows them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hicache.config import Layout
from hicache.errors import ConfigurationError, SlotError
from hicache.pools.host import HostPools
from hicache.stacks import pool_specs
from hicache.tests.pools.two_tiers import FULL, HOST_PAGES, MAMBA, PAGE_SIZE, SWA, pages_of, two_tier_config
from hicache.types import PADDING_SLOT, Pool

CONFIG = two_tier_config()


@pytest.fixture
def pools() -> HostPools:
    return HostPools(CONFIG, pool_specs(CONFIG))


def free_pages(pools: HostPools) -> dict[str, int]:
    return {name: allocator.free_pages for name, allocator in pools.allocators.items()}


def test_each_component_has_its_own_pages(pools: HostPools) -> None:
    assert {name: pools.capacity_pages(name) for name in HOST_PAGES} == HOST_PAGES, "as large as configured"
    taken = pools.take({FULL: 2, MAMBA: 1})
    assert taken is not None, "the pools have room"
    assert {name: len(pages) for name, pages in taken.items()} == {FULL: 2, MAMBA: 1}, "so many as were asked for"
    assert PADDING_SLOT not in taken[FULL], "page 0 is padding"
    assert free_pages(pools) == HOST_PAGES | {FULL: HOST_PAGES[FULL] - 2, MAMBA: HOST_PAGES[MAMBA] - 1}, "no SWA page"
    for component, pages in taken.items():
        pools.free(component, pages)
    assert free_pages(pools) == HOST_PAGES, "POOL-1: everything was given back"


def test_what_does_not_fit_one_pool_is_taken_from_none(pools: HostPools) -> None:
    assert pools.take({FULL: 1, SWA: HOST_PAGES[SWA] + 1, MAMBA: 1}) is None, "POOL-3: SWA is short"
    assert free_pages(pools) == HOST_PAGES, "POOL-3: nothing was taken"


@pytest.mark.parametrize("pages", [[1, 1], [3], [0], [99]], ids=["twice", "free", "padding", "foreign"])
def test_a_refused_free_changes_nothing(pools: HostPools, pages: list[int]) -> None:
    taken = pools.take({FULL: 2})
    assert taken is not None, "the pools have room"
    with pytest.raises(SlotError):
        pools.free(FULL, pages_of(*pages))
    assert free_pages(pools)[FULL] == HOST_PAGES[FULL] - 2, "POOL-2: a refused free gives nothing back"


@pytest.mark.parametrize("layout", list(Layout))
def test_every_pool_is_on_the_host_in_the_hosts_layout(layout: Layout) -> None:
    config = two_tier_config(host_layout=layout)
    pools = HostPools(config, pool_specs(config))
    assert set(pools.buffers) == set(Pool), "a sidecar is on the host as well"
    for pool, buffers in pools.buffers.items():
        assert buffers.spec.layout is layout, f"{pool} is {buffers.spec.layout.value}"
    data = np.arange(PAGE_SIZE, dtype=np.uint8)[:, None] + np.zeros(16, dtype=np.uint8)
    slots = np.arange(3 * PAGE_SIZE, 4 * PAGE_SIZE, dtype=np.int64)
    pools.buffers[Pool.INDEXER].write(slots, 1, data)
    assert np.array_equal(pools.read(Pool.INDEXER, slots, 1), data), "HOST-8: the indexer has a place for each KV slot"


def test_a_cache_without_a_host_tier_has_no_host_pools() -> None:
    config = replace(CONFIG, host=None)
    with pytest.raises(ConfigurationError, match="host pools need host="):
        HostPools(config, pool_specs(config))
