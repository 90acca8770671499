"""FLOW-6: overlapping loads share transfers, and each ends when all its pages have ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind, TransferPhase

from .residency_cases import build_residency
from .scenario import (
    FULL,
    SWA,
    best_match,
    capacity_for,
    evict_all,
    host_variant,
    insert_fresh,
    key_of,
    put_on_host,
    tier_hits,
    window_tokens,
)
from .transfers import STAGES, Stage, bytes_moved, bytes_on_device, queue_load, start_load, transfer_views
from .tree_view import device_slots, free_device_slots

SHORT, LONG, BRANCH = (1, 2), (1, 2, 3, 4), (1, 2, 8)
PAIRS = pytest.mark.parametrize(
    ("first", "second"),
    [(LONG, LONG), (SHORT, LONG), (LONG, SHORT), (LONG, BRANCH)],
    ids=["the same", "short first", "long first", "branches"],
)


def require_nothing_twice(driver: Driver) -> None:
    """No slot is in two loads, neither as a source on the host nor as a target on the device."""
    for component in driver.config.components:
        loads = [one for one in transfer_views(driver, TransferKind.LOAD) if component in one.host]
        for tier in ("device", "host"):
            slots = [slot for one in loads for slot in getattr(one, tier)[component].tolist()]
            assert len(slots) == len(set(slots)), (
                f"FLOW-6: of {component} on the {tier}, expected each slot in one transfer, got {slots}"
            )


def require_delivery(driver: Driver, pages: Sequence[int]) -> None:
    """A prompt is on the device in full, with its state."""
    assert tier_hits(driver, pages) == (len(pages), 0), (
        f"FLOW-6: {pages} was loaded: expected {(len(pages), 0)}, got {tier_hits(driver, pages)}"
    )
    driver.verify_state(key_of(driver, pages), driver.match(key_of(driver, pages), chunked=True))


@clause("FLOW-6", "HOST-4", needs=[Capability.COUNTERS], page_sizes=[16])
@PAIRS
@STAGES
def test_pages_that_two_loads_need_are_loaded_once(
    driver: Driver, stage: Stage, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    put_on_host(driver, SHORT, LONG, BRANCH)
    before = bytes_moved(driver, TransferKind.LOAD)
    one = queue_load(driver, first)
    stage(driver, TransferKind.LOAD)
    other = queue_load(driver, second)
    require_nothing_twice(driver)
    shared = min(len(one.indices), len(other.indices), len(SHORT) * driver.config.page_size)
    heads = one.indices[:shared].tolist(), other.indices[:shared].tolist()
    assert heads[0] == heads[1], f"FLOW-6: the two share their first {shared} slots, got {heads}"
    driver.drain()
    for load in (one, other):
        delivered = driver.claim(load.ticket)
        assert delivered is not None, "FLOW-10: nothing failed"
        assert delivered.tolist() == load.indices.tolist(), f"FLOW-6: {load.indices} asked, {delivered} delivered"
    require_delivery(driver, first)
    require_delivery(driver, second)
    counted, there = bytes_moved(driver, TransferKind.LOAD) - before, bytes_on_device(driver)
    assert counted == there, f"FLOW-6: {there} bytes are on the device, {counted} were loaded"


@clause("FLOW-6", "HOST-5")
@STAGES
def test_a_load_that_shares_all_its_pages_needs_no_slots(driver: Driver, stage: Stage) -> None:
    with host_variant(driver, capacity_tokens=capacity_for(driver.config, len(LONG), 1 + 1)) as tiny:
        put_on_host(tiny, LONG)
        one = queue_load(tiny, LONG)
        stage(tiny, TransferKind.LOAD)
        before = free_device_slots(tiny)
        assert not before[FULL], f"HOST-4: the load takes all pages of the device, free are {before}"
        other = queue_load(tiny, LONG)
        after = free_device_slots(tiny)
        assert after == before, (
            f"FLOW-6: all pages are being loaded: expected a second load to leave {before} slots free, got {after}"
        )
        tiny.drain()
        for load in (one, other):
            tiny.claim(load.ticket)
        require_delivery(tiny, LONG)


@clause("FLOW-6", "FLOW-4", page_sizes=[16])
@PAIRS
@STAGES
def test_an_abandoned_load_continues_for_another_one(
    driver: Driver, stage: Stage, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    put_on_host(driver, SHORT, LONG, BRANCH)
    one = queue_load(driver, first)
    stage(driver, TransferKind.LOAD)
    other = queue_load(driver, second)
    driver.abandon(one.ticket)
    evict_all(driver)
    driver.drain()
    assert driver.load_phase(other.ticket) is TransferPhase.DONE, (
        "FLOW-6: another load needs the pages: expected it to be done"
    )
    evict_all(driver)
    delivered = driver.claim(other.ticket)
    assert delivered is not None, "FLOW-6: the one who waits gets all"
    assert delivered.tolist() == other.indices.tolist(), f"FLOW-6: {other.indices} asked, {delivered} delivered"
    require_delivery(driver, second)


@clause("FLOW-6", "FLOW-7")
@STAGES
def test_a_load_that_all_have_abandoned_completes_and_can_be_evicted(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, SHORT, LONG)
    loads = [queue_load(driver, LONG)]
    stage(driver, TransferKind.LOAD)
    loads.append(queue_load(driver, SHORT))
    for load in loads:
        driver.abandon(load.ticket)
    driver.drain()
    require_delivery(driver, LONG)
    evict_all(driver)
    assert not device_slots(driver, FULL), (
        "FLOW-7: all loads were abandoned: expected an empty device after eviction, got "
        f"{device_slots(driver, FULL).keys()}"
    )


@clause("FLOW-6", "FLOW-3")
def test_if_the_shared_part_fails_both_loads_fail_and_nothing_below_it_is_cached(driver: Driver) -> None:
    put_on_host(driver, SHORT, LONG)
    one = start_load(driver, SHORT)
    other = start_load(driver, LONG)
    first, second = driver.pending()
    driver.complete(second.ticket)
    driver.step()
    early = [driver.load_phase(load.ticket) for load in (one, other)]
    assert early == 2 * [TransferPhase.RUNNING], f"FLOW-6: what ended early waits for what came before, got {early}"
    driver.fail(first.ticket, parts_done=0)
    driver.step()
    delivered = [driver.claim(load.ticket) is not None for load in (one, other)]
    assert not any(delivered), f"FLOW-6: what both need failed, yet {delivered} was delivered"
    there = device_slots(driver, FULL).keys()
    assert not there, f"FLOW-3: the beginning did not arrive, and {there} is on the device"
    driver.load(key_of(driver, LONG))
    require_delivery(driver, LONG)


@clause("FLOW-6", "FLOW-2")
def test_a_part_that_ends_before_the_part_above_it_is_delivered_after_it(driver: Driver) -> None:
    put_on_host(driver, SHORT, LONG)
    loads = [start_load(driver, pages) for pages in (SHORT, LONG)]
    first, second = driver.pending()
    driver.complete(second.ticket)
    driver.step()
    assert not device_slots(driver, FULL), (
        f"FLOW-2: the beginning is under way, and {device_slots(driver, FULL).keys()} is there"
    )
    driver.complete(first.ticket)
    driver.step()
    delivered = [driver.claim(load.ticket) is not None for load in loads]
    assert all(delivered), f"FLOW-6: all arrived, delivered was {delivered}"
    require_delivery(driver, LONG)


@clause("FLOW-6", "FLOW-3", components=(SWA,), write_policies=[WritePolicy.WRITE_THROUGH])
def test_if_shared_swa_data_fails_both_loads_fail(driver: Driver) -> None:
    others = "H" * (len(driver.config.components) - 1)
    with host_variant(driver, sliding_window_size=window_tokens(driver.config, 2)) as two_tiers:
        build_residency(two_tiers, ("BBB"[: 1 + len(others)], "B" + others, "B" + others))
        loads = [start_load(two_tiers, pages) for pages in ((1, 2), (1, 2, 3))]
        require_nothing_twice(two_tiers)
        first, second = two_tiers.pending()
        two_tiers.fail(first.ticket, parts_done=0)
        two_tiers.complete(second.ticket)
        two_tiers.step()
        delivered = [two_tiers.claim(load.ticket) is not None for load in loads]
        assert not any(delivered), f"FLOW-6: the window of both lacks page 2, yet {delivered} was delivered"
        two_tiers.load(key_of(two_tiers, (1, 2, 3)))
        require_delivery(two_tiers, (1, 2, 3))


@clause("FLOW-6", "FLOW-3")
def test_if_the_part_of_one_load_fails_the_other_load_is_done(driver: Driver) -> None:
    put_on_host(driver, SHORT, LONG)
    one = start_load(driver, SHORT)
    other = start_load(driver, LONG)
    first, second = driver.pending()
    driver.fail(second.ticket, parts_done=0)
    driver.complete(first.ticket)
    driver.step()
    assert driver.claim(other.ticket) is None, "FLOW-3: its own part did not come"
    evict_all(driver)
    assert driver.claim(one.ticket) is not None, "FLOW-6: all that it needs came"
    assert tier_hits(driver, LONG) == (2, 2), (
        f"FLOW-3: two pages came and two did not: expected (2, 2), got {tier_hits(driver, LONG)}"
    )
    driver.load(key_of(driver, LONG))
    require_delivery(driver, LONG)


@clause("FLOW-6")
def test_loaded_pages_are_not_loaded_again(driver: Driver) -> None:
    put_on_host(driver, LONG)
    load, key = queue_load(driver, LONG), key_of(driver, LONG)
    driver.drain()
    again = [driver.load_back(key, driver.match(key, chunked=True))]
    driver.claim(load.ticket)
    again.append(driver.load_back(key, driver.match(key, chunked=True)))
    assert again == [None, None], f"FLOW-6: all of {LONG} is on the device, before its claim and after, and {again}"


@clause("FLOW-6", "FLOW-7", "INS-3")
@STAGES
def test_slots_that_two_loads_share_are_kept_until_both_are_claimed(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, LONG)
    loads = [queue_load(driver, LONG)]
    stage(driver, TransferKind.LOAD)
    loads.append(queue_load(driver, LONG))
    insert_fresh(driver, LONG)
    driver.drain()
    free = [free_device_slots(driver)[FULL]]
    receipt = driver.lock(best_match(driver, LONG))
    for load in loads:
        driver.read_ready_layers(load.ticket)
        assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed"
        free.append(free_device_slots(driver)[FULL])
    driver.unlock(receipt)
    gained = [count - free[0] for count in free]
    expected = [0, 0, len(loads[0].indices)]
    assert gained == expected, f"FLOW-6: loaded slots are freed with the last claim: expected {expected}, got {gained}"
