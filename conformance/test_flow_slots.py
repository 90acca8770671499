"""FLOW-1: source and target slots of a transfer are not reused until it is acknowledged."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Slots, TransferKind

from .scenario import FULL, allocate_all, evict_all, evict_host, key_of, put, put_on_host
from .transfers import STAGES, Stage, queue_load, transfer_views
from .tree_view import device_slots, host_slots, prefixes

WHOLE = (1, 2, 3)


def ends(driver: Driver, kind: TransferKind) -> list[dict[str, list[int]]]:
    """The source and target slots of all transfers of a kind."""
    found = [view for one in transfer_views(driver, kind) for view in (one.device, one.host)]
    return [{component: slots.tolist() for component, slots in view.items()} for view in found]


def overwrite(driver: Driver) -> Slots:
    """Allocate every slot that the device can give, and write other data there."""
    slots = allocate_all(driver)
    size = driver.config.page_size
    driver.write(key_of(driver, range(100, 100 + len(slots) // size)), slots, 0)
    return slots


@clause("FLOW-1", write_policies=[WritePolicy.WRITE_THROUGH], needs=[Capability.SIZES])
@STAGES
def test_data_that_is_being_backed_up_is_not_evicted_or_overwritten(driver: Driver, stage: Stage) -> None:
    put(driver, WHOLE)
    stage(driver, TransferKind.BACKUP)
    before, there = ends(driver, TransferKind.BACKUP), device_slots(driver, FULL)
    evict_all(driver)
    evict_host(driver)
    mine = overwrite(driver)
    assert ends(driver, TransferKind.BACKUP) == before, "FLOW-1: slots of a backup under way changed"
    assert device_slots(driver, FULL) == there, (
        f"FLOW-1: a backup reads {there}, the device has {device_slots(driver, FULL)}"
    )
    driver.free(mine)
    driver.drain()
    assert host_slots(driver, FULL).keys() == prefixes(*WHOLE), "FLOW-1: the copy is on the host"


@clause("FLOW-1", needs=[Capability.SIZES])
@STAGES
def test_data_that_is_being_loaded_is_not_evicted_or_overwritten(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE, [8, 9])
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    before = ends(driver, TransferKind.LOAD)
    mine = overwrite(driver)
    evict_host(driver)
    assert ends(driver, TransferKind.LOAD) == before, "FLOW-1: slots of a load under way changed"
    assert not set(mine.tolist()) & set(load.indices.tolist()), (
        f"FLOW-1: expected an allocation without the slots of a load, got {mine}"
    )
    left = host_slots(driver, FULL).keys()
    assert left == prefixes(*WHOLE), f"FLOW-1: {WHOLE} is being read on the host, and all else may go: {left}"
    driver.drain()
    driver.free(mine)
    delivered = driver.claim(load.ticket)
    assert delivered is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    assert delivered.tolist() == load.indices.tolist(), f"FLOW-1: asked {load.indices}, delivered {delivered}"
