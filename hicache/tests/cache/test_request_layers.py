"""A request that waits for its load-back may be computed layer by layer, as the layers arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hicache import RequestManager, UnifiedRadixCache
from hicache.pools.buffers import RawBytes
from hicache.request import Request
from hicache.runtime import Runtime
from hicache.tests.cache.pools.two_tiers import MAMBA, SWA, fill, pages_of, two_tier_config
from hicache.transfer.executors import StepExecutor
from hicache.transfer.job import Copier, CopyJob, CopyWorker
from hicache.types import Pool, Tokens, TransferKind

PREFIX = np.arange(1, 7, dtype=np.int32)
"""Two pages of tokens, with a state at their end."""

PROMPT: Tokens = np.append(PREFIX, np.int32(99))


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A cache whose load-backs move when a test says so, with the prefix on the host alone.

    `bytes`: by pool, those of the prefix: uint8 [layers, slots, slot_bytes], of the window and the state alone.
    """

    cache: UnifiedRadixCache
    requests: RequestManager
    loads: StepExecutor[CopyJob]
    bytes: dict[str, RawBytes]

    def waiting(self) -> Request:
        """A request that waits for the load-back of the prefix, which has not started."""
        request = self.requests.admit(PROMPT)
        assert request is not None, "there is room for one request"
        assert (request.is_ready, request.loading_tokens) == (False, len(PREFIX)), f"it waits for all of {PREFIX}"
        return request

    def read(self, request: Request) -> dict[str, RawBytes]:
        """The bytes of the prefix that a request reads, by pool."""
        pools, table = self.cache.pools, request.table[: len(PREFIX)]
        assert request.state is not None, "a cache with MAMBA gives each request a state"
        places = table % pools.page_size
        window = pools.partners(table[-pools.page_size :] // pools.page_size) * pools.page_size + places[-3:]
        slots = {SWA: window, MAMBA: pages_of(request.state)}
        return {
            pool: np.stack([one.read(slots.get(pool, table), layer) for layer in range(one.spec.layers)])
            for pool, one in pools.buffers.items()
        }


@pytest.fixture
def served() -> Iterator[Served]:
    executors: dict[TransferKind, StepExecutor[CopyJob]] = {}

    def open_copies(kind: TransferKind, copier: Copier) -> StepExecutor[CopyJob]:
        return executors.setdefault(kind, StepExecutor(CopyWorker(copier)))

    config = two_tier_config()
    with UnifiedRadixCache.open(config, replace(Runtime.of(config), open_copies=open_copies)) as cache:
        served = Served(cache, RequestManager(cache), executors[TransferKind.LOAD], {})
        first = served.requests.admit(PREFIX)
        assert first is not None, "the cache is empty"
        fill(cache.pools, seed=3)
        served.bytes.update(served.read(first))
        served.requests.finish(first)
        cache.drain()
        for component in config.components:
            cache.evict(component, 1000)
        fill(cache.pools, seed=4)
        yield served


def test_nothing_is_read_before_the_load_back_has_started(served: Served) -> None:
    request = served.waiting()
    assert not served.requests.wait_layer(request, 0), "HOST-6: the load-back waits for the next step"
    served.requests.abort(request)


def test_each_layer_is_there_when_its_wait_returns(served: Served) -> None:
    request = served.waiting()
    served.cache.step()
    assert served.cache.host is not None, "the cache has a host tier"
    for number, layer in enumerate(served.cache.host.order):
        assert served.requests.wait_layer(request, number), f"HOST-6: layer {number} has arrived"
        found = served.read(request)
        for pool, own in layer:
            assert np.array_equal(found[pool][own], served.bytes[pool][own]), f"HOST-6: {pool} in layer {number}"
        assert not request.is_ready, "FLOW-4: the load-back has not ended"
    served.requests.abort(request)


def test_a_wait_for_a_late_layer_brings_the_state_of_those_before(served: Served) -> None:
    request = served.waiting()
    served.cache.step()
    assert served.cache.host is not None, "the cache has a host tier"
    assert served.requests.wait_layer(request, served.cache.host.layers - 1), "the last layer has arrived"
    found = served.read(request)
    for pool in Pool:
        assert np.array_equal(found[pool], served.bytes[pool]), f"HOST-6: all layers of {pool}"
    served.requests.abort(request)


@pytest.mark.parametrize("layers", [0, 2, 6])
def test_a_state_that_was_computed_meanwhile_is_kept(served: Served, layers: int) -> None:
    request = served.waiting()
    served.cache.step()
    for layer in range(layers):
        served.requests.wait_layer(request, layer)
    assert request.state is not None, "a cache with MAMBA gives each request a state"
    states = served.cache.pools.buffers[Pool.MAMBA]
    computed = np.full((1, states.spec.slot_bytes), 7, dtype=np.uint8)
    states.write(pages_of(request.state), 0, computed)
    served.cache.drain()
    assert served.requests.resume(request), "FLOW-4: the load-back has ended"
    found = served.read(request)
    assert found.pop(Pool.MAMBA).tolist() == (computed[None] if layers == 6 else served.bytes[Pool.MAMBA]).tolist(), (
        "REQ-3: a request that has read all layers goes on from what it computed, another one from the cached state"
    )
    for pool, own in found.items():
        assert np.array_equal(own, served.bytes[pool]), f"REQ-3: {pool} after the load-back"
    assert served.cache.counters.states_copied == 1, "the state of the prefix was copied once"
    served.requests.finish(request)


@pytest.mark.parametrize("layers", [0, 3, 6])
def test_after_a_failure_the_request_is_computed_from_what_it_has(served: Served, layers: int) -> None:
    request = served.waiting()
    served.cache.step()
    for layer in range(layers):
        assert served.requests.wait_layer(request, layer), f"layer {layer} has arrived"
    if layers < 6:
        served.loads.fail(served.loads.pending()[0].number, parts_done=0)
        assert not served.requests.wait_layer(request, layers), "HOST-6: this layer never comes"
        served.cache.step()
        assert not served.requests.wait_layer(request, 0), "FLOW-3: what came is of no use"
        assert served.requests.resume(request), "REQ-5: there is room for the pages that did not come"
        assert request.computed_tokens == 0 < request.cached_tokens, "nothing of the prefix has come"
        assert served.requests.wait_layer(request, 0), "a request that waits for nothing reads what it has"
    else:
        served.cache.step()
        assert served.requests.resume(request), "FLOW-4: the load-back has ended"
        assert request.computed_tokens == request.cached_tokens, "all of it has come"
    served.requests.finish(request)


def test_a_window_that_comes_alone_is_waited_for_as_a_whole(served: Served) -> None:
    longer = served.requests.admit(np.arange(1, 14, dtype=np.int32))
    assert longer is not None, "there is room"
    served.cache.drain()
    assert served.requests.resume(longer), "the prefix is on the device again"
    served.requests.checkpoint(longer, 12)
    served.cache.drain()
    served.cache.evict(SWA, 1000)
    request = served.requests.admit(PROMPT)
    assert request is not None, "there is room"
    assert request.ticket is not None, "it waits for a load-back"
    moved = [set(transfer.moves) for transfer in request.ticket.transfers]
    assert moved == [{SWA, MAMBA}], f"the tree has the FULL pages: expected a window and a state alone, got {moved}"
    served.cache.step()
    assert not served.requests.wait_layer(request, 0), "HOST-6: pages of the tree get their window at the end"
    served.cache.drain()
    assert served.requests.wait_layer(request, 0), "HOST-6: it has ended"
    assert served.requests.resume(request), "FLOW-4: it has ended"
    served.requests.finish(request)
    served.requests.finish(longer)
