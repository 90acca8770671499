"""Requests over a host and storage: what a cache owes its requests while data moves. No test calls a verb of the tree.

The driver checks the laws and the bytes on every tier after each verb, and compares what a request was promised with
what it got. Hybrids of several components are tested by their verbs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache.testing.adapter import Admission, Capability, Pending
from hicache.testing.contract import clause
from hicache.testing.storage.scripted import store_of
from hicache.types import Pool, Tier, TransferKind

from .scenario import FULL, Scenario

LOOKING = (Capability.REQUESTS, Capability.HOST, Capability.SNAPSHOT, Capability.SIZES)
STEPPING = (*LOOKING, Capability.STEPPED)

PROMPT = (1, 2, 3)
OTHERS = 1000
"""Prompts that share nothing with those of a test begin with this page."""

MORE_THAN_A_HOST, MORE_THAN_BOTH = 24, 48
"""More prompts of one page than a host has room for, and than host and device have."""


def run_others(driver: Scenario, count: int, first: int = OTHERS) -> None:
    """Run so many prompts of one page, one after the other, as far as there is room, and apply what was stored."""
    for page in range(first, first + count):
        admission = driver.admit(driver.key_of([page]))
        if admission is not None:
            driver.finish(admission.request)
        end_backups(driver)


def fill_device(driver: Scenario, pages: int = 1) -> list[Admission]:
    """Admit uncached prompts of so many pages until one does not fit."""
    held: list[Admission] = []
    while True:
        first = OTHERS * 2 + len(held) * pages
        admission = driver.admit(driver.key_of(range(first, first + pages)))
        if admission is None:
            return held
        held.append(admission)


def leave_device(driver: Scenario) -> None:
    """Other requests take the whole device for a while, so that what is cached stays below, if anywhere."""
    driver.drain()
    for admission in fill_device(driver):
        driver.abort(admission.request)
    driver.drain()


def end_backups(driver: Scenario) -> None:
    """Complete the transfers to the host that a test can step, and apply them."""
    for one in backups(driver):
        driver.complete(one.ticket)
    driver.step()


def backups(driver: Scenario) -> Sequence[Pending]:
    """The transfers to the host that a test can step."""
    return driver.pending(TransferKind.BACKUP) if Capability.STEPPED in driver.adapter.capabilities else ()


def wait(driver: Scenario, admission: Admission) -> Admission:
    """The admission once nothing of its prefix is being loaded any more."""
    if not admission.loading:
        return admission
    driver.drain()
    resumed = driver.resume(admission.request)
    assert resumed is not None, "FLOW-4: every transfer has ended: expected the request to go on, got None"
    return resumed


def loading(driver: Scenario) -> Admission:
    """A request that continues the prompt, which is on the host alone, and waits for it."""
    driver.run(PROMPT)
    leave_device(driver)
    admission = driver.admit_pages(PROMPT, tail=1)
    assert admission.loading, "HOST-5: the prompt is on the host alone: expected the request to wait for its load"
    return admission


def require_nothing_held(driver: Scenario) -> None:
    """REQ-2, FLOW-7: when all has ended, every slot of each tier is free or evictable."""
    driver.drain()
    host = driver.config.host
    assert host is not None, "a test of the host has one"
    for tier, capacity in ((Tier.DEVICE, driver.config.capacity_tokens), (Tier.HOST, host.capacity_tokens)):
        for component, sizes in driver.sizes(tier).items():
            assert sizes.free + sizes.evictable == capacity[component], (
                f"REQ-2: nothing runs: expected {capacity[component]} slots of {component} on the {tier.value} free "
                f"or evictable, got {sizes}"
            )


@clause("HOST-7", "FLOW-10", "REQ-3", needs=LOOKING, components=(FULL,), alone=True, verbs=False)
def test_a_prompt_that_left_the_device_comes_back(driver: Scenario) -> None:
    driver.run(PROMPT)
    leave_device(driver)
    promised = driver.cached_pages(PROMPT)
    assert promised == len(PROMPT), f"FLOW-10: expected {len(PROMPT)} pages below the device, got {promised}"
    # The driver checks the bytes of what was loaded.
    given = wait(driver, driver.admit_pages(PROMPT, tail=1)).cached_tokens // driver.config.page_size
    assert given == promised, f"FLOW-10: {promised} pages were found: expected them all, got {given}"


@clause("FLOW-1", "FLOW-10", needs=STEPPING, components=(FULL,), alone=True, verbs=False)
@pytest.mark.parametrize("is_begun", [False, True], ids=["queued", "begun"])
def test_what_a_request_waits_for_is_not_evicted(driver: Scenario, is_begun: bool) -> None:
    admission = loading(driver)
    driver.step()
    if is_begun:
        driver.advance(driver.pending(TransferKind.LOAD)[0].ticket)
    # They store more than the host has room for.
    run_others(driver, MORE_THAN_A_HOST)
    given = wait(driver, admission).cached_tokens
    assert given == admission.cached_tokens, (
        f"FLOW-10: a request waits for {admission.cached_tokens} tokens: expected them all, got {given}"
    )


@clause("FLOW-1", "FLOW-2", "POOL-1", needs=STEPPING, components=(FULL,), alone=True, verbs=False)
@pytest.mark.parametrize("layers", [0, 1])
def test_what_is_being_stored_is_neither_overwritten_nor_found(driver: Scenario, layers: int) -> None:
    driver.run(PROMPT)
    driver.step()
    for one in backups(driver)[:1]:
        for _ in range(min(layers, one.units - 1)):
            driver.advance(one.ticket)
    # The driver compares what they find with what the cache has, and the bytes of the copy with those of the prompt.
    again = driver.admit(driver.key_of([*PROMPT, 4]))
    others = fill_device(driver)
    for admission in (*others, *([] if again is None else [again])):
        driver.finish(admission.request) if not admission.loading else driver.abort(admission.request)
    end_backups(driver)
    require_nothing_held(driver)


@clause("FLOW-3", "FLOW-4", needs=STEPPING, components=(FULL,), alone=True, verbs=False)
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_what_failed_to_be_stored_is_not_found(driver: Scenario, parts: int) -> None:
    driver.run(PROMPT)
    driver.step()
    for one in backups(driver):
        driver.fail(one.ticket, min(parts, one.parts - 1))
    driver.step()
    # The driver compares each look-up and each copy with what really arrived.
    driver.cached_pages(PROMPT)
    driver.finish(wait(driver, driver.admit_pages(PROMPT, tail=1)).request)
    driver.drain()
    found = driver.cached_pages(PROMPT)
    assert found == len(PROMPT), f"FLOW-4: the prompt was computed again: expected {len(PROMPT)} pages, got {found}"
    require_nothing_held(driver)


@clause("FLOW-3", "FLOW-4", "FLOW-10", needs=STEPPING, components=(FULL,), alone=True, verbs=False)
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_request_goes_on_with_what_arrived(driver: Scenario, parts: int) -> None:
    admission = loading(driver)
    driver.step()
    for one in driver.pending(TransferKind.LOAD):
        driver.fail(one.ticket, min(parts, one.parts - 1))
    driver.step()
    resumed = wait(driver, admission)
    # The driver checks the bytes of the tokens that it was given.
    assert resumed.cached_tokens < admission.cached_tokens, (
        f"FLOW-3: a part failed: expected fewer than {admission.cached_tokens} tokens, got {resumed.cached_tokens}"
    )
    driver.finish(resumed.request)
    driver.drain()
    found = driver.cached_pages(PROMPT)
    assert found == len(PROMPT), f"FLOW-4: the prompt was computed again: expected {len(PROMPT)} pages, got {found}"


@clause("REQ-2", "FLOW-1", "FLOW-7", needs=STEPPING, components=(FULL,), alone=True, verbs=False)
@pytest.mark.parametrize("layers", [0, 1])
def test_an_abort_while_loading_gives_everything_back(driver: Scenario, layers: int) -> None:
    admission = loading(driver)
    driver.step()
    for _ in range(layers):
        driver.advance(driver.pending(TransferKind.LOAD)[0].ticket)
    driver.abort(admission.request)
    # The slots that the transfer still writes to go to none of these.
    others = fill_device(driver)
    driver.drain()
    for other in others:
        driver.finish(other.request)
    require_nothing_held(driver)


@clause("FLOW-1", "LOCK-2", "REQ-2", needs=STEPPING, components=(FULL,), alone=True, verbs=False)
def test_two_requests_wait_for_one_prefix_and_one_gives_up(driver: Scenario) -> None:
    first = loading(driver)
    second = driver.admit_pages(PROMPT, tail=1)
    driver.step()
    driver.abort(first.request)
    driver.complete(driver.pending(TransferKind.LOAD)[0].ticket)
    driver.step()
    run_others(driver, MORE_THAN_A_HOST)
    given = wait(driver, second).cached_tokens
    assert given == second.cached_tokens, (
        f"FLOW-10: a request waits for {second.cached_tokens} tokens: expected them all, got {given}"
    )
    driver.finish(second.request)
    require_nothing_held(driver)


@clause("REQ-2", "LOCK-2", needs=LOOKING, components=(FULL,), alone=True, verbs=False)
def test_a_request_that_is_not_admitted_holds_nothing(driver: Scenario) -> None:
    driver.run(PROMPT)
    leave_device(driver)
    others = fill_device(driver)
    # It finds its prompt on the host, and no room on the device.
    refused = driver.admit(driver.key_of([*PROMPT, 4]))
    assert refused is None, "REQ-2: other requests have the whole device: expected no admission"
    for other in others:
        driver.abort(other.request)
    require_nothing_held(driver)


@clause("EVICT-11", needs=LOOKING, components=(FULL,), alone=True, verbs=False)
def test_the_host_keeps_what_was_used_last(driver: Scenario) -> None:
    if driver.config.storage is not None:
        pytest.skip("storage has what the host evicts: nothing is lost")
    unused, used = driver.key_of([2]), driver.key_of([1])
    driver.run([1])
    driver.run([2])
    leave_device(driver)
    driver.abort(wait(driver, driver.admit_pages([1], tail=1)).request)
    leave_device(driver)
    for page in range(MORE_THAN_BOTH):
        run_others(driver, 1, OTHERS + page)
        # A look-up may count as a use: the oracle reads what is there.
        left = driver.cached_length_of(used), driver.cached_length_of(unused)
        assert left[0] or not left[1], "EVICT-11: page 1 was used after page 2: expected page 2 to go first"
        if not all(left):
            break
    assert not all(left), f"EVICT-1: {MORE_THAN_BOTH} more pages were stored: expected pages 1 and 2 to be evicted"


@clause("STORE-3", "REQ-3", needs=(*STEPPING, Capability.STORAGE), components=(FULL,), alone=True, verbs=False)
@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_damaged_object_is_not_read(driver: Scenario, page: int) -> None:
    store = store_of(driver.config)
    assert store is not None, f"{driver.config.name} keeps its objects in a scripted store"
    driver.run(PROMPT)
    leave_device(driver)
    name = driver.storage_keys(Pool.KV, driver.key_of(PROMPT))[page]
    assert name in store.objects, f"STORE-3: the prompt was stored: expected object {name}, got {list(store.objects)}"
    store.objects[name] = store.objects[name][:-1]
    run_others(driver, MORE_THAN_A_HOST)
    leave_device(driver)
    # A request may be given less than it was promised, as after a failed transfer. The driver checks its bytes.
    driver.failures += 1
    again = wait(driver, driver.admit_pages(PROMPT, tail=1))
    # The driver compares what is found now, behind the damaged page, with what the cache has without a gap.
    driver.cached_pages(PROMPT)
    driver.finish(again.request)
    require_nothing_held(driver)
