"""INS-3, FLOW-5, FLOW-6: inserts over what is being loaded or backed up."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import LoadBack, TransferKind, TransferPhase

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, drop_on_device, insert_fresh, key_of, put, put_on_host, tier_hits
from .transfers import (
    STAGES,
    Stage,
    bytes_moved,
    bytes_on_host,
    pending_transfer,
    queue_load,
    start_load,
    transfer_views,
)
from .tree_view import device_slots, free_device_slots, host_slots

WHOLE = (1, 2, 3)


@clause("INS-3", "FLOW-1", "FLOW-5", page_sizes=[16])
@STAGES
def test_an_insert_over_a_load_keeps_its_own_slots_and_readers_keep_the_loaded_ones(
    driver: Driver, stage: Stage
) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    own = insert_fresh(driver, WHOLE)
    there = device_slots(driver, FULL)
    driver.drain()
    driver.read_ready_layers(load.ticket)
    free = free_device_slots(driver)[FULL]
    delivered = driver.claim(load.ticket)
    assert delivered is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    assert delivered.tolist() == own.slots.tolist(), f"INS-3: the tree has {own.slots}, the load delivered {delivered}"
    assert device_slots(driver, FULL) == there, f"INS-3: the tree's slots {there} became {device_slots(driver, FULL)}"
    given_back = free_device_slots(driver)[FULL] - free
    assert given_back == len(load.indices), f"FLOW-1: {len(load.indices)} slots were kept, {given_back} were given back"


@clause("FLOW-10", "FLOW-3", "INS-3", page_sizes=[16])
def test_an_insert_over_a_failed_load_keeps_its_own_slots_and_the_load_fails(driver: Driver) -> None:
    """The caller may have read the promised slots, which did not get their bytes."""
    put_on_host(driver, WHOLE)
    load = start_load(driver, WHOLE)
    insert_fresh(driver, WHOLE)
    there = device_slots(driver, FULL)
    driver.fail(pending_transfer(driver, TransferKind.LOAD).ticket, parts_done=0)
    driver.step()
    phase = driver.load_phase(load.ticket)
    assert phase is TransferPhase.FAILED, f"FLOW-10: nothing came to the {len(load.indices)} slots, got {phase.value}"
    assert driver.claim(load.ticket) is None, "FLOW-10: a load that failed delivers nothing"
    assert device_slots(driver, FULL) == there, f"INS-3: the tree's slots {there} became {device_slots(driver, FULL)}"
    assert tier_hits(driver, WHOLE) == (3, 0), (
        f"INS-3: three pages were computed: expected (3, 0), got {tier_hits(driver, WHOLE)}"
    )


@clause("INS-3", "FLOW-5", page_sizes=[16])
@STAGES
def test_an_insert_over_the_first_pages_of_a_load_leaves_the_others_to_the_load(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    own = insert_fresh(driver, WHOLE[:2])
    driver.drain()
    delivered = driver.claim(load.ticket)
    size = driver.config.page_size
    assert delivered is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    expected = [*own.slots.tolist(), *load.indices[2 * size :].tolist()]
    assert delivered.tolist() == expected, f"INS-3: two pages are the insert's, one the load's: {expected}, {delivered}"
    assert tier_hits(driver, WHOLE) == (3, 0), (
        f"FLOW-10: all of it is on the device: expected (3, 0), got {tier_hits(driver, WHOLE)}"
    )


@clause("INS-3", "FLOW-5", page_sizes=[16])
@STAGES
def test_an_insert_below_a_load_hits_in_full_when_the_load_has_ended(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    insert_fresh(driver, (*WHOLE, 4))
    driver.drain()
    driver.abandon(load.ticket)
    assert tier_hits(driver, (*WHOLE, 4)) == (4, 0), (
        f"INS-3: four pages were computed: expected (4, 0), got {tier_hits(driver, (*WHOLE, 4))}"
    )
    missing = device_slots(driver, FULL).keys() - host_slots(driver, FULL).keys()
    if _copies_at_once(driver):
        assert not missing, f"FLOW-8: {missing} was used, and is not on the host"


def computed_while_it_is_loaded(driver: Driver, stage: Stage, component: str) -> None:
    """A component is loaded alone, and an insert brings it as well."""
    drop_on_device(driver, component)
    load = queue_load(driver, TOMBSTONE)
    stage(driver, TransferKind.LOAD)
    insert_fresh(driver, TOMBSTONE)
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"INS-4: it was computed and loaded: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )
    held_slots = {name: sum(map(len, device_slots(driver, name).values())) for name in driver.config.components}
    free = free_device_slots(driver)
    expected = {name: tokens - held_slots[name] for name, tokens in driver.config.capacity_tokens.items()}
    assert free == expected, f"FLOW-6: one of the two is free again: {expected}, got {free}"


@clause("INS-4", "FLOW-6", components=(SWA,), page_sizes=[16])
@STAGES
def test_swa_data_that_is_computed_while_it_is_loaded_is_cached_once(driver: Driver, stage: Stage) -> None:
    computed_while_it_is_loaded(driver, stage, SWA)


@clause("INS-3", "FLOW-6", components=(MAMBA,), page_sizes=[16])
@STAGES
def test_a_state_that_is_computed_while_it_is_loaded_is_cached_once(driver: Driver, stage: Stage) -> None:
    computed_while_it_is_loaded(driver, stage, MAMBA)


@clause("FLOW-10", "FLOW-5", components=(SWA,), page_sizes=[16])
@STAGES
def test_a_load_brings_the_window_that_an_insert_over_it_lacked(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    insert_fresh(driver, WHOLE, passed=3)
    _require_delivery(driver, load)


@clause("FLOW-10", "FLOW-5", components=(MAMBA,), page_sizes=[16])
@STAGES
def test_a_load_brings_the_state_that_an_insert_over_it_lacked(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    insert_fresh(driver, WHOLE, with_state=False)
    _require_delivery(driver, load)


@clause("FLOW-6", "FLOW-4", needs=[Capability.COUNTERS], page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
@STAGES
def test_a_backup_under_way_is_not_queued_again(driver: Driver, stage: Stage) -> None:
    put(driver, WHOLE)
    expected = len(transfer_views(driver, TransferKind.BACKUP))
    stage(driver, TransferKind.BACKUP)
    insert_fresh(driver, WHOLE)
    driver.match(key_of(driver, WHOLE))
    driver.step()
    found = len(transfer_views(driver, TransferKind.BACKUP))
    assert found <= expected, f"FLOW-6: {expected} backups are under way, and the same prompt made them {found}"
    driver.drain()
    missing = {
        name for name in driver.config.components if device_slots(driver, name).keys() - host_slots(driver, name).keys()
    }
    assert not missing, f"HOST-1: {missing} of {WHOLE} is not on the host"
    copied, there = bytes_moved(driver, TransferKind.BACKUP), bytes_on_host(driver)
    assert copied == there, f"FLOW-6: {there} bytes are on the host, and {copied} were copied there"


def _require_delivery(driver: Driver, load: LoadBack) -> None:
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing let the load fail"
    assert tier_hits(driver, WHOLE) == (3, 0), (
        f"FLOW-10: all of it is on the device: expected (3, 0), got {tier_hits(driver, WHOLE)}"
    )


def _copies_at_once(driver: Driver) -> bool:
    return driver.config.host is not None and driver.config.host.write_policy is WritePolicy.WRITE_THROUGH
