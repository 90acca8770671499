"""FLOW-3: the parts of a failed transfer before the failure count, and nothing else of it is left."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import TransferView
from hicache.types import TransferKind, TransferPhase

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, drop_on_device, key_of, put, put_on_host, tier_hits
from .transfers import pending_transfer, queue_load, start_load, transfer_views
from .tree_view import Pages, device_slots, free_device_slots, host_slots, prefixes

CHAIN = (1, 2, 3, 4)
LINKS = [CHAIN[:count] for count in range(1, 5)]
BEGINNINGS = [prefixes(*CHAIN[:count]) for count in range(5)]


def put_links(driver: Driver) -> None:
    """Cache each prefix of the chain, and start one backup of all of them."""
    for pages in LINKS:
        put(driver, pages)
    driver.step()


@clause("FLOW-3", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_failed_backup_leaves_the_parts_before_the_failure_on_the_host(driver: Driver) -> None:
    done, parts = 0, 1
    while done < parts:
        driver.reset()
        put_links(driver)
        transfer, under_way = pending_transfer(driver, TransferKind.BACKUP), transfer_views(driver, TransferKind.BACKUP)
        driver.fail(transfer.ticket, parts_done=done)
        driver.step()
        came = sum(is_whole(driver, one) for one in under_way)
        assert came == done, f"FLOW-3: {done} of {transfer.parts} parts were done, {came} are on the host"
        below = host_slots(driver, FULL).keys()
        assert below in BEGINNINGS, f"FLOW-3: only the beginning of a prompt counts, got {below}"
        assert tier_hits(driver, CHAIN) == (4, 0), (
            f"FLOW-3: a backup that fails costs nothing: {tier_hits(driver, CHAIN)}"
        )
        done, parts = done + 1, transfer.parts
    assert parts > 1, f"HOST-2: {LINKS} are several nodes, and were backed up in {parts} part"


@clause("FLOW-3", page_sizes=[16])
def test_a_failed_load_leaves_the_parts_before_the_failure_on_the_device(driver: Driver) -> None:
    done, parts = 0, 1
    while done < parts:
        driver.reset()
        put_on_host(driver, *LINKS)
        load = start_load(driver, CHAIN)
        transfer, under_way = pending_transfer(driver, TransferKind.LOAD), transfer_views(driver, TransferKind.LOAD)
        driver.fail(transfer.ticket, parts_done=done)
        driver.step()
        assert driver.claim(load.ticket) is None, f"FLOW-3: {done} of {transfer.parts} parts were done, all delivered"
        came = sum(is_whole(driver, one) for one in under_way)
        assert came == done, f"FLOW-3: {done} of {transfer.parts} parts were done, {came} are on the device"
        there = device_slots(driver, FULL).keys()
        assert there in BEGINNINGS, f"FLOW-3: only the beginning of a prompt counts, got {there}"
        assert host_slots(driver, FULL).keys() == prefixes(*CHAIN), "FLOW-3: a load that fails costs nothing"
        found = driver.load(key_of(driver, CHAIN))
        size = driver.config.page_size
        assert len(found.device_indices) == 4 * size, f"FLOW-4: another load brings the rest, got {found}"
        done, parts = done + 1, transfer.parts
    assert parts > 1, f"HOST-4: {LINKS} are several nodes, and were loaded in {parts} part"


@clause("FLOW-3", "HOST-2", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_below_a_failed_one_does_not_count(driver: Driver) -> None:
    for pages in LINKS[:2]:
        put(driver, pages)
        driver.step()
    parents, children = [one for one in driver.pending() if one.kind is TransferKind.BACKUP]
    driver.complete(children.ticket)
    driver.fail(parents.ticket, parts_done=0)
    driver.step()
    below = host_slots(driver, FULL)
    assert not below, f"FLOW-3: the copy of 1 failed, and what arrived below it could not be reached: {below}"
    assert tier_hits(driver, LINKS[1]) == (2, 0), (
        f"FLOW-3: a backup that fails costs nothing: {tier_hits(driver, LINKS[1])}"
    )
    put(driver, LINKS[1])
    driver.drain()
    below = host_slots(driver, FULL)
    assert below.keys() == prefixes(*LINKS[1]), f"FLOW-4: both are copied with their next use, the host has {below}"


@clause("FLOW-3", "FLOW-4", page_sizes=[16])
def test_one_transfer_can_complete_one_load_and_fail_another(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [8, 9])
    first, second = queue_load(driver, [1, 2]), queue_load(driver, [8, 9])
    of_first = len(transfer_views(driver, TransferKind.LOAD)) // 2
    driver.step()
    driver.fail(pending_transfer(driver, TransferKind.LOAD).ticket, parts_done=of_first)
    driver.step()
    phases = [driver.load_phase(load.ticket) for load in (first, second)]
    assert phases == [TransferPhase.DONE, TransferPhase.FAILED], f"FLOW-3: the first came whole, got {phases}"
    delivered = [driver.claim(load.ticket) for load in (first, second)]
    assert delivered[1] is None, f"FLOW-3: the second failed, and {delivered[1]} was delivered"
    found = tier_hits(driver, [1, 2]), tier_hits(driver, [8, 9])
    assert found == ((2, 0), (0, 2)), f"FLOW-3: 1, 2 is on the device and 8, 9 on the host alone, got {found}"


def alone_and_failed(driver: Driver, component: str) -> None:
    """A failed load of one component alone leaves the cache as before, and another load succeeds."""
    drop_on_device(driver, component)
    before = free_device_slots(driver), device_slots(driver, FULL), host_slots(driver, component)
    load = start_load(driver, TOMBSTONE)
    driver.fail(pending_transfer(driver, TransferKind.LOAD).ticket, parts_done=0)
    driver.step()
    assert driver.claim(load.ticket) is None, f"FLOW-3: the {component} data did not come"
    assert TOMBSTONE not in device_slots(driver, component), f"FLOW-3: {component} did not come, and is on the device"
    after = free_device_slots(driver), device_slots(driver, FULL), host_slots(driver, component)
    assert after == before, f"FLOW-3: a load of {component} that fails leaves nothing: {before}, got {after}"
    driver.load(key_of(driver, TOMBSTONE))
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"FLOW-4: another load goes well: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("FLOW-3", components=(SWA,))
def test_a_failed_load_of_swa_data_alone_leaves_nothing(driver: Driver) -> None:
    alone_and_failed(driver, SWA)


@clause("FLOW-3", components=(MAMBA,))
def test_a_failed_load_of_a_state_alone_leaves_nothing(driver: Driver) -> None:
    alone_and_failed(driver, MAMBA)


def is_whole(driver: Driver, one: TransferView) -> bool:
    """Whether a transfer brought all its data, or none; it must not bring a part."""
    is_backup = one.kind is TransferKind.BACKUP
    there = set()
    for component, slots in (one.host if is_backup else one.device).items():
        cached: dict[Pages, tuple[int, ...]] = (
            host_slots(driver, component) if is_backup else device_slots(driver, component)
        )
        own = set(slots.tolist())
        there.add(len(own & {slot for page in cached.values() for slot in page}) / len(own))
    assert there in ({0.0}, {1.0}), f"FLOW-3: expected a transfer to bring all its data or none, got the shares {there}"
    return there == {1.0}
