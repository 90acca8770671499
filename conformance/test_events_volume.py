"""EVENT-2: the counters of each direction equal the bytes that were moved."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    drop_on_device,
    evict_all,
    has,
    key_of,
    put,
    put_and_back_up,
    put_on_host,
)
from .transfers import bytes_moved, bytes_on_host, queue_load, slot_bytes, transfer_views
from .tree_view import free_device_slots, free_host_slots

WHOLE = (1, 2, 3, 4)


@clause("EVENT-2", "FLOW-6", needs=[Capability.COUNTERS])
def test_the_bytes_counted_for_each_direction_are_the_bytes_moved(driver: Driver) -> None:
    expected = dict.fromkeys(TransferKind, 0)
    put_and_back_up(driver, WHOLE[:2])
    expected[TransferKind.BACKUP] = bytes_on_host(driver)
    for _ in range(2):
        put(driver, WHOLE)
        require_counts(driver, expected)
    put_on_host(driver, WHOLE)
    expected[TransferKind.BACKUP] = bytes_moved(driver, TransferKind.BACKUP)
    for pages in (WHOLE[:2], WHOLE):
        load = queue_load(driver, pages)
        require_counts(driver, expected)
        driver.claim(load.ticket)
    assert all(expected.values()), f"EVENT-2: expected bytes in each direction, got {expected}"


def require_counts(driver: Driver, expected: dict[TransferKind, int]) -> None:
    """Add the bytes of the transfers under way to the expected ones, drain, and compare with the counters."""
    for kind in TransferKind:
        for one in transfer_views(driver, kind):
            expected[kind] += slot_bytes(driver, {name: len(slots) for name, slots in one.device.items()})
    driver.drain()
    found = {kind: bytes_moved(driver, kind) for kind in TransferKind}
    assert found == expected, f"EVENT-2: expected the moved bytes {expected}, got {found}"


@clause("EVENT-2", needs=[Capability.COUNTERS, Capability.HOST], page_sizes=[16])
def test_a_component_alone_counts_its_own_bytes(driver: Driver) -> None:
    for component in (SWA, MAMBA):
        if not has(driver, component):
            continue
        driver.reset()
        drop_on_device(driver, component)
        before = bytes_moved(driver, TransferKind.LOAD)
        free = free_device_slots(driver)
        driver.load(key_of(driver, TOMBSTONE))
        brought = {name: count - free_device_slots(driver)[name] for name, count in free.items()}
        assert brought[FULL] == 0, f"HOST-5: {component} was to come alone, came {brought}"
        expected, found = slot_bytes(driver, brought), bytes_moved(driver, TransferKind.LOAD) - before
        assert found == expected, f"EVENT-2: {brought} slots were loaded: expected {expected} bytes, got {found}"


@clause("EVENT-2", "EVICT-7", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_BACK])
def test_bytes_that_an_eviction_backs_up_are_counted(driver: Driver) -> None:
    put(driver, WHOLE)
    size = driver.config.page_size
    free = free_host_slots(driver)
    evict_all(driver)
    taken = {name: count - free_host_slots(driver)[name] for name, count in free.items()}
    assert taken[FULL] == len(WHOLE) * size, f"EVICT-7: four pages are on the host, got {taken}"
    expected, found = slot_bytes(driver, taken), bytes_moved(driver, TransferKind.BACKUP)
    assert found == expected, f"EVENT-2: {taken} slots were backed up: expected {expected} bytes, got {found}"


@clause("EVENT-2", "FLOW-3", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_below_a_failed_one_is_not_counted(driver: Driver) -> None:
    for pages in (WHOLE[:2], WHOLE):
        put(driver, pages)
        driver.step()
    parent, child = [one for one in driver.pending() if one.kind is TransferKind.BACKUP]
    driver.complete(child.ticket)
    driver.fail(parent.ticket, parts_done=0)
    driver.step()
    found = bytes_moved(driver, TransferKind.BACKUP)
    assert found == 0, f"EVENT-2: the host has nothing: expected 0 bytes to be counted as backed up, got {found}"
    put(driver, WHOLE)
    driver.drain()
    expected, found = bytes_on_host(driver), bytes_moved(driver, TransferKind.BACKUP)
    assert found == expected, f"EVENT-2: both were backed up again: expected {expected} bytes, got {found}"
