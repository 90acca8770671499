"""FLOW-5, FLOW-6: the tree changes during a transfer, and transfers of one prompt overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Handle, LoadBack, Pool, TransferKind, TransferPhase

from .residency_cases import build_residency
from .scenario import FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .transfer_phases import PHASES, Phase

SHORT, LONG, BRANCH = (1, 2), (1, 2, 3, 4), (1, 2, 8)


# FLOW-5: a handle of a node that changed since the match is resolved again, or refused.


Change = Callable[[Scenario], object]


def split(driver: Scenario) -> None:
    """The node is split into three."""
    for pages in (LONG[:1], LONG[:3]):
        driver.match(driver.key_of([*pages, 9]), chunked=True)


def grow(driver: Scenario) -> None:
    """A longer prompt is cached, and evicted from the device."""
    driver.put_pages([*LONG, 5])
    driver.drain()
    driver.evict_all()


def branch(driver: Scenario) -> None:
    """A diverging prompt is cached, and evicted from the device."""
    driver.put_pages([*LONG[:2], 9])
    driver.drain()
    driver.evict_all()


def come_and_go(driver: Scenario) -> None:
    """The prompt is loaded, and evicted from the device again."""
    driver.load(driver.key_of(LONG))
    driver.evict_all()


CHANGES = pytest.mark.parametrize("change", [split, grow, branch, come_and_go], ids=lambda change: change.__name__)


@clause("FLOW-5", "FLOW-10", page_sizes=[16])
@CHANGES
def test_a_handle_loads_the_whole_prompt_after_the_tree_changed(driver: Scenario, change: Change) -> None:
    driver.put_on_host(LONG)
    key = driver.key_of(LONG)
    found = driver.match(key)
    change(driver)
    load = driver.load_back(key, found)
    assert load is not None, f"FLOW-5: all of {WHOLE} is on the host after {change.__name__}"
    driver.drain()
    delivered = driver.claim(load.ticket)
    tokens = len(LONG) * driver.config.page_size
    count = 0 if delivered is None else len(delivered)
    assert count == tokens, f"FLOW-5: {tokens} tokens were found, {count} were delivered after {change.__name__}"
    assert driver.tier_hits(LONG) == (4, 0), (
        f"FLOW-10: it is on the device: expected (4, 0), got {driver.tier_hits(WHOLE)}"
    )


@clause("FLOW-5", "FLOW-4", page_sizes=[16])
@CHANGES
@PHASES
def test_a_load_brings_the_whole_prompt_if_the_tree_changes_meanwhile(
    driver: Scenario, phase: Phase, change: Change
) -> None:
    driver.put_on_host(LONG)
    load = driver.queue_load(LONG)
    phase(driver, TransferKind.LOAD)
    change(driver)
    driver.drain()
    assert driver.claim(load.ticket) is not None, (
        f"FLOW-5: no transfer failed after {change.__name__}: expected the slots of the load, got None"
    )
    assert driver.tier_hits(LONG) == (4, 0), (
        f"FLOW-10: it is on the device: expected (4, 0), got {driver.tier_hits(WHOLE)}"
    )


@clause("FLOW-5", page_sizes=[16])
def test_a_handle_of_a_node_that_left_both_tiers_is_refused(driver: Scenario) -> None:
    driver.put_on_host(LONG)
    handle = driver.match(driver.key_of(LONG)).best_match
    driver.evict_all_host()
    _require_refusals(driver, handle, "left both tiers")
    driver.put_on_host(LONG)
    _require_refusals(driver, handle, "left both tiers, and was cached again")


@clause("FLOW-5", "EVICT-9", page_sizes=[16])
def test_a_handle_from_before_a_reset_is_refused(driver: Scenario) -> None:
    driver.put_on_host(LONG)
    handle = driver.match(driver.key_of(LONG)).best_match
    driver.reset()
    _require_refusals(driver, handle, "was removed by a reset")
    driver.put_on_host(LONG)
    _require_refusals(driver, handle, "was removed by a reset, and was cached again")


@clause("FLOW-5", "HOST-5", page_sizes=[16])
def test_pages_computed_since_the_match_are_not_loaded(driver: Scenario) -> None:
    driver.put_on_host(LONG)
    key = driver.key_of(LONG)
    found = driver.match(key)
    driver.insert_fresh(LONG)
    there = driver.device_slots(FULL)
    load = driver.adapter.load_back(found.best_match, quota=None)
    assert load is None, f"FLOW-5: it is already on the device, and {load} was started"
    assert not driver.transfer_views(TransferKind.LOAD), "FLOW-5: nothing is to be loaded"
    assert driver.device_slots(FULL) == there, f"FLOW-5: {there} became {driver.device_slots(FULL)}"


@clause("FLOW-5", "FLOW-10", page_sizes=[16])
def test_a_load_brings_what_left_the_device_since_the_match(driver: Scenario) -> None:
    driver.put_on_both(LONG[:2], LONG)
    key, size = driver.key_of(LONG), driver.config.page_size
    driver.evict(FULL, 1)
    found = driver.match(key)
    kept = len(found.device_indices) // size
    assert kept in (2, 3), f"EVICT-2: the end of the prompt leaves the device first, got {driver.tier_hits(WHOLE)}"
    driver.evict_all()
    load = driver.adapter.load_back(found.best_match, quota=None)
    assert load is not None, "FLOW-5: more left the device since the match, and all of it is on the host"
    assert len(load.indices) == 4 * size, f"FLOW-5: expected {4 * size} tokens, got {len(load.indices)}"
    driver.adapter.drain()
    driver.adapter.claim(load.ticket)
    assert driver.tier_hits(LONG) == (4, 0), (
        f"FLOW-10: it is on the device: expected (4, 0), got {driver.tier_hits(WHOLE)}"
    )


def _require_refusals(driver: Scenario, handle: Handle, what: str) -> None:
    with driver.refused("FLOW-5", f"a load of a node that {what}"):
        driver.adapter.load_back(handle, quota=None)
    with driver.refused("FLOW-5", f"a host lock on a node that {what}"):
        driver.adapter.lock_host(handle)
    with driver.refused("FLOW-5", f"a lock on a node that {what}"):
        driver.adapter.lock(handle)


# INS-3, FLOW-5, FLOW-6: inserts over what is being loaded or backed up.


WHOLE = (1, 2, 3)


@clause("INS-3", "FLOW-1", "FLOW-5", page_sizes=[16])
@PHASES
def test_an_insert_over_a_load_keeps_its_own_slots_and_readers_keep_the_loaded_ones(
    driver: Scenario, phase: Phase
) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    own = driver.insert_fresh(WHOLE)
    there = driver.device_slots(FULL)
    driver.drain()
    driver.read_ready_layers(load.ticket)
    free = driver.free_device_slots()[FULL]
    delivered = driver.claim(load.ticket)
    assert delivered is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    assert delivered.tolist() == own.slots.tolist(), f"INS-3: the tree has {own.slots}, the load delivered {delivered}"
    assert driver.device_slots(FULL) == there, f"INS-3: the tree's slots {there} became {driver.device_slots(FULL)}"
    given_back = driver.free_device_slots()[FULL] - free
    assert given_back == len(load.indices), f"FLOW-1: {len(load.indices)} slots were kept, {given_back} were given back"


@clause("FLOW-10", "FLOW-3", "INS-3", page_sizes=[16])
def test_an_insert_over_a_failed_load_keeps_its_own_slots_and_the_load_fails(driver: Scenario) -> None:
    """The caller may have read the promised slots, which did not get their bytes."""
    driver.put_on_host(WHOLE)
    load = driver.start_load(WHOLE)
    driver.insert_fresh(WHOLE)
    there = driver.device_slots(FULL)
    driver.fail(driver.pending_transfer(TransferKind.LOAD).ticket, parts_done=0)
    driver.step()
    phase = driver.load_phase(load.ticket)
    assert phase is TransferPhase.FAILED, f"FLOW-10: nothing came to the {len(load.indices)} slots, got {phase.value}"
    assert driver.claim(load.ticket) is None, "FLOW-10: a load that failed delivers nothing"
    assert driver.device_slots(FULL) == there, f"INS-3: the tree's slots {there} became {driver.device_slots(FULL)}"
    assert driver.tier_hits(WHOLE) == (3, 0), (
        f"INS-3: three pages were computed: expected (3, 0), got {driver.tier_hits(WHOLE)}"
    )


@clause("INS-3", "FLOW-5", page_sizes=[16])
@PHASES
def test_an_insert_over_the_first_pages_of_a_load_leaves_the_others_to_the_load(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    own = driver.insert_fresh(WHOLE[:2])
    driver.drain()
    delivered = driver.claim(load.ticket)
    size = driver.config.page_size
    assert delivered is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    expected = [*own.slots.tolist(), *load.indices[2 * size :].tolist()]
    assert delivered.tolist() == expected, f"INS-3: two pages are the insert's, one the load's: {expected}, {delivered}"
    assert driver.tier_hits(WHOLE) == (3, 0), (
        f"FLOW-10: all of it is on the device: expected (3, 0), got {driver.tier_hits(WHOLE)}"
    )


@clause("INS-3", "FLOW-5", page_sizes=[16])
@PHASES
def test_an_insert_below_a_load_hits_in_full_when_the_load_has_ended(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    driver.insert_fresh((*WHOLE, 4))
    driver.drain()
    driver.abandon(load.ticket)
    assert driver.tier_hits((*WHOLE, 4)) == (4, 0), (
        f"INS-3: four pages were computed: expected (4, 0), got {driver.tier_hits((*WHOLE, 4))}"
    )
    missing = driver.device_slots(FULL).keys() - driver.host_slots(FULL).keys()
    if driver.has_policy(WritePolicy.WRITE_THROUGH):
        assert not missing, f"FLOW-8: {missing} was used, and is not on the host"


def computed_while_it_is_loaded(driver: Scenario, phase: Phase, component: str) -> None:
    """A component is loaded alone, and an insert brings it as well."""
    driver.drop_on_device(component)
    load = driver.queue_load(TOMBSTONE)
    phase(driver, TransferKind.LOAD)
    driver.insert_fresh(TOMBSTONE)
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    assert driver.tier_hits(TOMBSTONE) == (2, 0), (
        f"INS-4: it was computed and loaded: expected (2, 0), got {driver.tier_hits(TOMBSTONE)}"
    )
    held_slots = {name: sum(map(len, driver.device_slots(name).values())) for name in driver.config.components}
    free = driver.free_device_slots()
    expected = {name: tokens - held_slots[name] for name, tokens in driver.config.capacity_tokens.items()}
    assert free == expected, f"FLOW-6: one of the two is free again: {expected}, got {free}"


@clause("INS-4", "FLOW-6", components=(SWA,), page_sizes=[16])
@PHASES
def test_swa_data_that_is_computed_while_it_is_loaded_is_cached_once(driver: Scenario, phase: Phase) -> None:
    computed_while_it_is_loaded(driver, phase, SWA)


@clause("INS-3", "FLOW-6", components=(MAMBA,), page_sizes=[16])
@PHASES
def test_a_state_that_is_computed_while_it_is_loaded_is_cached_once(driver: Scenario, phase: Phase) -> None:
    computed_while_it_is_loaded(driver, phase, MAMBA)


@clause("FLOW-10", "FLOW-5", components=(SWA,), page_sizes=[16])
@PHASES
def test_a_load_brings_the_window_that_an_insert_over_it_lacked(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    driver.insert_fresh(WHOLE, passed=3)
    claim_all_of_it(driver, load)


@clause("FLOW-10", "FLOW-5", components=(MAMBA,), page_sizes=[16])
@PHASES
def test_a_load_brings_the_state_that_an_insert_over_it_lacked(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    driver.insert_fresh(WHOLE, with_state=False)
    claim_all_of_it(driver, load)


@clause("FLOW-6", "FLOW-4", needs=[Capability.COUNTERS], page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
@PHASES
def test_a_backup_under_way_is_not_queued_again(driver: Scenario, phase: Phase) -> None:
    driver.put_pages(WHOLE)
    expected = len(driver.transfer_views(TransferKind.BACKUP))
    phase(driver, TransferKind.BACKUP)
    driver.insert_fresh(WHOLE)
    driver.match(driver.key_of(WHOLE))
    driver.step()
    found = len(driver.transfer_views(TransferKind.BACKUP))
    assert found <= expected, f"FLOW-6: {expected} backups are under way, and the same prompt made them {found}"
    driver.drain()
    missing = {
        name for name in driver.config.components if driver.device_slots(name).keys() - driver.host_slots(name).keys()
    }
    assert not missing, f"HOST-1: {missing} of {WHOLE} is not on the host"
    copied, there = driver.bytes_moved(TransferKind.BACKUP), driver.bytes_on_host()
    assert copied == there, f"FLOW-6: {there} bytes are on the host, and {copied} were copied there"


def claim_all_of_it(driver: Scenario, load: LoadBack) -> None:
    """Drain, and claim a load of the whole prompt."""
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing let the load fail"
    assert driver.tier_hits(WHOLE) == (3, 0), (
        f"FLOW-10: all of it is on the device: expected (3, 0), got {driver.tier_hits(WHOLE)}"
    )


# FLOW-6: overlapping loads share transfers, and each ends when all its pages have ended.

PAIRS = pytest.mark.parametrize(
    ("first", "second"),
    [(LONG, LONG), (SHORT, LONG), (LONG, SHORT), (LONG, BRANCH)],
    ids=["the same", "short first", "long first", "branches"],
)


def require_nothing_twice(driver: Scenario) -> None:
    """No slot is in two loads, neither as a source on the host nor as a target on the device."""
    for component in driver.config.components:
        loads = [one for one in driver.transfer_views(TransferKind.LOAD) if component in one.host]
        for tier in ("device", "host"):
            slots = [slot for one in loads for slot in getattr(one, tier)[component].tolist()]
            assert len(slots) == len(set(slots)), (
                f"FLOW-6: of {component} on the {tier}, expected each slot in one transfer, got {slots}"
            )


def require_delivery(driver: Scenario, pages: Sequence[int]) -> None:
    """A prompt is on the device in full, with its state."""
    assert driver.tier_hits(pages) == (len(pages), 0), (
        f"FLOW-6: {pages} was loaded: expected {(len(pages), 0)}, got {driver.tier_hits(pages)}"
    )
    driver.verify_state(driver.key_of(pages), driver.match(driver.key_of(pages), chunked=True))


@clause("FLOW-6", "HOST-4", needs=[Capability.COUNTERS], page_sizes=[16])
@PAIRS
@PHASES
def test_pages_that_two_loads_need_are_loaded_once(
    driver: Scenario, phase: Phase, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    driver.put_on_host(SHORT, LONG, BRANCH)
    before = driver.bytes_moved(TransferKind.LOAD)
    one = driver.queue_load(first)
    phase(driver, TransferKind.LOAD)
    other = driver.queue_load(second)
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
    counted, there = driver.bytes_moved(TransferKind.LOAD) - before, driver.bytes_on_device()
    assert counted == there, f"FLOW-6: {there} bytes are on the device, {counted} were loaded"


@clause("FLOW-6", "HOST-5")
@PHASES
def test_a_load_that_shares_all_its_pages_needs_no_slots(driver: Scenario, phase: Phase) -> None:
    with driver.host_variant(capacity_tokens=driver.capacity_for(len(LONG), 1 + 1)) as tiny:
        tiny.put_on_host(LONG)
        one = tiny.queue_load(LONG)
        phase(tiny, TransferKind.LOAD)
        before = tiny.free_device_slots()
        assert not before[FULL], f"HOST-4: the load takes all pages of the device, free are {before}"
        other = tiny.queue_load(LONG)
        after = tiny.free_device_slots()
        assert after == before, (
            f"FLOW-6: all pages are being loaded: expected a second load to leave {before} slots free, got {after}"
        )
        tiny.drain()
        for load in (one, other):
            tiny.claim(load.ticket)
        require_delivery(tiny, LONG)


@clause("FLOW-6", "FLOW-4", page_sizes=[16])
@PAIRS
@PHASES
def test_an_abandoned_load_continues_for_another_one(
    driver: Scenario, phase: Phase, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    driver.put_on_host(SHORT, LONG, BRANCH)
    one = driver.queue_load(first)
    phase(driver, TransferKind.LOAD)
    other = driver.queue_load(second)
    driver.abandon(one.ticket)
    driver.evict_all()
    driver.drain()
    assert driver.load_phase(other.ticket) is TransferPhase.DONE, (
        "FLOW-6: another load needs the pages: expected it to be done"
    )
    driver.evict_all()
    delivered = driver.claim(other.ticket)
    assert delivered is not None, "FLOW-6: the one who waits gets all"
    assert delivered.tolist() == other.indices.tolist(), f"FLOW-6: {other.indices} asked, {delivered} delivered"
    require_delivery(driver, second)


@clause("FLOW-6", "FLOW-7")
@PHASES
def test_a_load_that_all_have_abandoned_completes_and_can_be_evicted(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(SHORT, LONG)
    loads = [driver.queue_load(LONG)]
    phase(driver, TransferKind.LOAD)
    loads.append(driver.queue_load(SHORT))
    for load in loads:
        driver.abandon(load.ticket)
    driver.drain()
    require_delivery(driver, LONG)
    driver.evict_all()
    assert not driver.device_slots(FULL), (
        "FLOW-7: all loads were abandoned: expected an empty device after eviction, got "
        f"{driver.device_slots(FULL).keys()}"
    )


@clause("FLOW-6", "FLOW-3", "HOST-6")
def test_if_the_shared_part_fails_both_loads_fail_and_nothing_below_it_is_cached(driver: Scenario) -> None:
    driver.put_on_host(SHORT, LONG)
    one = driver.start_load(SHORT)
    other = driver.start_load(LONG)
    first, second = driver.pending()
    driver.complete(second.ticket)
    driver.step()
    early = [driver.load_phase(load.ticket) for load in (one, other)]
    assert early == 2 * [TransferPhase.RUNNING], f"FLOW-6: what ended early waits for what came before, got {early}"
    driver.fail(first.ticket, parts_done=0)
    driver.step()
    delivered = [driver.claim(load.ticket) is not None for load in (one, other)]
    assert not any(delivered), f"FLOW-6: what both need failed, yet {delivered} was delivered"
    there = driver.device_slots(FULL).keys()
    assert not there, f"FLOW-3: the beginning did not arrive, and {there} is on the device"
    _require_no_layer_of_a_failed_beginning(driver)
    driver.load(driver.key_of(LONG))
    require_delivery(driver, LONG)


def _require_no_layer_of_a_failed_beginning(driver: Scenario) -> None:
    """Load again. The beginning fails while the rest, of which the first layer has arrived, is under way."""
    one, other = driver.start_load(SHORT), driver.start_load(LONG)
    first, second = driver.pending()
    driver.fail(first.ticket, parts_done=0)
    driver.step()
    driver.advance(second.ticket)
    readable = driver.read_ready_layers(other.ticket)[Pool.KV]
    assert not readable, f"HOST-6: the beginning has failed: expected no layer of KV to be ready, got {readable}"
    driver.drain()
    delivered = [driver.claim(load.ticket) is not None for load in (one, other)]
    assert not any(delivered), f"FLOW-6: what both need failed, yet {delivered} was delivered"


@clause("FLOW-6", "FLOW-2")
def test_a_part_that_ends_before_the_part_above_it_is_delivered_after_it(driver: Scenario) -> None:
    driver.put_on_host(SHORT, LONG)
    loads = [driver.start_load(pages) for pages in (SHORT, LONG)]
    first, second = driver.pending()
    driver.complete(second.ticket)
    driver.step()
    assert not driver.device_slots(FULL), (
        f"FLOW-2: the beginning is under way, and {driver.device_slots(FULL).keys()} is there"
    )
    driver.complete(first.ticket)
    driver.step()
    delivered = [driver.claim(load.ticket) is not None for load in loads]
    assert all(delivered), f"FLOW-6: all arrived, delivered was {delivered}"
    require_delivery(driver, LONG)


@clause("FLOW-6", "FLOW-3", components=(SWA,), write_policies=[WritePolicy.WRITE_THROUGH])
def test_if_shared_swa_data_fails_both_loads_fail(driver: Scenario) -> None:
    others = "H" * (len(driver.config.components) - 1)
    with driver.host_variant(sliding_window_size=driver.window_tokens(2)) as two_tiers:
        build_residency(two_tiers, ("BBB"[: 1 + len(others)], "B" + others, "B" + others))
        loads = [two_tiers.start_load(pages) for pages in ((1, 2), (1, 2, 3))]
        require_nothing_twice(two_tiers)
        first, second = two_tiers.pending()
        two_tiers.fail(first.ticket, parts_done=0)
        two_tiers.complete(second.ticket)
        two_tiers.step()
        delivered = [two_tiers.claim(load.ticket) is not None for load in loads]
        assert not any(delivered), f"FLOW-6: the window of both lacks page 2, yet {delivered} was delivered"
        two_tiers.load(two_tiers.key_of((1, 2, 3)))
        require_delivery(two_tiers, (1, 2, 3))


@clause("FLOW-6", "FLOW-3")
def test_if_the_part_of_one_load_fails_the_other_load_is_done(driver: Scenario) -> None:
    driver.put_on_host(SHORT, LONG)
    one = driver.start_load(SHORT)
    other = driver.start_load(LONG)
    first, second = driver.pending()
    driver.fail(second.ticket, parts_done=0)
    driver.complete(first.ticket)
    driver.step()
    assert driver.claim(other.ticket) is None, "FLOW-3: its own part did not come"
    driver.evict_all()
    assert driver.claim(one.ticket) is not None, "FLOW-6: all that it needs came"
    assert driver.tier_hits(LONG) == (2, 2), (
        f"FLOW-3: two pages came and two did not: expected (2, 2), got {driver.tier_hits(LONG)}"
    )
    driver.load(driver.key_of(LONG))
    require_delivery(driver, LONG)


@clause("FLOW-6")
def test_loaded_pages_are_not_loaded_again(driver: Scenario) -> None:
    driver.put_on_host(LONG)
    load, key = driver.queue_load(LONG), driver.key_of(LONG)
    driver.drain()
    again = [driver.load_back(key, driver.match(key, chunked=True))]
    driver.claim(load.ticket)
    again.append(driver.load_back(key, driver.match(key, chunked=True)))
    assert again == [None, None], f"FLOW-6: all of {LONG} is on the device, before its claim and after, and {again}"


@clause("FLOW-6", "FLOW-7", "INS-3")
@PHASES
def test_slots_that_two_loads_share_are_kept_until_both_are_claimed(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(LONG)
    loads = [driver.queue_load(LONG)]
    phase(driver, TransferKind.LOAD)
    loads.append(driver.queue_load(LONG))
    driver.insert_fresh(LONG)
    driver.drain()
    free = [driver.free_device_slots()[FULL]]
    receipt = driver.lock(driver.best_match(LONG))
    for load in loads:
        driver.read_ready_layers(load.ticket)
        assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed"
        free.append(driver.free_device_slots()[FULL])
    driver.unlock(receipt)
    gained = [count - free[0] for count in free]
    expected = [0, 0, len(loads[0].indices)]
    assert gained == expected, f"FLOW-6: loaded slots are freed with the last claim: expected {expected}, got {gained}"
