"""POOL: slots are allocated, owned and freed once, with what follows them in other pools."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hicache.config import ExecutorKind, Layout
from hicache.testing.adapter import CacheAdapter, Capability, PageBytes
from hicache.testing.contract import clause
from hicache.testing.driving.pools import rows
from hicache.testing.hybrid_model import TINY_INDEX_DIM, TINY_MODEL, reshaped
from hicache.types import PADDING_SLOT, Pool, Sizes, Slots

from .scenario import FULL, MAMBA, SWA, Scenario, open_standard
from .snapshot_values import device_ownership, free_slots, snapshot_values

# POOL-1, POOL-2, POOL-4: every slot has one owner, is allocated in whole pages, and is freed once.


@clause("POOL-1", bigram=True)
def test_free_and_cached_slots_make_up_the_pool(driver: Scenario) -> None:
    pool = free_slots(driver.snapshot())
    driver.put_pages([1, 2, 3])
    driver.put_pages([1, 2, 4])
    receipt = driver.lock_pages([1, 2, 4])
    driver.evict_all()
    driver.unlock(receipt)
    snapshot = driver.snapshot()
    for component, free in free_slots(snapshot).items():
        cached = [slot for node in snapshot.nodes for slot in _slots_of(node.slots[component])]
        assert cached, f"POOL-1: {component} of the locked prompt is cached"
        assert sorted([*cached, *free]) == sorted(pool[component]), f"POOL-1: {component}: cached {cached}, free {free}"


@clause("POOL-1", bigram=True)
def test_all_slots_are_free_again_at_the_end(driver: Scenario) -> None:
    pool = free_slots(driver.snapshot())
    held = driver.allocate(2 * driver.config.page_size)
    assert held is not None, "POOL-3: an empty cache has room for two pages"
    driver.put_pages([1, 2, 3])
    driver.put_pages([1, 4])
    driver.free(held)
    driver.evict_all()
    left = free_slots(driver.snapshot())
    assert left == pool, f"POOL-1: expected {pool} to be free, got {left}"


@clause("POOL-1", needs=[Capability.REQUESTS, Capability.PAGED], bigram=True)
def test_requests_that_share_a_part_of_a_page_own_no_page_together(driver: Scenario) -> None:
    pool = free_slots(driver.snapshot())
    tokens = [*driver.prompt([1]), *driver.prompt([2])[: driver.config.page_size // 2]]
    running = [driver.admit(driver.key([*tokens, *tail])) for tail in ([], [7], [8])]
    for admission in running:
        assert admission is not None, "REQ-5: three short requests fit an empty cache"
        driver.finish(admission.request)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    left = free_slots(driver.snapshot())
    assert left == pool, f"POOL-1: expected {pool} to be free, got {left}"


@clause("POOL-1", needs=[Capability.SIZES], bigram=True)
def test_size_counters_are_those_of_the_nodes(driver: Scenario) -> None:
    page = driver.config.page_size
    driver.put_pages([1, 2, 3])
    driver.put_pages([1, 2, 4])
    pages = {FULL: 4, SWA: 4, MAMBA: 2}
    for component, sizes in driver.adapter.sizes().items():
        count = pages[component] * (1 if component == MAMBA else page)
        expected = Sizes(evictable=count, protected=0, free=driver.config.capacity_tokens[component] - count)
        assert sizes == expected, f"POOL-1: {component}: expected {expected}, got {sizes}"


@clause("POOL-1", bigram=True)
def test_arrays_that_pass_between_caller_and_cache_are_not_shared(driver: Scenario) -> None:
    key = driver.key_of([1, 2])
    slots = driver.allocate(2 * driver.config.page_size)
    assert slots is not None, "POOL-3: an empty cache has room for two pages"
    mine = slots.copy()
    slots[:] = PADDING_SLOT
    driver.write(key, mine, 0)
    given = mine.copy()
    state = driver.allocate_state() if driver.has(MAMBA) else None
    if state is not None:
        driver.write_state(key, state)
    driver.insert(key, given, shared=0, state=state)
    given[:] = PADDING_SLOT
    driver.match(key).device_indices[:] = PADDING_SLOT
    for array in _arrays_shown(driver):
        array[:] = PADDING_SLOT
    found = driver.match(key).device_indices
    assert found.tolist() == mine.tolist(), f"POOL-1: expected {mine.tolist()}, got {found.tolist()}"
    driver.check()


@clause("POOL-1", bigram=True)
def test_an_array_of_slots_stays_as_it_is_when_others_are_given_back(driver: Scenario) -> None:
    first, second = (driver.allocate(2 * driver.config.page_size) for _ in range(2))
    assert first is not None, "POOL-3: there is room for four pages"
    assert second is not None, "POOL-3: there is room for four pages"
    before = second.tolist()
    driver.free(first)
    assert second.tolist() == before, f"POOL-1: the caller held {before}, its array now says {second.tolist()}"
    driver.free(second)


@clause("POOL-2", bigram=True)
def test_no_slot_is_allocated_twice(driver: Scenario) -> None:
    page = driver.config.page_size
    pages = min(driver.config.capacity_tokens[name] // page for name in (FULL, SWA) if driver.has(name))
    taken = [slots for _ in range(pages) if (slots := driver.allocate(page)) is not None]
    everything = np.concatenate(taken)
    assert len(np.unique(everything)) == len(everything) == pages * page, f"POOL-2: {everything.tolist()}"
    assert PADDING_SLOT not in everything, "POOL-2: expected the padding slot never to be allocated"
    assert driver.allocate(page) is None, "POOL-3: expected None from an empty pool"


def _again(driver: Scenario, held: Slots) -> Slots:
    driver.free(held)
    return held


WRONG_SLOTS: dict[str, Callable[[Scenario, Slots], Slots]] = {
    "free already": _again,
    "named twice": lambda _, held: np.concatenate((held, held)),
    "the padding slot": lambda driver, _: np.arange(driver.config.page_size),
    "beyond the pool": lambda driver, held: held + driver.config.capacity_tokens[FULL],
    "below the pool": lambda driver, held: held - driver.config.capacity_tokens[FULL] - driver.config.page_size,
    "held and never handed out": lambda driver, held: np.concatenate((held, held + driver.config.page_size)),
    "the tree's": lambda driver, _: driver.match(driver.key_of([1, 2])).device_indices,
}


@clause("POOL-2", needs=[Capability.SNAPSHOT], bigram=True)
def test_freeing_a_slot_that_the_caller_does_not_hold_is_refused(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    for mistake, wrong_slots in WRONG_SLOTS.items():
        held = driver.allocate(driver.config.page_size)
        assert held is not None, "POOL-3: there is room for a page"
        wrong = wrong_slots(driver, held)
        with driver.refused("POOL-2", f"freeing {wrong.tolist()}, {mistake},"):
            driver.adapter.free(wrong)


@clause("POOL-2", needs=[Capability.SNAPSHOT, Capability.MAMBA])
def test_freeing_a_state_that_the_caller_does_not_hold_is_refused(driver: Scenario) -> None:
    driver.put_pages([1])
    in_tree = [slot for node in driver.snapshot().nodes for slot in _slots_of(node.slots[MAMBA])]
    state = driver.allocate_state()
    assert state is not None, "POOL-3: there is room for a state"
    driver.free_state(state)
    beyond = driver.config.capacity_tokens[MAMBA] + 1
    for mistake, slot in {"free": state, "padding": PADDING_SLOT, "beyond": beyond, "the tree's": in_tree[0]}.items():
        with driver.refused("POOL-2", f"freeing state {slot}, {mistake},"):
            driver.adapter.free_state(slot)


@clause("POOL-4", bigram=True)
def test_pages_are_whole_and_aligned_also_when_the_free_ones_are_scattered(driver: Scenario) -> None:
    page = driver.config.page_size
    taken = [slots for _ in range(6) if (slots := driver.allocate(page)) is not None]
    scattered = taken[::2]
    for slots in scattered:
        driver.free(slots)
    rest = driver.allocate(driver.config.capacity_tokens[SWA if driver.has(SWA) else FULL] - 3 * page)
    assert rest is not None, "POOL-3: all but three pages are free"
    starts = rest.reshape(-1, page)[:, 0]
    whole = (starts[:, None] + np.arange(page)).reshape(-1)
    assert (starts % page == 0).all(), f"POOL-4: pages start at {starts.tolist()}, not at multiples of {page}"
    assert np.array_equal(rest, whole), f"POOL-4: {rest.tolist()} are not whole pages of {page}"
    assert {int(slots[0]) for slots in scattered} <= set(starts.tolist()), "POOL-3: what was given back is used again"


def _arrays_shown(driver: Scenario) -> list[Slots]:
    snapshot = driver.snapshot()
    shown = [slots for node in snapshot.nodes for slots in node.slots.values() if slots is not None]
    shown += [pool.free for pool in snapshot.pools.values()]
    if driver.has(SWA):
        shown.append(driver.adapter.partners(driver.match(driver.key_of([1, 2])).device_indices))
    return [slots for slots in shown if slots.flags.writeable]


def _slots_of(slots: Slots | None) -> list[int]:
    return [] if slots is None else slots.tolist()


# POOL-3: an allocation gives all slots that were asked for, or None and takes nothing, in one pool or several.


@clause("POOL-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_an_allocation_larger_than_the_pool_is_refused_and_takes_nothing(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    before = _ownership(driver)
    assert driver.allocate(driver.config.capacity_tokens[FULL] + driver.config.page_size) is None, "POOL-3"
    assert _ownership(driver) == before, "POOL-3: an allocation that gave None took or evicted something"


@clause("POOL-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_an_allocation_that_does_not_fit_beside_locked_data_is_refused_and_evicts_nothing(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([3, 4])
    receipt = driver.lock_pages([1, 2])
    before = _ownership(driver)
    everything = driver.config.capacity_tokens[SWA if SWA in driver.config.components else FULL]
    assert driver.allocate(everything) is None, f"POOL-3: {everything} slots don't fit beside a locked page"
    assert _ownership(driver) == before, "POOL-3: an allocation that gave None took or evicted something"
    driver.unlock(receipt)
    fits = driver.allocate(everything)
    assert fits is not None, f"POOL-3: {everything} slots fit once the lock is gone"
    assert len(fits) == everything, f"POOL-3: {everything} slots asked for, {len(fits)} given"


@clause("POOL-3", bigram=True)
def test_an_empty_allocation_gives_no_slot(driver: Scenario) -> None:
    slots = driver.allocate(0)
    assert slots is not None, "POOL-3: expected an empty array for 0 slots, got None"
    assert len(slots) == 0, f"POOL-3: expected an empty array for 0 slots, got {slots.tolist()}"


@clause("POOL-3", needs=[Capability.SWA, Capability.SNAPSHOT], bigram=True)
def test_full_slots_are_returned_when_the_window_pool_is_short(driver: Scenario) -> None:
    page, capacity = driver.config.page_size, driver.config.capacity_tokens
    assert capacity[FULL] > capacity[SWA], "the scenario needs more FULL slots than SWA slots"
    held = driver.allocate(capacity[SWA])
    assert held is not None, "POOL-3: the whole SWA pool is free"
    before = _ownership(driver)
    assert driver.allocate(page) is None, "POOL-3: FULL has room, SWA has none"
    assert _ownership(driver) == before, "POOL-3: FULL slots were kept although SWA was short"
    driver.free(held)


@clause("POOL-3", needs=[Capability.SWA, Capability.SNAPSHOT], bigram=True)
def test_window_slots_are_not_taken_when_full_is_short(driver: Scenario) -> None:
    page, capacity = driver.config.page_size, driver.config.capacity_tokens
    for tokens in (capacity[SWA], capacity[FULL] - capacity[SWA]):
        slots = driver.allocate(tokens)
        assert slots is not None, f"POOL-3: {tokens} slots of each pool are free"
        driver.release_window(slots)
    before = _ownership(driver)
    assert len(free_slots(driver.snapshot())[SWA]) == capacity[SWA], "POOL-5: all partners were given back"
    assert driver.allocate(page) is None, "POOL-3: SWA has room, FULL has none"
    assert _ownership(driver) == before, "POOL-3: SWA slots were kept although FULL was short"


@clause("POOL-3", needs=[Capability.MAMBA])
def test_states_are_allocated_until_none_is_left(driver: Scenario) -> None:
    count = driver.config.capacity_tokens[MAMBA]
    states = [driver.allocate_state() for _ in range(count)]
    assert None not in states, f"POOL-3: {count} states are free, got {states}"
    assert driver.allocate_state() is None, f"POOL-3: all {count} states are held: expected None"
    driver.free_state(states[0] or 0)
    assert driver.allocate_state() == states[0], f"POOL-3: expected state {states[0]}, which was freed"


@clause("POOL-3", needs=[Capability.REQUESTS, Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("cached", [[], [1, 2]], ids=["unknown", "cached"])
def test_a_request_that_does_not_fit_takes_nothing_from_any_pool(driver: Scenario, cached: list[int]) -> None:
    if cached:
        driver.put_pages(cached)
    page, room = driver.config.page_size, driver.config.capacity_tokens[FULL]
    before = _ownership(driver)
    assert driver.admit(driver.key([*driver.prompt([1, 2]), *range(room)])) is None, f"POOL-3: {2 * page} over {room}"
    assert _ownership(driver) == before, "POOL-3: a request that was not admitted took something"


@clause("POOL-3", needs=[Capability.REQUESTS, Capability.MAMBA, Capability.SNAPSHOT])
def test_a_request_without_a_state_takes_no_slots(driver: Scenario) -> None:
    states = [driver.allocate_state() for _ in range(driver.config.capacity_tokens[MAMBA])]
    before = _ownership(driver)
    assert driver.admit(driver.key_of([1, 2])) is None, f"POOL-3: all states {states} are held"
    assert _ownership(driver) == before, "POOL-3: a request that was not admitted took something"


def _ownership(driver: Scenario) -> tuple[object, ...]:
    return device_ownership(driver.snapshot(), driver.config)


# POOL-5: SWA slots are the partners of FULL slots, and can be freed without them.


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_partners_that_were_given_back_are_skipped(driver: Scenario) -> None:
    page = driver.config.page_size
    slots = _allocated(driver, 3)
    partners = driver.adapter.partners(slots)
    before = free_slots(driver.snapshot())
    driver.release_window(slots[page : 2 * page])
    released = free_slots(driver.snapshot())
    assert released[FULL] == before[FULL], "POOL-5: giving partners back touched FULL slots"
    assert released[SWA] - before[SWA] == set(partners[page : 2 * page].tolist()), "POOL-5: another slot was freed"
    left = driver.adapter.partners(slots)
    assert not left[page : 2 * page].any(), f"POOL-5: no partners are left there, got {left.tolist()}"
    driver.release_window(slots)
    again = free_slots(driver.snapshot())
    assert again[SWA] - before[SWA] == set(partners.tolist()), "POOL-5: what has no partner is skipped, the rest freed"
    driver.free(slots)
    assert PADDING_SLOT not in free_slots(driver.snapshot())[SWA], "POOL-5: slot 0 was freed as a partner"


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_giving_back_no_partner_changes_nothing(driver: Scenario) -> None:
    slots = _allocated(driver, 2)
    driver.release_window(slots)
    before = snapshot_values(driver.snapshot())
    driver.release_window(slots)
    assert snapshot_values(driver.snapshot()) == before, "POOL-5: slots without partners were not skipped"


@clause("POOL-5", bigram=True)
def test_a_reused_slot_has_a_new_partner(driver: Scenario) -> None:
    # Recycled FULL pages that kept the mapping of their last owner freed other requests' SWA pages twice.
    capacity = driver.config.capacity_tokens
    slots = _allocated(driver, 4)
    driver.release_window(slots[: 2 * driver.config.page_size])
    driver.free(slots)
    everything = driver.allocate(capacity[SWA])
    assert everything is not None, "POOL-5: every SWA slot is free again"
    partners = driver.adapter.partners(everything)
    assert len(np.unique(partners)) == capacity[SWA], (
        f"POOL-5: {capacity[SWA]} partners, each once: {partners.tolist()}"
    )
    assert partners.all(), f"POOL-5: fresh slots have partners above 0: {partners.tolist()}"


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_slots_of_a_tombstone_have_no_partner_and_are_freed_without_one(driver: Scenario) -> None:
    pool = free_slots(driver.snapshot())
    pages = list(range(1, driver.window_pages + 3))
    driver.put_pages(pages, passed=2)
    found = driver.match(driver.key_of(pages)).device_indices
    partners = driver.adapter.partners(found)
    expected = [False] * 2 * driver.config.page_size + [True] * (len(pages) - 2) * driver.config.page_size
    assert (partners > PADDING_SLOT).tolist() == expected, f"POOL-5: two pages are tombstones: {partners.tolist()}"
    driver.evict_all(FULL)
    assert free_slots(driver.snapshot()) == pool, f"POOL-5: expected all of {pool} free again"


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_evicted_window_data_leaves_its_slots_without_a_partner(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    pages = [1, 2, *range(3, 3 + driver.window_pages)]
    driver.put_pages(pages)
    slots = driver.match(driver.key_of(pages)).device_indices
    receipt = driver.lock_pages(pages)
    before = driver.adapter.partners(slots)
    driver.evict_all(SWA)
    after = driver.adapter.partners(slots)
    assert np.array_equal(after[after > 0], before[after > 0]), f"POOL-5: {before.tolist()} became {after.tolist()}"
    assert not after[: 2 * driver.config.page_size].any(), f"POOL-5: the evicted pages have partners: {after.tolist()}"
    driver.unlock(receipt)


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_the_partners_of_cached_slots_are_not_the_callers_to_give_back(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    slots = driver.match(driver.key_of([1, 2])).device_indices
    with driver.refused("POOL-5", f"giving back the partners of the tree's slots {slots.tolist()}"):
        driver.adapter.release_window(slots)


def _allocated(driver: Scenario, pages: int) -> Slots:
    slots = driver.allocate(pages * driver.config.page_size)
    assert slots is not None, f"POOL-3: an empty cache has room for {pages} pages"
    return slots


# POOL-6: with a GPU, host memory is pinned, so that copies are asynchronous and need no staging buffer.


STREAMS = [ExecutorKind.STREAMS]


def require_pinned(driver: Scenario, when: str) -> None:
    """All host pools that have layers are pinned."""
    pools = [pool for pool in Pool if driver.adapter.layers(pool)]
    pageable = [pool for pool in pools if not driver.adapter.is_pinned(pool)]
    assert not pageable, f"POOL-6: {when}, the host memory of {pageable} is not pinned"


@clause("POOL-6", needs=[Capability.BYTES], executors=STREAMS)
def test_host_memory_is_pinned_where_there_is_a_gpu(driver: Scenario) -> None:
    require_pinned(driver, "nothing is cached")


@clause("POOL-6", needs=[Capability.BYTES], executors=STREAMS)
def test_host_memory_stays_pinned(driver: Scenario) -> None:
    driver.put_on_host([1, 2])
    driver.load(driver.key_of([1, 2]))
    require_pinned(driver, "after a backup and a load")
    driver.reset()
    require_pinned(driver, "after a reset")


# POOL-7: a sidecar pool has no slots of its own; its entries follow the slots of another pool.


@clause("POOL-7", needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_a_sidecar_has_no_slots_of_its_own(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    shown = driver.snapshot()
    freed = driver.evict(FULL, driver.config.page_size).freed
    named = [set(shown.pools), *(set(node.slots) for node in shown.nodes), set(driver.adapter.sizes()), set(freed)]
    assert not any(names.intersection(driver.config.sidecars) for names in named), (
        f"POOL-7: a sidecar is allocated from: {named}"
    )


@clause("POOL-7", needs=[Capability.SNAPSHOT])
def test_a_sidecar_cannot_be_evicted_alone(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    for pool in driver.config.sidecars:
        with driver.refused("POOL-7", f"evicting {pool} without the slots that it follows"):
            driver.adapter.evict(pool, driver.config.page_size)


@clause("POOL-7", needs=[Capability.BYTES])
def test_sidecar_entries_stay_while_other_slots_are_evicted(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([3, 4])
    slots = driver.match(driver.key_of([1, 2])).device_indices
    before = _entries(driver, slots)
    receipt = driver.lock_pages([1, 2])
    driver.evict_all()
    driver.put_pages([5, 6, 7])
    driver.unlock(receipt)
    after = _entries(driver, driver.match(driver.key_of([1, 2])).device_indices)
    assert all(map(np.array_equal, before, after)), f"POOL-7: entries of slots {slots.tolist()} changed"
    assert before[0].any(), "POOL-7: the entries were written, so that there is something to lose"


@clause("POOL-7", needs=[Capability.BYTES])
def test_reused_slots_have_the_sidecar_entries_of_their_new_owner(driver: Scenario) -> None:
    room = {name: 2 if name == MAMBA else 2 * driver.config.page_size for name in driver.config.components}
    tiny = driver.open_variant(capacity_tokens=room)
    tiny.put_pages([1, 2])
    old = tiny.match(tiny.key_of([1, 2])).device_indices
    before = _entries(tiny, old)
    tiny.put_pages([3, 4])
    new = tiny.match(tiny.key_of([3, 4])).device_indices
    assert set(new.tolist()) == set(old.tolist()), f"POOL-2: there are {old.tolist()} alone, got {new.tolist()}"
    assert not np.array_equal(_entries(tiny, new)[0], before[0]), "POOL-7: the entries are the last owner's"


@clause("POOL-7", needs=[Capability.BYTES])
def test_a_sidecar_follows_slots_through_a_split(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    slots = driver.match(driver.key_of([1, 2, 3])).device_indices
    before = _entries(driver, slots)
    driver.put_pages([1, 4])
    driver.find([1, 2, 3])
    after = _entries(driver, driver.match(driver.key_of([1, 2, 3])).device_indices)
    assert all(map(np.array_equal, before, after)), f"POOL-7: entries of slots {slots.tolist()} changed"


def _entries(driver: Scenario, slots: Slots) -> list[PageBytes]:
    """What the sidecars hold at some slots, layer by layer."""
    config = driver.config
    return [
        driver.adapter.read(pool, rows(config, pool, slots), layer)
        for pool in config.sidecars
        for layer in range(driver.adapter.layers(pool))
    ]


# POOL-8: dtype, layers and layout of a pool, as far as an adapter shows them: pools and layers do not overlap.
# That a copy between different pools raises cannot be tested through an adapter, whose copies stay within one pool.
# It is left to the tests of each implementation.


NAME = "full+swa+mamba+indexer/page16/lru"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NEEDS = [Capability.PAGED, Capability.SWA, Capability.MAMBA, Capability.INDEXER]


@clause("POOL-8", needs=NEEDS)
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_bytes_come_back_from_each_kind_of_pool(adapter_type: type[CacheAdapter], dtype: str) -> None:
    model = reshaped(TINY_MODEL, dtype=dtype, index_dim=TINY_INDEX_DIM)
    for layout in Layout:
        driver = open_standard(adapter_type, NAME, layout=layout, model=model)
        driver.put_pages([1, 2])
        driver.put_pages([1, 2, 3])
        driver.put_pages([4])
        for pages in ([1, 2], [1, 2, 3], [4]):
            driver.verify_state(driver.key_of(pages), driver.match(driver.key_of(pages)))
            driver.find(pages)
        driver.evict_all()
        driver.put_pages([5, 6])
        driver.check()


@clause("POOL-8", needs=NEEDS)
def test_a_pool_is_as_large_as_its_dtype_and_layers_say(adapter_type: type[CacheAdapter]) -> None:
    model = reshaped(TINY_MODEL, full_layers=3, swa_layers=2, mamba_layers=1, index_dim=TINY_INDEX_DIM)
    layers = {Pool.KV: 3, Pool.SWA: 2, Pool.MAMBA: 1, Pool.INDEXER: 3}
    models = {dtype: reshaped(model, dtype=dtype) for dtype in DTYPE_BYTES}
    adapters = {dtype: open_standard(adapter_type, NAME, model=one).adapter for dtype, one in models.items()}
    for pool, count in layers.items():
        found = {dtype: one.layers(pool) for dtype, one in adapters.items()}
        assert set(found.values()) == {count}, f"POOL-8: {pool} has {count} layers, got {found}"
        sizes = {dtype: one.slot_bytes(pool) for dtype, one in adapters.items()}
        assert sizes["bfloat16"] == sizes["float16"], f"POOL-8: {pool}: two bytes each: {sizes}"
        assert sizes["bfloat16"] < sizes["float32"], f"POOL-8: {pool}: two bytes and four: {sizes}"


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


def _filled(driver: Scenario, slots: Slots, value: int) -> PageBytes:
    return np.full((len(slots), driver.adapter.slot_bytes(Pool.KV)), value, dtype=np.uint8)
