"""REQ-5: a request that hits the host gets all slots that it needs, or none; in the end it is admitted."""

from __future__ import annotations

from contextlib import ExitStack

from hicache.config import ExecutorKind
from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import require_all_evictable
from .scenario import FULL, MAMBA, SWA, admit, capacity_for, has, host_variant, leave_only, put_on_host
from .waiting_request import CACHED, PROMPT

LOOKING = (Capability.REQUESTS, Capability.HOST, Capability.SNAPSHOT, Capability.SIZES)
STEPPED = (ExecutorKind.STEPPED,)
PAGES = len(PROMPT) + 1
"""Pages of the whole prompt; the last one has a single token."""


def ask(driver: Driver) -> Admission | None:
    """Try to admit a request whose prompt begins on the host."""
    return driver.admit(driver.key([*driver.prompt(PROMPT), 0]))


def obtainable(driver: Driver) -> dict[str, int]:
    """The device slots of each component that are free or evictable."""
    return {name: sizes.free + sizes.evictable for name, sizes in driver.adapter.sizes().items()}


@clause("REQ-5", "REQ-2", needs=LOOKING, executors=STEPPED)
def test_with_too_few_full_slots_a_request_takes_nothing(driver: Driver) -> None:
    require_all_or_nothing(driver, FULL, PAGES)


@clause("REQ-5", "REQ-2", needs=LOOKING, executors=STEPPED, components=(SWA,))
def test_with_too_few_swa_slots_a_request_takes_nothing(driver: Driver) -> None:
    require_all_or_nothing(driver, SWA, PAGES)


@clause("REQ-5", "REQ-2", needs=LOOKING, executors=STEPPED, components=(MAMBA,))
def test_with_too_few_states_a_request_takes_nothing(driver: Driver) -> None:
    require_all_or_nothing(driver, MAMBA, 2)


def require_all_or_nothing(driver: Driver, component: str, most: int) -> None:
    """With each number of free pages a request is refused and changes nothing, or is admitted and needs no more."""
    outcomes = []
    for count in range(most + 1):
        driver.reset()
        put_on_host(driver, CACHED)
        other = admit(driver, [9])
        with leave_only(driver, component, count):
            before = obtainable(driver)
            admission = ask(driver)
            if admission is None:
                require_no_trace(driver, before, f"{count} of {component} were left")
            else:
                require_enough(driver, admission)
                driver.finish(admission.request)
        driver.abort(other.request)
        require_all_evictable(driver, f"{count} of {component} were left for a request")
        outcomes.append(admission is not None)
    expected = "no request while nothing is left, and one from some room on"
    assert not outcomes[0], f"REQ-5: of {component} expected {expected}, got {outcomes}"
    assert outcomes[-1], f"REQ-5: of {component} expected {expected}, got {outcomes}"
    assert outcomes == sorted(outcomes), f"REQ-5: of {component} expected {expected}, got {outcomes}"


def require_no_trace(driver: Driver, before: dict[str, int], when: str) -> None:
    """A refused request took nothing: after a drain the same slots can be allocated as before."""
    driver.drain()
    after = obtainable(driver)
    assert after == before, f"REQ-5: {when}: of {before} a request that was refused left {after}"


def require_enough(driver: Driver, admission: Admission) -> None:
    """The request resumes with its promised slots while others hold everything else."""
    with ExitStack() as others:
        for component in (SWA, FULL, MAMBA):
            if has(driver, component):
                others.enter_context(leave_only(driver, component, 0))
        driver.drain()
        if admission.loading:
            ready = driver.resume(admission.request)
            assert ready is not None, "REQ-5: the load of an admitted request ended, and it waits for slots"
            promised = admission.cached_tokens
            assert ready.cached_tokens == promised, f"REQ-5: {promised} tokens were promised, got {ready}"


@clause("REQ-5", "HOST-5", needs=LOOKING)
def test_a_request_that_was_refused_is_admitted_when_others_have_finished(driver: Driver) -> None:
    put_on_host(driver, CACHED)
    other = admit(driver, [9])
    for component in driver.config.components:
        with leave_only(driver, component, 0):
            assert ask(driver) is None, f"POOL-3: nothing of {component} was left, and a request was admitted"
        driver.drain()
    driver.finish(other.request)
    require_served(driver)


@clause("REQ-5", "FLOW-4", needs=LOOKING, executors=STEPPED)
def test_a_request_that_fits_an_empty_cache_is_admitted_whichever_tier_has_its_prefix(driver: Driver) -> None:
    with host_variant(driver, capacity_tokens=capacity_for(driver.config, PAGES, 1)) as tiny:
        put_on_host(tiny, CACHED)
        for _ in range(3):
            require_served(tiny)
            tiny.evict(FULL, tiny.config.capacity_tokens[FULL])
        require_all_evictable(tiny, "three requests were served that fill the device")


def require_served(driver: Driver) -> None:
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
def test_repeated_refusals_of_a_request_take_no_slots(driver: Driver) -> None:
    put_on_host(driver, CACHED)
    other = admit(driver, [9])
    with leave_only(driver, FULL, PAGES - 1):
        before = obtainable(driver)
        for number in range(4):
            assert ask(driver) is None, f"POOL-3: {PAGES - 1} pages are left, a request of {PAGES} was admitted"
            if number % 2:
                require_no_trace(driver, before, f"{number + 1} times too little was left")
    driver.abort(other.request)
    require_all_evictable(driver, "a request was refused four times")
