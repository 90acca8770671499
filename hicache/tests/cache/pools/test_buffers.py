"""PoolBuffers: bytes in every dtype and layout, and copies between like pools only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache.config import Layout
from hicache.pools.buffers import BufferSpec, PoolBuffers, PoolSpec, RawBytes
from hicache.types import Component, Pool, Slots

PAGES, PAGE_SIZE, LAYERS = 4, 3, 2
SLOTS = np.array([3, 4, 5, 9, 10, 11], dtype=np.int64)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8], ids=str)
LAYOUTS = pytest.mark.parametrize("layout", list(Layout))
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])


def spec_of(dtype: torch.dtype, layout: Layout) -> PoolSpec:
    buffers = (BufferSpec("k", (2, 4), dtype), BufferSpec("v", (5,), dtype))
    return PoolSpec(Pool.KV, Component.FULL, LAYERS, buffers, layout, tokens_per_entry=1)


def open_pool(spec: PoolSpec, pages: int = PAGES, page_size: int = PAGE_SIZE, device: str = "cpu") -> PoolBuffers:
    return PoolBuffers(spec, pages, page_size, device)


def some_bytes(pool: PoolBuffers, slots: Slots, seed: int) -> RawBytes:
    return np.random.default_rng(seed).integers(0, 256, (len(slots), pool.spec.slot_bytes), dtype=np.uint8)


@DTYPES
@LAYOUTS
@DEVICES
def test_what_was_written_is_read_bit_by_bit(dtype: torch.dtype, layout: Layout, device: str) -> None:
    pool = open_pool(spec_of(dtype, layout), device=device)
    written = [some_bytes(pool, SLOTS, layer) for layer in range(LAYERS)]
    for layer, data in enumerate(written):
        pool.write(SLOTS, layer, data)
    for layer, data in enumerate(written):
        assert np.array_equal(pool.read(SLOTS, layer), data), f"layer {layer} of {dtype}, {layout.value}"
        assert np.array_equal(pool.read(SLOTS[::-1].copy(), layer), data[::-1]), "slots are read in the order asked for"


@LAYOUTS
def test_only_the_named_slots_are_written(layout: Layout) -> None:
    pool = open_pool(spec_of(torch.float32, layout))
    pool.write(SLOTS, 1, some_bytes(pool, SLOTS, 0) | np.uint8(1))
    others = np.setdiff1d(np.arange(PAGES * PAGE_SIZE, dtype=np.int64), SLOTS)
    assert not pool.read(others, 1).any(), f"slots {others.tolist()} were written too"
    assert not pool.read(np.arange(PAGES * PAGE_SIZE, dtype=np.int64), 0).any(), "layer 0 was written too"


@LAYOUTS
def test_a_layer_view_shares_its_memory_with_the_pool(layout: Layout) -> None:
    pool = open_pool(spec_of(torch.uint8, layout))
    view = pool.layer_view(1, 0)
    assert view.shape == (PAGES, PAGE_SIZE, 5), f"the second buffer has 5 elements a slot, got {view.shape}"
    view[...] = 7
    assert (pool.read(SLOTS, 0)[:, 8:] == 7).all(), "the second buffer of layer 0 was filled through its view"
    assert not pool.read(SLOTS, 1).any(), "layer 1 was not"


ORDERS = {
    Layout.LAYER_FIRST: lambda page, place, layer: (layer * PAGES + page) * PAGE_SIZE + place,
    Layout.PAGE_FIRST: lambda page, place, layer: (page * PAGE_SIZE + place) * LAYERS + layer,
    Layout.PAGE_FIRST_DIRECT: lambda page, place, layer: (page * LAYERS + layer) * PAGE_SIZE + place,
}


@LAYOUTS
def test_a_layout_is_an_order_in_memory(layout: Layout) -> None:
    buffers = (BufferSpec("kv", (8,), torch.uint8),)
    pool = open_pool(PoolSpec(Pool.KV, Component.FULL, LAYERS, buffers, layout, tokens_per_entry=1))
    page, place, layer = 2, 1, 1
    pool.raw[0][page, layer, place] = 1
    memory = pool.raw[0].as_strided((LAYERS * PAGES * PAGE_SIZE * 8,), (1,))
    found = torch.nonzero(memory)[:, 0].tolist()
    first = 8 * ORDERS[layout](page, place, layer)
    assert found == list(range(first, first + 8)), f"{layout.value}: place {place} of page {page} in layer {layer}"


@pytest.mark.parametrize(
    "wrong", [np.zeros((1, 52), np.uint8), np.zeros((6, 51), np.uint8), np.zeros((6, 52), np.int8)]
)
def test_data_of_another_shape_is_refused(wrong: RawBytes) -> None:
    pool = open_pool(spec_of(torch.float32, Layout.LAYER_FIRST))
    with pytest.raises(ValueError, match=r"expected uint8 \(6, 52\)"):
        pool.write(SLOTS, 0, wrong)


@DTYPES
@LAYOUTS
@DEVICES
def test_a_copied_page_has_every_buffer_and_layer(dtype: torch.dtype, layout: Layout, device: str) -> None:
    pool = open_pool(spec_of(dtype, layout), device=device)
    for layer in range(LAYERS):
        pool.write(SLOTS, layer, some_bytes(pool, SLOTS, layer))
    every = np.arange(PAGES * PAGE_SIZE, dtype=np.int64)
    expected = [pool.read(every, layer) for layer in range(LAYERS)]
    pool.copy_page(3, 2)
    for layer, own in enumerate(expected):
        own[2 * PAGE_SIZE : 3 * PAGE_SIZE] = own[3 * PAGE_SIZE : 4 * PAGE_SIZE]
        assert np.array_equal(pool.read(every, layer), own), f"page 3 was copied to page 2, and nothing else: {layer}"
