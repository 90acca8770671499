"""POOL-8: dtype, layers and layout of a pool, as far as an adapter shows them: pools and layers do not overlap.

That a copy between different pools raises cannot be tested through an adapter, whose copies stay within one pool. It
is left to the tests of each implementation.
"""

from __future__ import annotations

import numpy as np
import pytest

from hicache.config import Layout
from hicache.testing.adapter import CacheAdapter, Capability, PageBytes
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import TINY_INDEX_DIM, TINY_MODEL, reshaped
from hicache.types import Pool, Slots

from .scenario import evict_all, find, key_of, open_standard, put

NAME = "full+swa+mamba+indexer/page16/lru"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NEEDS = [Capability.PAGED, Capability.SWA, Capability.MAMBA, Capability.INDEXER]


@clause("POOL-8", needs=NEEDS)
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_bytes_come_back_from_each_kind_of_pool(adapter_type: type[CacheAdapter], dtype: str, layout: Layout) -> None:
    driver = open_standard(
        adapter_type, NAME, layout=layout, model=reshaped(TINY_MODEL, dtype=dtype, index_dim=TINY_INDEX_DIM)
    )
    put(driver, [1, 2])
    put(driver, [1, 2, 3])
    put(driver, [4])
    for pages in ([1, 2], [1, 2, 3], [4]):
        driver.verify_state(key_of(driver, pages), driver.match(key_of(driver, pages)))
        find(driver, pages)
    evict_all(driver)
    put(driver, [5, 6])
    driver.check()


@clause("POOL-8", needs=NEEDS)
@pytest.mark.parametrize("pool", list(Pool))
def test_a_pool_is_as_large_as_its_dtype_and_layers_say(adapter_type: type[CacheAdapter], pool: Pool) -> None:
    model = reshaped(TINY_MODEL, full_layers=3, swa_layers=2, mamba_layers=1, index_dim=TINY_INDEX_DIM)
    layers = {Pool.KV: 3, Pool.SWA: 2, Pool.MAMBA: 1, Pool.INDEXER: 3}
    bytes_by_dtype = {}
    for dtype in DTYPE_BYTES:
        driver = open_standard(adapter_type, NAME, model=reshaped(model, dtype=dtype))
        assert driver.adapter.layers(pool) == layers[pool], (
            f"POOL-8: {pool.value} has {driver.adapter.layers(pool)} layers"
        )
        bytes_by_dtype[dtype] = driver.adapter.slot_bytes(pool)
    assert bytes_by_dtype["bfloat16"] == bytes_by_dtype["float16"], f"POOL-8: two bytes each: {bytes_by_dtype}"
    assert bytes_by_dtype["bfloat16"] < bytes_by_dtype["float32"], f"POOL-8: two bytes and four: {bytes_by_dtype}"


@clause("POOL-8", needs=NEEDS)
def test_layers_of_a_pool_do_not_overlap(adapter_type: type[CacheAdapter]) -> None:
    for layout in Layout:
        driver = open_standard(adapter_type, NAME, layout=layout)
        slots = driver.allocate(2 * driver.config.page_size)
        assert slots is not None, "POOL-3: an empty cache has room for two pages"
        for layer in range(driver.adapter.layers(Pool.KV)):
            driver.adapter.write(Pool.KV, slots, layer, _filled(driver, slots, layer + 1))
        for layer in range(driver.adapter.layers(Pool.KV)):
            found = driver.adapter.read(Pool.KV, slots, layer)
            assert (found == layer + 1).all(), (
                f"POOL-8: {layout.value}: layer {layer} holds {np.unique(found).tolist()}"
            )


@clause("POOL-8", needs=NEEDS)
def test_two_caches_share_no_byte(adapter_type: type[CacheAdapter]) -> None:
    drivers = [open_standard(adapter_type, NAME, layout=layout) for layout in (Layout.LAYER_FIRST, *Layout)]
    slots = [driver.allocate(driver.config.page_size) for driver in drivers]
    for number, (driver, own) in enumerate(zip(drivers, slots, strict=True), start=1):
        assert own is not None, "POOL-3: an empty cache has room for a page"
        driver.adapter.write(Pool.KV, own, 0, _filled(driver, own, number))
    for number, (driver, own) in enumerate(zip(drivers, slots, strict=True), start=1):
        assert own is not None, "POOL-3: an empty cache has room for a page"
        found = driver.adapter.read(Pool.KV, own, 0)
        assert (found == number).all(), f"POOL-8: cache {number} holds bytes {np.unique(found).tolist()}"


def _filled(driver: Driver, slots: Slots, value: int) -> PageBytes:
    return np.full((len(slots), driver.adapter.slot_bytes(Pool.KV)), value, dtype=np.uint8)
