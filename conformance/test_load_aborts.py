"""REQ-2: a request that is aborted while it waits for a load releases everything."""

from __future__ import annotations

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .checks import require_all_evictable, require_all_free, require_requests_released
from .scenario import FULL, admit, evict_all, evict_host, insert_fresh
from .transfers import pending_transfer
from .tree_view import device_slots
from .waiting_request import CACHED, PROMPT, STAGES, Stage, admit_waiting

LOOKING = (Capability.HOST, Capability.SNAPSHOT, Capability.SIZES)
STEPPED = (ExecutorKind.STEPPED,)


@clause("REQ-2", needs=LOOKING, executors=STEPPED)
@STAGES
def test_an_abort_releases_everything_at_each_stage_of_the_load(driver: Driver, stage: Stage) -> None:
    admission = admit_waiting(driver)
    stage(driver, admission)
    driver.abort(admission.request)
    assert tuple(PROMPT) not in device_slots(driver, FULL), (
        f"REQ-2: an abort cached {device_slots(driver, FULL).keys()}"
    )
    require_all_evictable(driver, f"aborted when {stage.__name__}")


@clause("REQ-2", needs=LOOKING)
def test_an_abort_releases_everything_after_any_number_of_steps(driver: Driver) -> None:
    for steps in range(4):
        driver.reset()
        admission = admit_waiting(driver)
        for _ in range(steps):
            driver.step()
        driver.abort(admission.request)
        driver.drain()
        require_requests_released(driver, f"aborted after {steps} steps")
        evict_all(driver)
        evict_host(driver)
        require_all_free(driver, f"aborted after {steps} steps")


@clause("REQ-2", "FLOW-6", needs=LOOKING, executors=STEPPED, page_sizes=[1])
@STAGES
def test_an_abort_does_not_stop_a_load_that_another_request_waits_for(driver: Driver, stage: Stage) -> None:
    first = admit_waiting(driver)
    second = admit(driver, PROMPT, tail=1)
    assert second.loading, f"FLOW-6: {CACHED} is being loaded, and the second request got {second}"
    stage(driver, first)
    driver.abort(first.request)
    driver.drain()
    ready = driver.resume(second.request)
    assert ready is not None, (
        f"REQ-2: another request was aborted when {stage.__name__}, expected this one to resume, got None"
    )
    driver.finish(second.request)
    require_all_evictable(driver, f"aborted when {stage.__name__}, and another finished")


@clause("REQ-2", "INS-3", needs=LOOKING, executors=STEPPED)
def test_loaded_slots_outside_the_tree_stay_for_other_readers(driver: Driver) -> None:
    first = admit_waiting(driver)
    second = admit(driver, PROMPT, tail=1)
    driver.step()
    # Another request computes the same pages, so that the tree has other slots when the load ends.
    insert_fresh(driver, CACHED)
    driver.complete(pending_transfer(driver, TransferKind.LOAD).ticket)
    driver.step()
    driver.abort(first.request)
    insert_fresh(driver, [7, 8])
    assert driver.resume(second.request) is not None, "FLOW-4: the load has ended"
    driver.finish(second.request)
    require_all_evictable(driver, "aborted, and another finished on the tree's slots")
