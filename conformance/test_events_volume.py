"""EVENT-2: the counters of each direction are the bytes that were moved."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .host_trees import free_below
from .losses import lose_on_device
from .residences import put_on_host, put_through
from .tombstones import TOMBSTONE
from .under_way import free_on_device, operations, queue_load
from .verbs import FULL, MAMBA, SWA, evict_all, has, key_of, put
from .volume import moved, volume, volume_below

WHOLE = (1, 2, 3, 4)


@clause("EVENT-2", "FLOW-6", needs=[Capability.COUNTERS])
def test_the_bytes_of_each_direction_are_those_that_were_moved(driver: Driver) -> None:
    expected = dict.fromkeys(TransferKind, 0)
    put_through(driver, WHOLE[:2])
    expected[TransferKind.BACKUP] = volume_below(driver)
    for _ in range(2):
        put(driver, WHOLE)
        require_counts(driver, expected)
    put_on_host(driver, WHOLE)
    expected[TransferKind.BACKUP] = moved(driver, TransferKind.BACKUP)
    for pages in (WHOLE[:2], WHOLE):
        load = queue_load(driver, pages)
        require_counts(driver, expected)
        driver.claim(load.ticket)
    assert all(expected.values()), f"EVENT-2: something was moved each way, got {expected}"


def require_counts(driver: Driver, expected: dict[TransferKind, int]) -> None:
    """End what is under way, add its bytes to what is expected, and compare."""
    for kind in TransferKind:
        for one in operations(driver, kind):
            expected[kind] += volume(driver, {name: len(slots) for name, slots in one.device.items()})
    driver.drain()
    found = {kind: moved(driver, kind) for kind in TransferKind}
    assert found == expected, f"EVENT-2: bytes that were moved: {expected}, counted: {found}"


@clause("EVENT-2", needs=[Capability.COUNTERS, Capability.HOST], page_sizes=[16])
def test_a_component_alone_counts_its_own_bytes(driver: Driver) -> None:
    for component in (SWA, MAMBA):
        if not has(driver, component):
            continue
        driver.reset()
        lose_on_device(driver, component)
        before = moved(driver, TransferKind.LOAD)
        free = free_on_device(driver)
        driver.load(key_of(driver, TOMBSTONE))
        brought = {name: count - free_on_device(driver)[name] for name, count in free.items()}
        assert brought[FULL] == 0, f"HOST-5: {component} was to come alone, came {brought}"
        expected, found = volume(driver, brought), moved(driver, TransferKind.LOAD) - before
        assert found == expected, f"EVENT-2: {brought} came, which are {expected} bytes, counted are {found}"


@clause("EVENT-2", "EVICT-7", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_BACK])
def test_bytes_that_an_eviction_backs_up_are_counted(driver: Driver) -> None:
    put(driver, WHOLE)
    size = driver.config.page_size
    free = free_below(driver)
    evict_all(driver)
    taken = {name: count - free_below(driver)[name] for name, count in free.items()}
    assert taken[FULL] == len(WHOLE) * size, f"EVICT-7: four pages are on the host, got {taken}"
    expected, found = volume(driver, taken), moved(driver, TransferKind.BACKUP)
    assert found == expected, f"EVENT-2: {taken} went to the host, which are {expected} bytes, counted are {found}"
