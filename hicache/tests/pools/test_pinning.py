"""POOL-6: host memory is pinned where there is a GPU, and a refusal is never ignored."""

from __future__ import annotations

from dataclasses import replace
from mmap import PAGESIZE

import pytest

from hicache.errors import PinningError
from hicache.pools.host import HostPools, runtime_for
from hicache.stacks import pool_specs
from hicache.tests.pools.cuda_runtime import FakeCudaRuntime
from hicache.tests.pools.two_tiers import MODEL, two_tier_config

CONFIG = two_tier_config()
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


@pytest.mark.parametrize("refused", range(TENSORS))
def test_a_refused_registration_raises_with_cudas_words_and_pins_nothing(refused: int) -> None:
    runtime = FakeCudaRuntime(refused)
    with pytest.raises(PinningError, match=r"cudaHostRegister of \d+ bytes failed with CUDA error 2: out of memory"):
        HostPools(CONFIG, pool_specs(CONFIG)).pin(runtime)
    assert not runtime.pinned, f"POOL-6: what was pinned before the refusal is given back, but {runtime.pinned} are not"


def test_memory_that_cannot_be_unpinned_raises_after_the_rest_was() -> None:
    runtime = FakeCudaRuntime()
    pools = HostPools(CONFIG, pool_specs(CONFIG))
    pools.pin(runtime)
    runtime.pinned.pop(next(iter(runtime.pinned)))
    with pytest.raises(PinningError, match="cudaHostUnregister failed with CUDA error 713: part or all of"):
        pools.close()
    assert not runtime.pinned, f"the other tensors are unpinned, but {runtime.pinned} are not"


def test_a_pool_without_layers_needs_no_pinning() -> None:
    runtime = FakeCudaRuntime()
    without = replace(MODEL.pools[2], layers=0)
    config = replace(CONFIG, model=replace(MODEL, pools=(*MODEL.pools[:2], without, *MODEL.pools[3:])))
    HostPools(config, pool_specs(config)).pin(runtime)
    assert len(runtime.pinned) == TENSORS - 2, f"CUDA refuses empty memory, got {runtime.pinned}"


def test_without_a_gpu_nothing_is_pinned() -> None:
    assert runtime_for("cpu") is None, "POOL-6: memory is pinned for a GPU only"
