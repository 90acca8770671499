"""POOL-7: a sidecar pool has no slots of its own; its entries follow the slots of another pool."""

from __future__ import annotations

import numpy as np

from hicache.testing.adapter import Capability, PageBytes
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool, Slots

from .checks import refused
from .scenario import FULL, MAMBA, evict_all, find, key_of, lock, open_variant, put

INDEXER = Pool.INDEXER.value


@clause("POOL-7", needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_a_sidecar_has_no_slots_of_its_own(driver: Driver) -> None:
    put(driver, [1, 2])
    shown = driver.snapshot()
    freed = driver.evict(FULL, driver.config.page_size).freed
    named = [set(shown.pools), *(set(node.slots) for node in shown.nodes), set(driver.adapter.sizes()), set(freed)]
    assert not any(INDEXER in names for names in named), f"POOL-7: the indexer is allocated from: {named}"


@clause("POOL-7", needs=[Capability.SNAPSHOT])
def test_a_sidecar_cannot_be_evicted_alone(driver: Driver) -> None:
    put(driver, [1, 2])
    with refused(driver, "POOL-7", "evicting the indexer without the slots that it follows"):
        driver.adapter.evict(INDEXER, driver.config.page_size)


@clause("POOL-7", needs=[Capability.BYTES])
def test_sidecar_entries_stay_while_other_slots_are_evicted(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [3, 4])
    slots = driver.match(key_of(driver, [1, 2])).device_indices
    before = _entries(driver, slots)
    receipt = lock(driver, [1, 2])
    evict_all(driver)
    put(driver, [5, 6, 7])
    driver.unlock(receipt)
    after = _entries(driver, driver.match(key_of(driver, [1, 2])).device_indices)
    assert all(map(np.array_equal, before, after)), f"POOL-7: entries of slots {slots.tolist()} changed"
    assert before[0].any(), "POOL-7: the entries were written, so that there is something to lose"


@clause("POOL-7", needs=[Capability.BYTES])
def test_reused_slots_have_the_sidecar_entries_of_their_new_owner(driver: Driver) -> None:
    room = {name: 2 if name == MAMBA else 2 * driver.config.page_size for name in driver.config.components}
    tiny = open_variant(driver, capacity_tokens=room)
    put(tiny, [1, 2])
    old = tiny.match(key_of(tiny, [1, 2])).device_indices
    before = _entries(tiny, old)
    put(tiny, [3, 4])
    new = tiny.match(key_of(tiny, [3, 4])).device_indices
    assert set(new.tolist()) == set(old.tolist()), f"POOL-2: there are {old.tolist()} alone, got {new.tolist()}"
    assert not np.array_equal(_entries(tiny, new)[0], before[0]), "POOL-7: the entries are the last owner's"


@clause("POOL-7", needs=[Capability.BYTES])
def test_a_sidecar_follows_slots_through_a_split(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    slots = driver.match(key_of(driver, [1, 2, 3])).device_indices
    before = _entries(driver, slots)
    put(driver, [1, 4])
    find(driver, [1, 2, 3])
    after = _entries(driver, driver.match(key_of(driver, [1, 2, 3])).device_indices)
    assert all(map(np.array_equal, before, after)), f"POOL-7: entries of slots {slots.tolist()} changed"


def _entries(driver: Driver, slots: Slots) -> list[PageBytes]:
    """What the indexer holds at some slots, layer by layer."""
    return [driver.adapter.read(Pool.INDEXER, slots, layer) for layer in range(driver.adapter.layers(Pool.INDEXER))]
