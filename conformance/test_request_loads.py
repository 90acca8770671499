"""REQ-2, REQ-5, REQ-7: requests whose prefix is loaded from the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.types import Handle, TransferKind

from .scenario import FULL, MAMBA, SWA, Scenario
from .snapshot_values import snapshot_values

STEPPED = (ExecutorKind.STEPPED,)
LOOKING = (Capability.REQUESTS, Capability.HOST, Capability.SNAPSHOT, Capability.SIZES)


# A request that waits for a load, and the phases of that load.


ON_DEVICE, CACHED, PROMPT = [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]
"""The pages on the device, the pages on either tier, and the pages of the prompt, which has one more token."""


def admit_waiting(driver: Scenario) -> Admission:
    """Admit a request whose prompt is cached on the device, then on the host alone, and then not at all."""
    driver.put_on_host(ON_DEVICE, CACHED)
    driver.load(driver.key_of(ON_DEVICE))
    admission = driver.admit_pages(PROMPT, tail=1)
    cached = len(CACHED) * driver.config.page_size
    assert (admission.loading, admission.cached_tokens) == (True, cached), (
        f"HOST-4: expected a request that waits for {cached} cached tokens, got {admission}"
    )
    return admission


def queued(driver: Scenario, _: Admission) -> None:
    """The load has not started."""


def running(driver: Scenario, _: Admission) -> None:
    """One layer of the load has moved."""
    driver.step()
    driver.advance(driver.pending_transfer(TransferKind.LOAD).ticket)


def arrived(driver: Scenario, _: Admission) -> None:
    """The load has ended, and the request was not resumed."""
    driver.step()
    driver.complete_all()


def resumed(driver: Scenario, admission: Admission) -> None:
    """The load has ended, and the request was resumed."""
    arrived(driver, admission)
    assert driver.resume(admission.request) is not None, (
        "FLOW-4: the load has ended: expected the request to resume, but it still waits"
    )


def failed(driver: Scenario, _: Admission) -> None:
    """The load has failed, and the request was not resumed."""
    driver.step()
    driver.fail(driver.pending_transfer(TransferKind.LOAD).ticket, 0)
    driver.step()


def failed_without_room(driver: Scenario, admission: Admission) -> None:
    """The load has failed, and resume found no slots for the pages that were not loaded."""
    failed(driver, admission)
    slots = driver.allocate_all()
    assert driver.resume(admission.request) is None, (
        "POOL-3: no slot is free for the pages that were not loaded: expected None from resume"
    )
    driver.free(slots)


def replaced(driver: Scenario, admission: Admission) -> None:
    """The load has failed, and the request was resumed with new slots for the pages that were not loaded."""
    failed(driver, admission)
    assert driver.resume(admission.request) is not None, (
        "REQ-5: there is room for the pages that were not loaded: expected the request to resume"
    )


Phase = Callable[[Scenario, Admission], None]

BEFORE_RESUME: tuple[Phase, ...] = (queued, running, arrived, failed, failed_without_room)
"""The phases before the request is resumed, in which it must not compute."""

PHASES = pytest.mark.parametrize("phase", [*BEFORE_RESUME, resumed, replaced], ids=lambda phase: phase.__name__)


# REQ-2, REQ-5: a request resumes when its load has ended, with or without the loaded data, and not before.

End = Callable[[Scenario, Handle], None]
ENDS = pytest.mark.parametrize("end", [Scenario.finish, Scenario.abort], ids=["finished", "aborted"])


@clause("FLOW-4", "REQ-2", needs=LOOKING, executors=STEPPED)
@pytest.mark.parametrize("phase", [queued, running], ids=["queued", "running"])
def test_a_request_does_not_resume_before_its_load_has_ended(driver: Scenario, phase: Phase) -> None:
    admission = admit_waiting(driver)
    phase(driver, admission)
    for _ in range(3):
        before = snapshot_values(driver.snapshot())
        ready = driver.resume(admission.request)
        assert ready is None, f"FLOW-4: the load was {phase.__name__} and has not ended: expected None, got {ready}"
        assert snapshot_values(driver.snapshot()) == before, (
            "REQ-2: a request asked how it stands, and the cache changed"
        )
        driver.step()
    driver.drain()
    ready = driver.resume(admission.request)
    assert ready is not None, "FLOW-4: the load has ended, and the request still waits"
    assert ready.cached_tokens == admission.cached_tokens, f"FLOW-10: {admission} was promised, got {ready}"
    driver.finish(admission.request)
    driver.require_all_evictable(f"a request finished that had asked when it was {phase.__name__}")


@clause("REQ-5", "FLOW-3", needs=LOOKING, executors=STEPPED)
@ENDS
def test_a_request_whose_load_failed_resumes_with_its_device_hit(driver: Scenario, end: End) -> None:
    admission = admit_waiting(driver)
    failed(driver, admission)
    ready = driver.resume(admission.request)
    assert ready is not None, "REQ-5: there is room for what did not come"
    expected = len(ON_DEVICE) * driver.config.page_size
    assert ready.cached_tokens == expected, f"FLOW-3: the device had {expected} tokens and no more came, got {ready}"
    assert not ready.loading, f"FLOW-4: the load has ended, got {ready}"
    driver.checkpoint(admission.request, driver.tokens_in_pages(len(ON_DEVICE) + 1))
    end(driver, admission.request)
    driver.require_all_evictable("the load of a request failed")


@clause("REQ-5", "POOL-3", needs=LOOKING, executors=STEPPED)
@ENDS
def test_a_request_whose_load_failed_waits_for_full_slots(driver: Scenario, end: End) -> None:
    require_waiting(driver, FULL, end)


@clause("REQ-5", "POOL-3", needs=LOOKING, executors=STEPPED, components=(SWA,))
@ENDS
def test_a_request_whose_load_failed_waits_for_swa_slots(driver: Scenario, end: End) -> None:
    require_waiting(driver, SWA, end)


def require_waiting(driver: Scenario, component: str, end: End) -> None:
    """A request whose load failed waits at each resume, and resumes when enough slots can be allocated."""
    admission = admit_waiting(driver)
    failed(driver, admission)
    missing = len(CACHED) - len(ON_DEVICE)
    for count in range(missing):
        with driver.leave_only(component, count):
            driver.resume(admission.request)
            before = snapshot_values(driver.snapshot())
            ready = driver.resume(admission.request)
            assert ready is None, f"POOL-3: {missing} pages did not come, {count} of {component} are left: {ready}"
            assert snapshot_values(driver.snapshot()) == before, f"POOL-3: {component} is short, and the cache changed"
    if end is Scenario.finish:
        ready = driver.resume(admission.request)
        assert ready is not None, "REQ-5: there is room for what did not come"
        assert ready.cached_tokens == len(ON_DEVICE) * driver.config.page_size, f"FLOW-3: nothing came, got {ready}"
    end(driver, admission.request)
    driver.require_all_evictable(f"a request waited for {component} in place of what it had hoped to load")


@clause("REQ-2", "REQ-5", needs=LOOKING, executors=STEPPED)
@pytest.mark.parametrize("phase", BEFORE_RESUME, ids=lambda phase: phase.__name__)
def test_a_waiting_request_locks_its_device_hit_until_it_is_aborted(driver: Scenario, phase: Phase) -> None:
    admission = admit_waiting(driver)
    phase(driver, admission)
    driver.evict_all()
    there = driver.device_slots(FULL).keys()
    assert tuple(ON_DEVICE) in there, f"LOCK-5: a request reads {ON_DEVICE} when it is {phase.__name__}, got {there}"
    driver.abort(admission.request)
    driver.drain()
    driver.evict_all()
    there = driver.device_slots(FULL).keys()
    assert not there, f"REQ-2: aborted when {phase.__name__}, and {there} cannot be evicted"
    driver.require_all_evictable(f"aborted when {phase.__name__}")


@clause("REQ-5", "FLOW-10", needs=LOOKING, executors=STEPPED)
def test_a_request_reuses_the_slots_of_its_failed_load(driver: Scenario) -> None:
    admission = admit_waiting(driver)
    with driver.leave_only(FULL, 0):
        failed(driver, admission)
        ready = driver.resume(admission.request)
        assert ready is not None, "REQ-5: the slots of a load that failed are free, and the request waits for others"
        kept = len(PROMPT) + 1 - len(CACHED)
        own = kept * driver.config.page_size
        assert ready.table[-own:].tolist() == admission.table[-own:].tolist(), "REQ-5: slots of its own were exchanged"
    driver.finish(admission.request)
    driver.require_all_evictable("a request finished in the slots of its failed load")


# REQ-7, HOST-6: a request is computed while it loads, layer by layer.

EARLY = (Capability.REQUEST_LAYERS, Capability.SNAPSHOT, Capability.SIZES)


def wait_for_layers(driver: Scenario, admission: Admission, most: int | None = None) -> None:
    """Wait for each layer of each pool that the request reads, or for the first ones, and read it."""
    for pool, layers in driver.stack().items():
        for layer in range(layers)[:most]:
            can_read = driver.wait_request_layer(admission.request, pool, layer)
            assert can_read, f"REQ-7: the load was started: expected layer {layer} of {pool} to be readable"


@clause("REQ-7", "HOST-6", needs=EARLY, layouts=True)
def test_a_request_reads_each_layer_that_it_waited_for(driver: Scenario) -> None:
    admission = admit_waiting(driver)
    driver.step()
    wait_for_layers(driver, admission)
    driver.abort(admission.request)
    driver.require_all_evictable("aborted after it had read all layers")


@clause("REQ-7", "HOST-6", needs=EARLY, write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_request_reads_nothing_of_a_load_that_has_not_started(driver: Scenario) -> None:
    admission = admit_waiting(driver)
    for pool in driver.stack():
        can_read = driver.wait_request_layer(admission.request, pool, 0)
        assert not can_read, f"HOST-6: nothing of {pool} has moved: expected that it cannot be read"
    driver.abort(admission.request)


@clause("REQ-7", "REQ-3", "HOST-6", needs=EARLY)
def test_what_a_request_computed_while_it_loaded_stays(driver: Scenario) -> None:
    admission = admit_waiting(driver)
    driver.step()
    wait_for_layers(driver, admission)
    driver.compute_early(admission.request)
    # A second wait brings nothing back.
    wait_for_layers(driver, admission)
    driver.drain()
    ready = driver.resume(admission.request)
    assert ready is not None, "FLOW-4: the load has ended"
    assert ready.cached_tokens == admission.cached_tokens, f"FLOW-10: {admission} was promised, got {ready}"
    driver.finish(admission.request)
    driver.require_all_evictable("a request finished that was computed while it loaded")


@clause("REQ-7", "FLOW-3", needs=EARLY, executors=STEPPED)
@pytest.mark.parametrize("layers", [0, 1])
def test_a_request_is_computed_again_after_its_load_failed(driver: Scenario, layers: int) -> None:
    admission = admit_waiting(driver)
    driver.step()
    wait_for_layers(driver, admission, layers)
    driver.compute_early(admission.request)
    driver.fail(driver.pending_transfer(TransferKind.LOAD).ticket, 0)
    driver.step()
    for pool in driver.stack():
        can_read = driver.wait_request_layer(admission.request, pool, 0)
        assert not can_read, f"HOST-6: the load has failed: expected that nothing of {pool} can be read"
    ready = driver.resume(admission.request)
    assert ready is not None, "REQ-5: there is room for what did not come"
    expected = len(ON_DEVICE) * driver.config.page_size
    assert ready.cached_tokens == expected, f"FLOW-3: the device had {expected} tokens and no more came, got {ready}"
    driver.finish(admission.request)
    driver.require_all_evictable("a request finished that was computed again")


# REQ-2: a request that is aborted while it waits for a load releases everything.


@clause("REQ-2", needs=LOOKING, executors=STEPPED)
@PHASES
def test_an_abort_releases_everything_at_each_stage_of_the_load(driver: Scenario, phase: Phase) -> None:
    admission = admit_waiting(driver)
    phase(driver, admission)
    driver.abort(admission.request)
    assert tuple(PROMPT) not in driver.device_slots(FULL), f"REQ-2: an abort cached {driver.device_slots(FULL).keys()}"
    driver.require_all_evictable(f"aborted when {phase.__name__}")


@clause("REQ-2", needs=LOOKING)
def test_an_abort_releases_everything_after_any_number_of_steps(driver: Scenario) -> None:
    for steps in range(4):
        driver.reset()
        admission = admit_waiting(driver)
        for _ in range(steps):
            driver.step()
        driver.abort(admission.request)
        driver.drain()
        driver.require_requests_released(f"aborted after {steps} steps")
        driver.evict_all()
        driver.evict_all_host()
        driver.require_all_free(f"aborted after {steps} steps")


@clause("REQ-2", "FLOW-6", needs=LOOKING, executors=STEPPED, page_sizes=[1])
@PHASES
def test_an_abort_does_not_stop_a_load_that_another_request_waits_for(driver: Scenario, phase: Phase) -> None:
    first = admit_waiting(driver)
    second = driver.admit_pages(PROMPT, tail=1)
    assert second.loading, f"FLOW-6: {CACHED} is being loaded, and the second request got {second}"
    phase(driver, first)
    driver.abort(first.request)
    driver.drain()
    ready = driver.resume(second.request)
    assert ready is not None, (
        f"REQ-2: another request was aborted when {phase.__name__}, expected this one to resume, got None"
    )
    driver.finish(second.request)
    driver.require_all_evictable(f"aborted when {phase.__name__}, and another finished")


@clause("REQ-2", "INS-3", needs=LOOKING, executors=STEPPED)
def test_loaded_slots_outside_the_tree_stay_for_other_readers(driver: Scenario) -> None:
    first = admit_waiting(driver)
    second = driver.admit_pages(PROMPT, tail=1)
    driver.step()
    # Another request computes the same pages, so that the tree has other slots when the load ends.
    driver.insert_fresh(CACHED)
    driver.complete(driver.pending_transfer(TransferKind.LOAD).ticket)
    driver.step()
    driver.abort(first.request)
    driver.insert_fresh([7, 8])
    assert driver.resume(second.request) is not None, "FLOW-4: the load has ended"
    driver.finish(second.request)
    driver.require_all_evictable("aborted, and another finished on the tree's slots")


# REQ-5: a request that hits the host gets all slots that it needs, or none; in the end it is admitted.

PAGES = len(PROMPT) + 1
"""Pages of the whole prompt; the last one has a single token."""


def ask(driver: Scenario) -> Admission | None:
    """Try to admit a request whose prompt begins on the host."""
    return driver.admit(driver.key([*driver.prompt(PROMPT), 0]))


def obtainable(driver: Scenario) -> dict[str, int]:
    """The device slots of each component that are free or evictable."""
    return {name: sizes.free + sizes.evictable for name, sizes in driver.adapter.sizes().items()}


@clause("REQ-5", "REQ-2", needs=LOOKING, executors=STEPPED)
def test_with_too_few_full_slots_a_request_takes_nothing(driver: Scenario) -> None:
    require_all_or_nothing(driver, FULL, PAGES)


@clause("REQ-5", "REQ-2", needs=LOOKING, executors=STEPPED, components=(SWA,))
def test_with_too_few_swa_slots_a_request_takes_nothing(driver: Scenario) -> None:
    require_all_or_nothing(driver, SWA, PAGES)


@clause("REQ-5", "REQ-2", needs=LOOKING, executors=STEPPED, components=(MAMBA,))
def test_with_too_few_states_a_request_takes_nothing(driver: Scenario) -> None:
    require_all_or_nothing(driver, MAMBA, 2)


def require_all_or_nothing(driver: Scenario, component: str, most: int) -> None:
    """With each number of free pages a request is refused and changes nothing, or is admitted and needs no more."""
    outcomes = []
    for count in range(most + 1):
        driver.reset()
        driver.put_on_host(CACHED)
        other = driver.admit_pages([9])
        with driver.leave_only(component, count):
            before = obtainable(driver)
            admission = ask(driver)
            if admission is None:
                require_no_trace(driver, before, f"{count} of {component} were left")
            else:
                require_enough(driver, admission)
                driver.finish(admission.request)
        driver.abort(other.request)
        driver.require_all_evictable(f"{count} of {component} were left for a request")
        outcomes.append(admission is not None)
    expected = "no request while nothing is left, and one from some room on"
    assert not outcomes[0], f"REQ-5: of {component} expected {expected}, got {outcomes}"
    assert outcomes[-1], f"REQ-5: of {component} expected {expected}, got {outcomes}"
    assert outcomes == sorted(outcomes), f"REQ-5: of {component} expected {expected}, got {outcomes}"


def require_no_trace(driver: Scenario, before: dict[str, int], when: str) -> None:
    """A refused request took nothing: after a drain the same slots can be allocated as before."""
    driver.drain()
    after = obtainable(driver)
    assert after == before, f"REQ-5: {when}: of {before} a request that was refused left {after}"


def require_enough(driver: Scenario, admission: Admission) -> None:
    """The request resumes with its promised slots while others hold everything else."""
    with ExitStack() as others:
        for component in (SWA, FULL, MAMBA):
            if driver.has(component):
                others.enter_context(driver.leave_only(component, 0))
        driver.drain()
        if admission.loading:
            ready = driver.resume(admission.request)
            assert ready is not None, "REQ-5: the load of an admitted request ended, and it waits for slots"
            promised = admission.cached_tokens
            assert ready.cached_tokens == promised, f"REQ-5: {promised} tokens were promised, got {ready}"


@clause("REQ-5", "HOST-5", needs=LOOKING)
def test_a_request_that_was_refused_is_admitted_when_others_have_finished(driver: Scenario) -> None:
    driver.put_on_host(CACHED)
    other = driver.admit_pages([9])
    for component in driver.config.components:
        with driver.leave_only(component, 0):
            assert ask(driver) is None, f"POOL-3: nothing of {component} was left, and a request was admitted"
        driver.drain()
    driver.finish(other.request)
    require_served(driver)


@clause("REQ-5", "FLOW-4", needs=LOOKING, executors=STEPPED)
def test_a_request_that_fits_an_empty_cache_is_admitted_whichever_tier_has_its_prefix(driver: Scenario) -> None:
    with driver.host_variant(capacity_tokens=driver.capacity_for(PAGES, 1)) as tiny:
        tiny.put_on_host(CACHED)
        for _ in range(3):
            require_served(tiny)
            tiny.evict(FULL, tiny.config.capacity_tokens[FULL])
        tiny.require_all_evictable("three requests were served that fill the device")


def require_served(driver: Scenario) -> None:
    """Without other requests a request is admitted within three attempts, and finishes."""
    for _ in range(3):
        admission = ask(driver)
        if admission is not None:
            break
        driver.drain()
    assert admission is not None, f"REQ-5: {PAGES} pages fit an empty cache, and a request of as many never gets in"
    driver.drain()
    if admission.loading:
        assert driver.resume(admission.request) is not None, "FLOW-4: the load has ended, and the request still waits"
    driver.finish(admission.request)


@clause("REQ-5", "REQ-2", needs=LOOKING, executors=STEPPED)
def test_repeated_refusals_of_a_request_take_no_slots(driver: Scenario) -> None:
    driver.put_on_host(CACHED)
    other = driver.admit_pages([9])
    with driver.leave_only(FULL, PAGES - 1):
        before = obtainable(driver)
        for number in range(4):
            assert ask(driver) is None, f"POOL-3: {PAGES - 1} pages are left, a request of {PAGES} was admitted"
            if number % 2:
                require_no_trace(driver, before, f"{number + 1} times too little was left")
    driver.abort(other.request)
    driver.require_all_evictable("a request was refused four times")
