"""REQ-2, REQ-5: a request resumes when its load has ended, with or without the loaded data, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle

from .checks import require_all_evictable
from .scenario import FULL, SWA, evict_all, leave_only, tokens_in_pages
from .tree_view import device_slots, snapshot_values
from .waiting_request import BEFORE_RESUME, CACHED, ON_DEVICE, PROMPT, Stage, admit_waiting, failed, queued, running

LOOKING = (Capability.REQUESTS, Capability.HOST, Capability.SNAPSHOT, Capability.SIZES)
STEPPED = (ExecutorKind.STEPPED,)
End = Callable[[Driver, Handle], None]
ENDS = pytest.mark.parametrize("end", [Driver.finish, Driver.abort], ids=["finished", "aborted"])


@clause("FLOW-4", "REQ-2", needs=LOOKING, executors=STEPPED)
@pytest.mark.parametrize("stage", [queued, running], ids=["queued", "running"])
def test_a_request_does_not_resume_before_its_load_has_ended(driver: Driver, stage: Stage) -> None:
    admission = admit_waiting(driver)
    stage(driver, admission)
    for _ in range(3):
        before = snapshot_values(driver.snapshot())
        ready = driver.resume(admission.request)
        assert ready is None, f"FLOW-4: the load was {stage.__name__} and has not ended: expected None, got {ready}"
        assert snapshot_values(driver.snapshot()) == before, (
            "REQ-2: a request asked how it stands, and the cache changed"
        )
        driver.step()
    driver.drain()
    ready = driver.resume(admission.request)
    assert ready is not None, "FLOW-4: the load has ended, and the request still waits"
    assert ready.cached_tokens == admission.cached_tokens, f"FLOW-10: {admission} was promised, got {ready}"
    driver.finish(admission.request)
    require_all_evictable(driver, f"a request finished that had asked when it was {stage.__name__}")


@clause("REQ-5", "FLOW-3", needs=LOOKING, executors=STEPPED)
@ENDS
def test_a_request_whose_load_failed_resumes_with_its_device_hit(driver: Driver, end: End) -> None:
    admission = admit_waiting(driver)
    failed(driver, admission)
    ready = driver.resume(admission.request)
    assert ready is not None, "REQ-5: there is room for what did not come"
    expected = len(ON_DEVICE) * driver.config.page_size
    assert ready.cached_tokens == expected, f"FLOW-3: the device had {expected} tokens and no more came, got {ready}"
    assert not ready.loading, f"FLOW-4: the load has ended, got {ready}"
    driver.checkpoint(admission.request, tokens_in_pages(driver, len(ON_DEVICE) + 1))
    end(driver, admission.request)
    require_all_evictable(driver, "the load of a request failed")


@clause("REQ-5", "POOL-3", needs=LOOKING, executors=STEPPED)
@ENDS
def test_a_request_whose_load_failed_waits_for_full_slots(driver: Driver, end: End) -> None:
    require_waiting(driver, FULL, end)


@clause("REQ-5", "POOL-3", needs=LOOKING, executors=STEPPED, components=(SWA,))
@ENDS
def test_a_request_whose_load_failed_waits_for_swa_slots(driver: Driver, end: End) -> None:
    require_waiting(driver, SWA, end)


def require_waiting(driver: Driver, component: str, end: End) -> None:
    """A request whose load failed waits at each resume, and resumes when enough slots can be allocated."""
    admission = admit_waiting(driver)
    failed(driver, admission)
    missing = len(CACHED) - len(ON_DEVICE)
    for count in range(missing):
        with leave_only(driver, component, count):
            driver.resume(admission.request)
            before = snapshot_values(driver.snapshot())
            ready = driver.resume(admission.request)
            assert ready is None, f"POOL-3: {missing} pages did not come, {count} of {component} are left: {ready}"
            assert snapshot_values(driver.snapshot()) == before, f"POOL-3: {component} is short, and the cache changed"
    if end is Driver.finish:
        ready = driver.resume(admission.request)
        assert ready is not None, "REQ-5: there is room for what did not come"
        assert ready.cached_tokens == len(ON_DEVICE) * driver.config.page_size, f"FLOW-3: nothing came, got {ready}"
    end(driver, admission.request)
    require_all_evictable(driver, f"a request waited for {component} in place of what it had hoped to load")


@clause("REQ-2", "REQ-5", needs=LOOKING, executors=STEPPED)
@pytest.mark.parametrize("stage", BEFORE_RESUME, ids=lambda stage: stage.__name__)
def test_a_waiting_request_locks_its_device_hit_until_it_is_aborted(driver: Driver, stage: Stage) -> None:
    admission = admit_waiting(driver)
    stage(driver, admission)
    evict_all(driver)
    there = device_slots(driver, FULL).keys()
    assert tuple(ON_DEVICE) in there, f"LOCK-5: a request reads {ON_DEVICE} when it is {stage.__name__}, got {there}"
    driver.abort(admission.request)
    driver.drain()
    evict_all(driver)
    there = device_slots(driver, FULL).keys()
    assert not there, f"REQ-2: aborted when {stage.__name__}, and {there} cannot be evicted"
    require_all_evictable(driver, f"aborted when {stage.__name__}")


@clause("REQ-5", "FLOW-10", needs=LOOKING, executors=STEPPED)
def test_a_request_reuses_the_slots_of_its_failed_load(driver: Driver) -> None:
    admission = admit_waiting(driver)
    with leave_only(driver, FULL, 0):
        failed(driver, admission)
        ready = driver.resume(admission.request)
        assert ready is not None, "REQ-5: the slots of a load that failed are free, and the request waits for others"
        kept = len(PROMPT) + 1 - len(CACHED)
        own = kept * driver.config.page_size
        assert ready.table[-own:].tolist() == admission.table[-own:].tolist(), "REQ-5: slots of its own were exchanged"
    driver.finish(admission.request)
    require_all_evictable(driver, "a request finished in the slots of its failed load")
