"""A cache without a model manages slots on every tier that it has, and holds no tensors."""

from __future__ import annotations

import numpy as np
import pytest

from hicache import HostConfig, Namespace, RequestManager, UnifiedRadixCache, open_cache
from hicache.errors import StaleHandleError
from hicache.tests.front.prompts import PAGE, PROMPT, insert_prompt, load_prompt_back

CAPACITY = 8 * PAGE


def _open() -> UnifiedRadixCache:
    return open_cache(page_size=PAGE, capacity_tokens=CAPACITY)


def test_a_number_is_the_capacity_of_full() -> None:
    with _open() as cache:
        assert cache.config.capacity_tokens == {"full": CAPACITY}, f"got {cache.config.capacity_tokens}"
        assert cache.config.components == ("full",), f"got {cache.config.components}"


def test_it_holds_no_tensors() -> None:
    with open_cache(page_size=PAGE, capacity_tokens=CAPACITY, host=HostConfig({"full": CAPACITY})) as cache:
        assert cache.host is not None, "it has a host tier"
        assert cache.pools.buffers == {}, f"on the device are buffers of {list(cache.pools.buffers)}"
        assert cache.host.pools.buffers == {}, f"on the host are buffers of {list(cache.host.pools.buffers)}"
        assert cache.host.pools.regions() == [], "there is host memory"


def test_it_matches_what_was_inserted() -> None:
    with _open() as cache:
        slots = insert_prompt(cache)
        found = cache.match(cache.key(np.append(PROMPT, PROMPT)))
        assert np.array_equal(found.device_indices, slots), f"expected {slots}, got {found.device_indices}"
        sizes = cache.sizes()["full"]
        assert (sizes.evictable, sizes.free) == (len(PROMPT), CAPACITY - len(PROMPT)), f"got {sizes}"


def test_it_evicts_what_no_lock_protects() -> None:
    with _open() as cache:
        insert_prompt(cache)
        receipt = cache.lock(cache.match(cache.key(PROMPT)).device_anchor)
        assert cache.evict("full", CAPACITY).freed == {"full": 0}, "a locked prompt was evicted"
        assert cache.allocate(CAPACITY) is None, "slots were allocated that a lock protects"
        cache.unlock(receipt)
        assert cache.evict("full", CAPACITY).freed == {"full": len(PROMPT)}, "the unlocked prompt stays"
        slots = cache.allocate(CAPACITY)
        assert slots is not None, "all slots are free"
        assert len(np.unique(slots)) == CAPACITY, f"slots were allocated twice: {slots}"
        assert slots.min() >= PAGE, f"slots of the padding page were allocated: {slots.min()}"


def test_its_slots_go_to_the_host_and_back() -> None:
    with open_cache(page_size=PAGE, capacity_tokens=CAPACITY, host=HostConfig({"full": CAPACITY})) as cache:
        insert_prompt(cache)
        cache.drain()
        assert cache.host_sizes()["full"].free == CAPACITY - len(PROMPT), f"got {cache.host_sizes()}"
        assert cache.evict("full", CAPACITY).freed == {"full": len(PROMPT)}, "what is on the host may be evicted"
        slots = load_prompt_back(cache)
        found = cache.match(cache.key(PROMPT))
        assert np.array_equal(found.device_indices, slots), f"expected {slots}, got {found.device_indices}"


def test_a_reset_frees_every_slot_and_refuses_old_nodes() -> None:
    with open_cache(page_size=PAGE, capacity_tokens=CAPACITY, host=HostConfig({"full": CAPACITY})) as cache:
        insert_prompt(cache)
        node = cache.match(cache.key(PROMPT)).best_match
        cache.drain()
        cache.reset()
        for sizes in (cache.sizes()["full"], cache.host_sizes()["full"]):
            assert sizes.free == CAPACITY, f"expected {CAPACITY} free slots after a reset, got {sizes}"
        with pytest.raises(StaleHandleError):
            cache.lock(node)


def test_a_hybrid_cache_manages_windows_and_states() -> None:
    capacity = {"full": CAPACITY, "swa": CAPACITY, "mamba": 4}
    with open_cache(
        components=("full", "swa", "mamba"),
        page_size=PAGE,
        capacity_tokens=capacity,
        sliding_window_size=2 * PAGE,
        mamba_chunk_size=PAGE,
        host=HostConfig(capacity),
    ) as cache:
        slots, state = cache.allocate(len(PROMPT)), cache.allocate_state()
        assert slots is not None, "the cache is empty"
        assert cache.insert(cache.key(PROMPT), slots, state).state_adopted, "the tree has no state here yet"
        cache.drain()
        freed = cache.evict("full", CAPACITY).freed
        assert freed == {"full": len(PROMPT), "swa": len(PROMPT), "mamba": 1}, f"got {freed}"
        load_prompt_back(cache)
        node = cache.match(cache.key(PROMPT)).device_anchor
        fork = cache.fork_state(node)
        assert fork not in (None, cache.state_of(node)), f"a request got the tree's own state {fork}"


def test_no_namespace_is_the_empty_namespace() -> None:
    with _open() as cache:
        assert cache.key(PROMPT) == cache.key(PROMPT, None) == cache.key(PROMPT, Namespace()), "three keys of one kind"
        insert_prompt(cache)
        shared, other = Namespace(), Namespace(tenant="a")
        assert len(cache.match(cache.key(PROMPT, shared)).device_indices) == len(PROMPT), "one namespace, two trees"
        assert len(cache.match(cache.key(PROMPT, other)).device_indices) == 0, "another namespace was served"


def test_requests_without_a_namespace_share_their_prefix() -> None:
    with _open() as cache:
        requests = RequestManager(cache)
        first = requests.admit(PROMPT)
        assert first is not None, "the cache is empty"
        requests.finish(first)
        second = requests.admit(np.append(PROMPT, np.int32(9)), Namespace())
        assert second is not None, "the cache has room"
        assert second.cached_tokens == len(PROMPT), f"expected {len(PROMPT)} cached tokens, got {second.cached_tokens}"
