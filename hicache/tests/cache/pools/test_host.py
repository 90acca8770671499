"""HostPools: pages by component, taken all or nothing, the bytes of every pool that follows them, and pinned memory."""

from __future__ import annotations

import gc
from copy import copy
from dataclasses import replace
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hicache.cache import UnifiedRadixCache
from hicache.config import Layout, Topology
from hicache.errors import ConfigurationError, PinningError, SlotError
from hicache.pools.host import HostPools, runtime_for
from hicache.runtime import Runtime
from hicache.stacks import pool_specs
from hicache.testing.cuda.model import CudaModel
from hicache.tests.cache.pools.two_tiers import (
    FULL,
    HOST_PAGES,
    MAMBA,
    MODEL,
    PAGE_SIZE,
    SWA,
    pages_of,
    stored_config,
    two_tier_config,
)
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


# POOL-6: host memory is pinned where there is a GPU, and a refusal is never ignored.


def is_mapped(pointer: int) -> bool:
    """Whether this process has memory at an address."""
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(start, 16) <= pointer < int(end, 16) for start, end in ranges)


class FakeCudaRuntime:
    """Pins memory in a dictionary.

    `refused`: which registration fails, counted from 0. `calls`: registrations. `pinned`: sizes by pointer, in order.
    `unmapped`: pointers whose memory was given back to the system before it was unpinned.
    `last_error`: of the last call that failed, until it is read: the next kernel of the model fails with it.
    """

    def __init__(self, refused: int | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self.unmapped: list[int] = []
        self.last_error = 0
        self._refused = refused
        self.calls = 0

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:  # noqa: N802
        """Pin memory that shares no memory page with what is pinned already."""
        self.calls += 1
        if self.calls - 1 == self._refused:
            return self._failed(2)
        assert pointer not in self.pinned, f"{pointer} is pinned already"
        self.pinned[pointer] = size
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:  # noqa: N802
        """Unpin memory, or 713 when it is not pinned."""
        if not is_mapped(pointer):
            self.unmapped.append(pointer)
        return 0 if self.pinned.pop(pointer, None) else self._failed(713)

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        """CUDA's own words."""
        return {2: "out of memory", 713: "part or all of the requested memory range is not mapped"}[error]

    def cudaGetLastError(self) -> int:  # noqa: N802
        """The last error, once."""
        error, self.last_error = self.last_error, 0
        return error

    def _failed(self, error: int) -> int:
        self.last_error = error
        return error


TENSORS = 5
"""KV, SWA and the indexer have one each, MAMBA has two."""


def test_every_tensor_is_pinned_as_a_whole_until_the_end() -> None:
    runtime = FakeCudaRuntime()
    pools = HostPools(CONFIG, pool_specs(CONFIG))
    pools.pin(runtime)
    sizes = sorted(raw.numel() for buffers in pools.buffers.values() for raw in buffers.raw)
    assert len(sizes) == TENSORS, f"{TENSORS} tensors were expected, got {len(sizes)}"
    assert sorted(runtime.pinned.values()) == sizes, "POOL-6: each tensor is one registration, and nothing else is"
    assert all(pointer % PAGESIZE == 0 for pointer in runtime.pinned), "no two tensors share a page of memory"
    pools.close()
    assert not runtime.pinned, f"after the end nothing is pinned, but {runtime.pinned} are"
    pools.close()


def test_pools_that_nobody_closes_are_unpinned_while_their_memory_is_there() -> None:
    runtime = FakeCudaRuntime()
    pools = HostPools(CONFIG, pool_specs(CONFIG))
    pools.pin(runtime)
    assert len(runtime.pinned) == TENSORS, f"{TENSORS} tensors were expected, got {runtime.pinned}"
    del pools
    gc.collect()
    assert not runtime.pinned, f"POOL-6: the pools cannot be closed any more, and pinned are {runtime.pinned}"
    assert runtime.unmapped == [], f"POOL-6: memory was unmapped before it was unpinned: {runtime.unmapped}"


@pytest.mark.parametrize("refused", range(TENSORS))
def test_a_refused_registration_raises_with_cudas_words_and_pins_nothing(refused: int) -> None:
    runtime = FakeCudaRuntime(refused)
    pools = HostPools(CONFIG, pool_specs(CONFIG))
    with pytest.raises(PinningError, match=r"cudaHostRegister of \d+ bytes failed with CUDA error 2: out of memory"):
        pools.pin(runtime)
    assert not runtime.pinned, f"POOL-6: what was pinned before the refusal is given back, but {runtime.pinned} are not"
    assert not runtime.last_error, f"POOL-6: the next kernel of the model would fail with error {runtime.last_error}"


def test_memory_that_cannot_be_unpinned_raises_after_the_rest_was() -> None:
    runtime = FakeCudaRuntime()
    pools = HostPools(CONFIG, pool_specs(CONFIG))
    pools.pin(runtime)
    runtime.pinned.pop(next(iter(runtime.pinned)))
    with pytest.raises(PinningError, match="cudaHostUnregister failed with CUDA error 713: part or all of"):
        pools.close()
    assert not runtime.pinned, f"the other tensors are unpinned, but {runtime.pinned} are not"
    assert not runtime.last_error, f"the next kernel of the model would fail with error {runtime.last_error}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
def test_a_kernel_does_not_fail_with_the_error_of_a_refused_registration() -> None:
    pools, runtime = HostPools(CONFIG, pool_specs(CONFIG)), runtime_for("cuda")
    pools.pin(runtime)
    with pytest.raises(PinningError, match=r"cudaHostRegister of \d+ bytes failed with CUDA error 712"):
        HostPools.pin(copy(pools), runtime)
    assert torch.ones(1, device="cuda").item() == 1, "POOL-6: a kernel after the refusal"
    pools.close()


def test_a_refusal_is_told_where_torch_hides_the_runtime() -> None:
    with CudaModel().installed():
        pools, runtime = HostPools(CONFIG, pool_specs(CONFIG)), runtime_for("cuda")
        pools.pin(runtime)
        with pytest.raises(PinningError, match="failed with CUDA error 712: already registered"):
            HostPools.pin(copy(pools), runtime)
        pools.close()


@pytest.mark.parametrize("failing", ["open_copies", "open_storage", "open_backend"])
def test_what_was_pinned_is_given_back_when_the_opening_fails_later(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no thread can be started")

    cuda, config, broken = FakeCudaRuntime(), stored_config(), dict[str, Any]({failing: fail})
    monkeypatch.setattr("hicache.opening.runtime_for", lambda _: cuda)
    with pytest.raises((OSError, ConfigurationError), match="no thread can be started"):
        UnifiedRadixCache.open(config, replace(Runtime.of(config), **broken))
    assert cuda.calls == TENSORS, f"expected {TENSORS} registrations before {failing} failed, got {cuda.calls}"
    assert not cuda.pinned, f"POOL-6: the cache cannot be closed, and {cuda.pinned} are pinned"


def test_a_pool_without_layers_needs_no_pinning() -> None:
    runtime = FakeCudaRuntime()
    one = replace(MODEL.pools[2], layers=1)
    config = replace(
        CONFIG,
        model=replace(MODEL, pools=(*MODEL.pools[:2], one, *MODEL.pools[3:])),
        topology=Topology(pp_rank=1, pp_size=2),
    )
    pools = HostPools(config, pool_specs(config))
    pools.pin(runtime)
    assert len(runtime.pinned) == TENSORS - 2, f"CUDA refuses empty memory, got {runtime.pinned}"
    pools.close()


def test_without_a_gpu_nothing_is_pinned() -> None:
    assert runtime_for("cpu") is None, "POOL-6: memory is pinned for a GPU only"
