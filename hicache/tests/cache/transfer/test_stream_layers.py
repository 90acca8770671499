"""Layers on CUDA streams: what a request may read while its load-back runs, and that nothing waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hicache import RequestManager, UnifiedRadixCache
from hicache.config import IoBackend, Layout
from hicache.testing.cuda.model import CudaModel
from hicache.tests.cache.pools.two_tiers import LOADED, fill, job_of, pages_of, two_tier_config
from hicache.tests.cache.transfer.gpu import OF_CACHE, Gpu
from hicache.types import Pool, TransferKind

PREFIX = np.arange(1, 7, dtype=np.int32)
"""Two pages of tokens, with a state at their end."""


@pytest.fixture
def cuda() -> Iterator[CudaModel]:
    model = CudaModel()
    with model.installed():
        yield model


@pytest.mark.parametrize("broken", [None, 0, 3])
def test_layers_may_be_read_of_a_job_that_was_queued_as_a_whole(cuda: CudaModel, broken: int | None) -> None:
    load = job_of(TransferKind.LOAD, LOADED, 2)
    gpu = Gpu.on(cuda, broken=None if broken is None else (load.number, broken))
    gpu.loads.submit(load)
    may_read = [gpu.loads.wait_layer(load.number, layer) for layer in range(len(gpu.tiers.order))]
    assert set(may_read) == {broken is None}, f"HOST-6: layer {broken} was not queued, got {may_read}"
    gpu.close()


def device_of(io_backend: IoBackend) -> UnifiedRadixCache:
    """A cache on the model, with every component, whose bytes cross in one way."""
    config = two_tier_config(host_layout=Layout.PAGE_FIRST_DIRECT, device=str(OF_CACHE), io_backend=io_backend)
    return UnifiedRadixCache.open(config)


@pytest.mark.parametrize("io_backend", list(IoBackend))
def test_a_request_is_computed_while_it_loads_and_the_host_waits_for_nothing(
    cuda: CudaModel, io_backend: IoBackend
) -> None:
    with device_of(io_backend) as cache:
        requests, states = RequestManager(cache), cache.pools.buffers[Pool.MAMBA]
        first = requests.admit(PREFIX)
        assert first is not None, "the cache is empty"
        assert first.state is not None, "a cache with MAMBA gives each request a state"
        fill(cache.pools, seed=3)
        expected = [states.read(pages_of(first.state), layer) for layer in range(states.spec.layers)]
        requests.finish(first)
        cache.drain()
        for component in cache.config.components:
            cache.evict(component, 1000)
        request = requests.admit(np.append(PREFIX, np.int32(99)))
        assert request is not None, "there is room"
        assert request.state is not None, "a cache with MAMBA gives each request a state"
        assert cache.host is not None, "it has a host tier"
        torch.cuda.synchronize(OF_CACHE)
        cuda.waits.clear()
        cache.step()
        assert all(requests.wait_layer(request, layer) for layer in range(cache.host.layers)), "HOST-6: all are queued"
        assert not cuda.waits, f"the stream of the model waits, not the host, got {cuda.waits}"
        found = [states.read(pages_of(request.state), layer) for layer in range(states.spec.layers)]
        assert np.array_equal(found, expected), "HOST-6: the state of the prefix, in the request's own slot"
        cache.drain()
        assert requests.resume(request), "FLOW-4: the load-back has ended"
        requests.finish(request)
    cuda.require_no_races()
