"""With a model a cache allocates pools, or takes the tensors that the caller owns; every byte survives every tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hicache import (
    BufferShape,
    Follows,
    HostConfig,
    Layout,
    ModelShape,
    PoolShape,
    StopPolicy,
    StorageConfig,
    UnifiedRadixCache,
    open_cache,
)
from hicache.errors import ConfigurationError, PoolMismatchError
from hicache.tests.front.prompts import KV, KV_ONLY, PAGE, PROMPT, erase, fill, insert_prompt, load_prompt_back, read

CAPACITY = 8 * PAGE
PAGES = 1 + CAPACITY // PAGE
SIDECARS = ModelShape(
    (
        KV,
        PoolShape("summary", Follows.EVERY_PAGE, 3, (BufferShape("mean", (5,), "float16"),), tokens_per_entry=4),
        PoolShape(
            "index", Follows.EVERY_PAGE, 2, (BufferShape("key", (3,), "int8"), BufferShape("scale", (1,), "float32"))
        ),
    )
)


def _tensor(dtype: torch.dtype = torch.float32, pages: int = PAGES, device: str = "cpu") -> torch.Tensor:
    """A tensor as an engine would allocate it for KV_ONLY: [layers, pages, page size, K and V, heads, elements]."""
    return torch.zeros(2, pages, PAGE, 2, 2, 4, dtype=dtype, device=device)


def _open(tensors: Any = None, **changes: Any) -> UnifiedRadixCache:
    fields: dict[str, Any] = {"model": KV_ONLY, "host": HostConfig({"full": CAPACITY})} | changes
    return open_cache(page_size=PAGE, capacity_tokens=CAPACITY, tensors=tensors, **fields)


def test_pools_are_allocated() -> None:
    with _open(model=SIDECARS) as cache:
        assert list(cache.pools.buffers) == ["kv", "summary", "index"], f"got {list(cache.pools.buffers)}"
        for name, shape in {"kv": (PAGES, PAGE, 2, 2, 4), "summary": (PAGES, PAGE // 4, 5)}.items():
            view = cache.pools.buffers[name].layer_view(0, 1)
            assert view.shape == shape, f"a layer of {name}: expected {shape}, got {tuple(view.shape)}"
            assert not view.any(), f"{name} has other bytes than 0"


def test_the_callers_tensor_is_the_pool() -> None:
    kv = _tensor()
    with _open({"kv": [kv]}) as cache:
        layers = [cache.pools.buffers["kv"].layer_view(0, layer) for layer in range(2)]
        for layer, view in enumerate(layers):
            assert view.data_ptr() == kv[layer].data_ptr(), f"layer {layer} is a copy"


def test_what_the_engine_writes_is_backed_up_and_loaded_back() -> None:
    kv = _tensor()
    with _open({"kv": [kv]}) as cache:
        assert cache.host is not None, "it has a host tier"
        by_slot = kv.view(2, PAGES * PAGE, 2, 2, 4)
        slots = torch.from_numpy(insert_prompt(cache))
        written = torch.randn(2, len(PROMPT), 2, 2, 4)
        by_slot[:, slots] = written
        cache.drain()
        cache.evict("full", CAPACITY)
        kv.fill_(1)
        # Other slots than before: what is read below was loaded back there.
        other = cache.allocate(PAGE)
        loaded = load_prompt_back(cache)
        assert other is not None, "all slots were free"
        assert not np.array_equal(loaded, slots), f"the prompt is at the same slots {loaded}"
        found = by_slot[:, torch.from_numpy(loaded)]
        assert torch.equal(found, written), "the bytes that came back are not those that the engine wrote"
        assert torch.all(by_slot[:, torch.from_numpy(other)] == 1), "a load-back wrote to slots of a request"


def test_the_callers_tensors_may_be_those_of_some_pools() -> None:
    index = [torch.zeros(2, PAGES, PAGE, 3, dtype=torch.int8), torch.zeros(2, PAGES, PAGE, 1)]
    with _open({"index": index}, model=SIDECARS) as cache:
        pools = cache.pools.buffers
        views = [pools["index"].layer_view(number, 0) for number in range(2)]
        assert [view.data_ptr() for view in views] == [own.data_ptr() for own in index], "the tensors were copied"
        assert pools["kv"].raw[0].numel() == _tensor().nbytes, "the pool that was not given is allocated"


EXPECTED = rf"must be \(torch.float32, 'cpu', {2 * PAGES * PAGE * 64}, True\), got "
REFUSED = {
    "another dtype": (
        lambda: _tensor(torch.float16),
        rf"pool 'kv', buffer 'kv': .*{EXPECTED}\(torch.float16, 'cpu', {PAGES * PAGE * 64}, True\)",
    ),
    "no padding page": (
        lambda: _tensor(pages=PAGES - 1),
        rf"{EXPECTED}\(torch.float32, 'cpu', {2 * (PAGES - 1) * PAGE * 64}, True\)",
    ),
    "another device": (lambda: _tensor(device="meta"), rf"{EXPECTED}\(torch.float32, 'meta', "),
    "not contiguous": (lambda: _tensor().transpose(0, 1), rf"{EXPECTED}.*False\)"),
}


@pytest.mark.parametrize(("tensor", "message"), REFUSED.values(), ids=REFUSED)
def test_another_tensor_is_refused(tensor: Any, message: str) -> None:
    with pytest.raises(PoolMismatchError, match=message):
        _open({"kv": [tensor()]})


def test_tensors_of_another_number_are_refused() -> None:
    with pytest.raises(PoolMismatchError, match="pool 'kv' has 1 buffers, 2 tensors came"):
        _open({"kv": [_tensor(), _tensor()]})


@pytest.mark.parametrize(("model", "pools"), [(KV_ONLY, r"\['kv'\]"), (None, r"\[\]")], ids=["model", "no model"])
def test_tensors_of_another_pool_are_refused(model: ModelShape | None, pools: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"tensors are given for pools \['swa'\], the cache has {pools}"):
        _open({"swa": [_tensor()]}, model=model)


@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
def test_sidecars_survive_the_host(layout: Layout) -> None:
    with _open(model=SIDECARS, host=HostConfig({"full": CAPACITY}, layout=layout)) as cache:
        fill(cache.pools, slots := insert_prompt(cache))
        written = read(cache.pools, slots)
        cache.drain()
        cache.evict("full", CAPACITY)
        erase(cache.pools)
        found = read(cache.pools, load_prompt_back(cache))
    for name, expected in written.items():
        assert expected.all(), f"{name}: the bytes that were written are not all other than 0"
        assert np.array_equal(found[name], expected), f"{name}: other bytes came back from the host"


@pytest.mark.parametrize("backend", ["file", "slotfile"])
def test_sidecars_survive_a_restart(backend: str, tmp_path: Path) -> None:
    options = {"root": str(tmp_path)} | ({"capacity_slots": 64} if backend == "slotfile" else {})
    storage = StorageConfig(
        backend, model="org/name@1", options=options, prefetch_threshold=PAGE, stop_policy=StopPolicy.WAIT_COMPLETE
    )
    with _open(model=SIDECARS, storage=storage) as cache:
        fill(cache.pools, slots := insert_prompt(cache))
        written = read(cache.pools, slots)
        cache.drain()
    with _open(model=SIDECARS, storage=storage) as cache:
        operation = cache.prefetch(cache.key(PROMPT))
        assert operation is not None, "the prompt is longer than the threshold"
        cache.drain()
        came_tokens = cache.check_prefetch(operation)
        assert came_tokens == len(PROMPT), f"expected {len(PROMPT)} tokens from storage, got {came_tokens}"
        found = read(cache.pools, load_prompt_back(cache))
    for name, expected in written.items():
        assert np.array_equal(found[name], expected), f"{name}: other bytes came back from storage"
