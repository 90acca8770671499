"""HOST-4 to HOST-6, HOST-9: what a load brings, what it protects, when it is refused, and when its layers are ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random

import pytest

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.models.tree import ExpectedMatch
from hicache.types import Handle, LoadBack, Pool, Tier, TransferKind, TransferPhase

from .residency_cases import (
    WINDOW_PAGES,
    Residency,
    build_residency,
    node_ends,
    oracle_of,
    prompt_pages,
    random_residency,
    require_match,
    residency_cases,
)
from .scenario import FULL, MAMBA, SWA, Scenario, TierHits
from .snapshot_values import device_ownership
from .transfer_phases import PHASES, Phase

LOOKING = (Capability.SNAPSHOT,)
WRITE_THROUGH = (WritePolicy.WRITE_THROUGH,)


# HOST-4: a load brings exactly the data up to the best match that the device lacks.

RANDOM_RESIDENCIES = 4
"""How many random residencies a test draws."""


def require_load(driver: Scenario, pages: Sequence[int], expected: ExpectedMatch, what: object) -> None:
    """Load a prompt: from the anchor to the best match, and of each component the host hits."""
    key = driver.key_of(pages)
    found = driver.match(key)
    require_match(found, expected, what)
    load = driver.load_back(key, found)
    assert (load is None) == (expected.anchor == expected.best), f"HOST-4: {what}: {expected} is loaded as {load}"
    if load is None:
        return
    length, moved = len(load.indices), driver.slots_under_way(TransferKind.LOAD)
    assert length == expected.best - expected.anchor, f"HOST-4: {what}: {expected}, the load is {length} elements long"
    assert moved == expected.host_hits, f"HOST-4: {what}: needed are {expected.host_hits}, loaded {moved}"
    driver.drain()
    slots = driver.claim(load.ticket)
    assert slots is not None, f"FLOW-10: {what}: nothing failed, and nothing was delivered"
    again = driver.match(key, chunked=True)
    in_order = [*found.device_indices, *load.indices]
    assert list(slots) == list(load.indices), f"HOST-4: {what}: announced were {load.indices}, the tree has {slots}"
    assert list(again.device_indices) == in_order, f"HOST-4: {what}: expected {in_order}, got {again.device_indices}"
    nothing = dict.fromkeys(driver.config.components, 0)
    require_match(again, ExpectedMatch(expected.best, expected.best, nothing), f"{what}, loaded")


@clause("MATCH-1", "HOST-4", "HOST-5", "FLOW-10", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_load_brings_exactly_the_host_hits_of_the_residency_cases(driver: Scenario) -> None:
    with driver.host_variant(sliding_window_size=driver.window_tokens(WINDOW_PAGES)) as two_tiers:
        for case in residency_cases(two_tiers):
            build_residency(two_tiers, case.residency)
            require_load(two_tiers, case.pages, case.expected(two_tiers), case)
            two_tiers.reset()


@clause("MATCH-1", "HOST-4", "FLOW-10", needs=LOOKING, write_policies=WRITE_THROUGH)
@pytest.mark.parametrize("seed", range(3))
def test_a_load_brings_exactly_the_host_hits_of_the_oracle(driver: Scenario, seed: int) -> None:
    rng = Random(seed)
    for _ in range(RANDOM_RESIDENCIES):
        residency = random_residency(rng, driver.config.components)
        with driver.host_variant(sliding_window_size=driver.window_tokens(rng.randint(1, 3))) as two_tiers:
            build_residency(two_tiers, residency)
            pages = prompt_pages(residency)[: rng.randint(1, node_ends(residency)[-1])]
            expected = oracle_of(two_tiers, prompt_pages(residency)).expected_match(two_tiers.key_of(pages))
            require_load(two_tiers, pages, expected, (residency, len(pages)))


# HOST-4: the source and the anchor of a load are not evicted until the load is claimed.

STEPPED = (ExecutorKind.STEPPED,)
PARENT, CHILD = [1, 2], [1, 2, 3, 4]

End = Callable[[Scenario, Handle], object]
ENDS = pytest.mark.parametrize("end", [Scenario.claim, Scenario.abandon], ids=["claimed", "abandoned"])


def evict_both(driver: Scenario) -> None:
    """Evict everything evictable, on the device and then on the host."""
    driver.evict_all()
    driver.evict_all_host()


@clause("HOST-4", "LOCK-5", needs=LOOKING, executors=STEPPED)
@PHASES
def test_the_anchor_and_the_source_of_a_load_are_not_evicted(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(PARENT, CHILD)
    driver.load(driver.key_of(PARENT))
    load = driver.queue_load(CHILD)
    phase(driver, TransferKind.LOAD)
    anchor = driver.device_slots(FULL)
    sources = {pages: slots for pages, slots in driver.host_slots(FULL).items() if pages not in anchor}
    evict_both(driver)
    left, there = driver.device_slots(FULL), driver.host_slots(FULL)
    assert left == anchor, f"HOST-4: {CHILD} is being loaded below {anchor.keys()}, of which is left {left.keys()}"
    assert sources.items() <= there.items(), f"HOST-4: {sources.keys()} is being read, and {there.keys()} is left"
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed"
    assert driver.tier_hits(CHILD).device == len(CHILD), (
        f"HOST-4: {CHILD} was loaded, {driver.tier_hits(CHILD)} is there"
    )


@clause("HOST-4", needs=LOOKING)
@ENDS
def test_loaded_pages_stay_until_the_load_is_claimed(driver: Scenario, end: End) -> None:
    driver.put_on_host(CHILD)
    load = driver.queue_load(CHILD)
    driver.drain()
    assert driver.load_phase(load.ticket) is TransferPhase.DONE, "FLOW-4: it was drained"
    driver.evict_all()
    found = driver.tier_hits(CHILD)
    assert found.device == len(CHILD), f"HOST-4: the load was not claimed, and of {CHILD} {found} is there"
    end(driver, load.ticket)
    driver.evict_all()
    assert not driver.device_slots(FULL), (
        f"HOST-4: the load has ended: expected an empty device after eviction, got {driver.device_slots(FULL).keys()}"
    )


@clause("HOST-4", "LOCK-6", needs=LOOKING)
@ENDS
@pytest.mark.parametrize("first", [PARENT, CHILD], ids=["short first", "long first"])
def test_each_load_of_a_path_protects_it(driver: Scenario, first: list[int], end: End) -> None:
    driver.put_on_host(PARENT, CHILD)
    loads = {len(pages): driver.queue_load(pages) for pages in (PARENT, CHILD)}
    driver.drain()
    end(driver, loads.pop(len(first)).ticket)
    ((length, load),) = loads.items()
    driver.evict_all()
    found = driver.tier_hits(CHILD[:length])
    assert found.device == length, f"HOST-4: another load of {CHILD[:length]} was not claimed, and {found} is there"
    end(driver, load.ticket)
    driver.evict_all()
    assert not driver.device_slots(FULL), (
        f"HOST-4: the load has ended: expected an empty device after eviction, got {driver.device_slots(FULL).keys()}"
    )


@clause("HOST-4", "FLOW-6", needs=LOOKING, executors=STEPPED)
@ENDS
def test_what_another_load_brought_stays_while_a_load_still_waits(driver: Scenario, end: End) -> None:
    driver.put_on_host(PARENT, CHILD)
    first = driver.start_load(PARENT)
    shared = driver.pending_transfer(TransferKind.LOAD)
    second = driver.start_load(CHILD)
    driver.complete(shared.ticket)
    driver.step()
    end(driver, first.ticket)
    came = driver.device_slots(FULL)
    assert came, f"FLOW-2: {PARENT} has arrived: expected it on the device, got nothing"
    evict_both(driver)
    left = driver.device_slots(FULL)
    assert left == came, f"HOST-4: {CHILD} is being loaded below {came.keys()}, of which is left {left.keys()}"
    driver.drain()
    assert driver.claim(second.ticket) is not None, "FLOW-10: nothing failed: expected slots from the claim, got None"
    driver.evict_all()
    left = driver.device_slots(FULL)
    assert not left, f"HOST-4: both loads have ended: expected an empty device after eviction, got {left.keys()}"


@clause("HOST-4", "LOCK-7", needs=LOOKING)
def test_a_host_lock_keeps_a_hit_until_it_is_loaded(driver: Scenario) -> None:
    driver.put_on_host(CHILD)
    receipt = driver.lock_host(driver.best_match(CHILD))
    evict_both(driver)
    load = driver.queue_load(CHILD)
    driver.unlock_host(receipt)
    evict_both(driver)
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed"
    assert driver.tier_hits(CHILD).device == len(CHILD), (
        f"HOST-4: {CHILD} was loaded, {driver.tier_hits(CHILD)} is there"
    )


# HOST-5: loads below the threshold, above the quota, or without room are refused, and take nothing.


SIZED = (Capability.SNAPSHOT, Capability.SIZES)


def tier_ownership(driver: Scenario) -> tuple[object, ...]:
    """What is cached, locked and free on both tiers, and the slots of transfers under way."""
    on_host = {component: driver.host_slots(component) for component in driver.config.components}
    moving = [driver.slots_under_way(kind) for kind in TransferKind]
    on_device = device_ownership(driver.snapshot(), driver.config)
    return *on_device, on_host, driver.locks_on_host(), driver.free_host_slots(), moving


def require_refused(driver: Scenario, pages: Sequence[int], why: str, quota: int | None = None) -> None:
    """A load of a prompt with data on the host alone is refused, and changes nothing."""
    key = driver.key_of(pages)
    found = driver.match(key, chunked=True)
    before = tier_ownership(driver)
    load = driver.load_back(key, found, quota=quota)
    assert load is None, f"HOST-5: {why}, and {len(load.indices)} slots are loaded"
    assert tier_ownership(driver) == before, f"HOST-5: {why}: a refused load changed {before}"


def require_loaded(driver: Scenario, pages: Sequence[int], quota: int | None = None) -> None:
    """A load of a prompt is granted, and delivers."""
    key = driver.key_of(pages)
    load = driver.load_back(key, driver.match(key, chunked=True), quota=quota)
    assert load is not None, f"HOST-5: {pages} is on the host, there is room and no reason, yet it is not loaded"
    driver.drain()
    assert driver.load_phase(load.ticket) is TransferPhase.DONE, "FLOW-10: nothing failed"
    driver.claim(load.ticket)
    found = driver.tier_hits(pages)
    assert found == TierHits(len(pages), 0), f"HOST-4: {pages} was loaded, found is {found}"


@clause("HOST-5", needs=SIZED, load_back_threshold=True)
def test_a_load_of_fewer_tokens_than_the_threshold_is_refused(driver: Scenario) -> None:
    threshold = driver.host_config.load_back_threshold_tokens // driver.config.page_size
    few, enough = list(range(1, threshold)), list(range(11, 11 + threshold))
    driver.put_on_host(few, enough)
    require_refused(driver, few, f"{len(few)} pages are too few for a threshold of {threshold}")
    require_loaded(driver, enough)


@clause("HOST-5", needs=SIZED, load_back_threshold=True)
def test_the_threshold_counts_only_the_tokens_to_load(driver: Scenario) -> None:
    threshold = driver.host_config.load_back_threshold_tokens // driver.config.page_size
    parent = list(range(1, threshold + 1))
    few, enough = [*parent, 21], [*parent, *range(31, 31 + threshold)]
    driver.put_on_host(parent, few, enough)
    require_loaded(driver, parent)
    require_refused(driver, few, f"one page past {parent} is less than a threshold of {threshold}")
    require_loaded(driver, enough)


@clause("HOST-5", needs=SIZED, load_back_threshold=True)
def test_the_threshold_counts_several_nodes_together(driver: Scenario) -> None:
    threshold = driver.host_config.load_back_threshold_tokens // driver.config.page_size
    pages = list(range(1, threshold + 1))
    driver.put_on_host(*(pages[:count] for count in range(1, threshold + 1)))
    require_loaded(driver, pages)


def require_loaded_alone(driver: Scenario, quota: int | None) -> None:
    """A load without FULL data is granted with any threshold and quota."""
    with driver.host_variant(sliding_window_size=driver.window_tokens(2)) as two_tiers:
        for residency in WITHOUT_FULL[driver.config.components]:
            build_residency(two_tiers, residency)
            require_loaded(two_tiers, prompt_pages(residency), quota)
            two_tiers.reset()


WITHOUT_FULL: Mapping[tuple[str, ...], Sequence[Residency]] = {
    (FULL, SWA): [("BH",), ("BB", "BH")],
    (FULL, MAMBA): [("BH",), ("BB", "BH")],
    (FULL, SWA, MAMBA): [("BHH",), ("BBB", "BHH"), ("BBB", "BBH")],
}
"""Residencies in which the device lacks no FULL data."""


@clause("HOST-5", needs=SIZED, components=(SWA, MAMBA), load_back_threshold=True)
def test_the_threshold_does_not_apply_to_a_load_without_full_data(driver: Scenario) -> None:
    require_loaded_alone(driver, quota=None)


@clause("HOST-5", needs=SIZED, components=(SWA,), write_policies=WRITE_THROUGH)
def test_a_window_that_is_loaded_alone_needs_no_quota(driver: Scenario) -> None:
    require_loaded_alone(driver, quota=0)


@clause("HOST-5", needs=SIZED, components=(MAMBA,), write_policies=WRITE_THROUGH)
def test_a_state_that_is_loaded_alone_needs_no_quota(driver: Scenario) -> None:
    require_loaded_alone(driver, quota=0)


@clause("HOST-5", needs=SIZED)
def test_a_load_of_more_tokens_than_the_quota_is_refused(driver: Scenario) -> None:
    driver.put_on_host([1, 2], [1, 2, 3, 4, 5])
    for quota in (0, 1, 5 * driver.config.page_size - 1):
        require_refused(driver, [1, 2, 3, 4, 5], f"five pages are more than a quota of {quota} tokens", quota)
    require_loaded(driver, [1, 2], 2 * driver.config.page_size)
    most = 3 * driver.config.page_size
    require_refused(driver, [1, 2, 3, 4, 5], f"three pages are left, more than a quota of {most - 1}", most - 1)
    require_loaded(driver, [1, 2, 3, 4, 5], most)


@clause("HOST-5", needs=SIZED)
def test_a_load_for_which_full_slots_are_short_is_refused(driver: Scenario) -> None:
    require_room_for_all_or_nothing(driver, FULL, 3)


@clause("HOST-5", needs=SIZED, components=(SWA,))
def test_a_load_for_which_swa_slots_are_short_is_refused(driver: Scenario) -> None:
    require_room_for_all_or_nothing(driver, SWA, min(3, driver.window_pages))


@clause("HOST-5", needs=SIZED, components=(MAMBA,))
def test_a_load_for_which_a_state_is_short_is_refused(driver: Scenario) -> None:
    require_room_for_all_or_nothing(driver, MAMBA, 1)


def require_room_for_all_or_nothing(driver: Scenario, component: str, need: int) -> None:
    """A load of three pages is refused with one page or state of a component too few, and granted with enough."""
    driver.put_on_host([1, 2, 3])
    with driver.leave_only(component, need - 1):
        free = {name: sizes.free // driver.unit(name) for name, sizes in driver.adapter.sizes().items()}
        rest = {name: count for name, count in free.items() if name != component and count < 3}
        assert (free[component], rest) == (need - 1, {}), (
            f"{component} alone is short in this scenario, free are {free}"
        )
        require_refused(driver, [1, 2, 3], f"{need} pages of {component} are needed, free are {free}")
    with driver.leave_only(component, need):
        require_loaded(driver, [1, 2, 3])


@clause("HOST-5", "EVICT-1", needs=SIZED)
def test_a_load_evicts_other_nodes(driver: Scenario) -> None:
    driver.put_on_host([1, 2, 3])
    receipt = driver.lock_host(driver.best_match([1, 2, 3]))
    for first in (20, 30, 40):
        driver.put_pages(range(first, first + 8))
    free = min(sizes.free // driver.unit(name) for name, sizes in driver.adapter.sizes().items() if name != MAMBA)
    assert free < 3, f"there is no room for three pages in this scenario, free are {free}"
    require_loaded(driver, [1, 2, 3])
    driver.unlock_host(receipt)


@clause("HOST-5", "EVICT-1", needs=SIZED, components=(MAMBA,))
def test_a_load_evicts_another_state(driver: Scenario) -> None:
    driver.put_on_host([1, 2, 3])
    receipt = driver.lock_host(driver.best_match([1, 2, 3]))
    for page in range(20, 20 + driver.config.capacity_tokens[MAMBA]):
        driver.put_pages([page])
    free = driver.adapter.sizes()[MAMBA].free
    assert free == 0, f"there is no state left in this scenario, free are {free}"
    require_loaded(driver, [1, 2, 3])
    driver.unlock_host(receipt)


@clause("HOST-5", "HOST-4", needs=SIZED)
def test_a_load_does_not_evict_its_anchor(driver: Scenario) -> None:
    driver.put_on_host([1, 2], [1, 2, 3, 4])
    require_loaded(driver, [1, 2])
    receipt = driver.lock_pages([1, 2])
    with driver.leave_only(FULL, 1):
        driver.unlock(receipt)
        require_refused(driver, [1, 2, 3, 4], "two pages are needed, one is free, and the others are the anchor's")
    require_loaded(driver, [1, 2, 3, 4])


@clause("HOST-5", needs=SIZED, each=(SWA, MAMBA))
def test_a_hit_that_lost_a_component_is_not_loaded(driver: Scenario, component: str) -> None:
    """A load is refused if the host lost a component of the match in between."""
    with driver.host_variant(sliding_window_size=driver.window_tokens(2)) as two_tiers:
        two_tiers.put_on_host([1, 2], [1, 2, 3, 4])
        hit = two_tiers.best_match([1, 2])
        receipt = two_tiers.lock_host(two_tiers.best_match([1, 2, 3, 4]))
        two_tiers.evict_all_host(component)
        lost = (1, 2) not in two_tiers.host_slots(component)
        assert lost, f"EVICT-8: {component} of (1, 2) is not locked, and was to leave the host"
        before = tier_ownership(two_tiers)
        load = two_tiers.adapter.load_back(hit, quota=None)
        assert load is None, f"HOST-5: {component} of (1, 2) is on no tier, yet it is loaded"
        assert tier_ownership(two_tiers) == before, f"HOST-5: a refused load changed {before}"
        two_tiers.unlock_host(receipt)


# HOST-6, HOST-9: the layers of a load become ready one by one, in every pool of the stack, and never too early.


PAGES = (1, 2)
OTHER = (7, 8)


def ready(driver: Scenario, ticket: Handle) -> dict[str, list[int]]:
    """The ready layers of each pool, after their bytes were read and compared."""
    driver.read_ready_layers(ticket)
    return {
        pool: [layer for layer in range(layers) if driver.layer_ready(ticket, pool, layer)]
        for pool, layers in driver.stack().items()
    }


def counted(found: Mapping[str, Sequence[int]]) -> int:
    """The total number of layers."""
    return sum(map(len, found.values()))


def complete(driver: Scenario) -> dict[str, list[int]]:
    """All layers of the stack."""
    return {pool: list(range(layers)) for pool, layers in driver.stack().items()}


def take(driver: Scenario, load: LoadBack) -> None:
    """Drain, and claim a load."""
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed, and nothing was delivered"


@clause("HOST-6")
def test_no_layer_is_ready_before_the_load_has_started(driver: Scenario) -> None:
    driver.put_on_host(PAGES)
    load = driver.queue_load(PAGES)
    assert not counted(ready(driver, load.ticket)), f"HOST-6: it is queued, and ready is {ready(driver, load.ticket)}"
    driver.step()
    assert not counted(ready(driver, load.ticket)), f"HOST-6: nothing moved, and ready is {ready(driver, load.ticket)}"
    take(driver, load)


@clause("HOST-6", "HOST-9", layouts=True)
def test_each_layer_is_ready_when_it_has_moved(driver: Scenario) -> None:
    driver.put_on_host(PAGES)
    load = driver.start_load(PAGES)
    transfer = driver.pending_transfer(TransferKind.LOAD)
    counts = [counted(ready(driver, load.ticket))]
    for _ in range(transfer.units):
        driver.advance(transfer.ticket)
        counts.append(counted(ready(driver, load.ticket)))
    more = [after > before for before, after in pairwise(counts)]
    assert all(more), f"HOST-6: each layer that arrives may be read at once, readable were {counts}"
    driver.step()
    take(driver, load)


@clause("HOST-9", "HOST-6", layouts=True)
def test_the_last_event_comes_with_the_last_layer_of_every_pool(driver: Scenario) -> None:
    driver.put_on_host(PAGES)
    load = driver.start_load(PAGES)
    transfer = driver.pending_transfer(TransferKind.LOAD)
    for layer in range(transfer.units):
        found = ready(driver, load.ticket)
        assert found != complete(driver), f"HOST-9: {layer} of {transfer.units} layers arrived, ready is all: {found}"
        driver.advance(transfer.ticket)
    found, expected = ready(driver, load.ticket), complete(driver)
    assert found == expected, f"HOST-9: all layers arrived, {expected} may be read, ready is {found}"
    take(driver, load)


@clause("HOST-9")
def test_the_events_cover_each_pool_of_the_stack(driver: Scenario) -> None:
    driver.put_on_host(PAGES)
    load = driver.start_load(PAGES)
    transfer = driver.pending_transfer(TransferKind.LOAD)
    needed = max(driver.stack().values())
    assert transfer.units >= needed, f"HOST-9: the deepest pool has {needed} layers, the transfer {transfer.units}"
    waited = dict.fromkeys(driver.stack(), 0)
    for _ in range(transfer.units):
        for pool, layers in ready(driver, load.ticket).items():
            waited[pool] += len(layers) < driver.stack()[pool]
        driver.advance(transfer.ticket)
    early = {pool for pool, steps in waited.items() if steps < driver.stack()[pool]}
    assert not early, f"HOST-9: {early} has {driver.stack()} layers and was whole before as many had moved: {waited}"
    take(driver, load)


@clause("HOST-6", "FLOW-4")
def test_all_layers_are_ready_from_the_end_of_the_load_to_its_claim(driver: Scenario) -> None:
    driver.put_on_host(PAGES)
    load = driver.start_load(PAGES)
    driver.complete_all()
    assert driver.load_phase(load.ticket) is TransferPhase.DONE, "FLOW-4: the load has ended"
    for _ in range(2):
        found, expected = ready(driver, load.ticket), complete(driver)
        assert found == expected, f"HOST-6: the load has ended, {expected} may be read, ready is {found}"
        driver.step()
    driver.claim(load.ticket)


@clause("HOST-6", needs=[Capability.LAYER_WAITS], layouts=True)
def test_a_reader_that_waits_for_a_layer_reads_it(driver: Scenario) -> None:
    driver.put_on_host(PAGES)
    for pool, layers in driver.stack().items():
        load = driver.start_load(PAGES)
        for layer in range(layers):
            driver.wait_layer(load.ticket, pool, layer)
        take(driver, load)
        driver.evict_all()


@clause("HOST-6", "FLOW-6", needs=[Capability.LAYER_WAITS])
def test_a_reader_waits_for_all_transfers_that_its_load_shares(driver: Scenario) -> None:
    longer = (*PAGES, 3)
    driver.put_on_host(PAGES, longer)
    for pool in driver.stack():
        loads = [driver.start_load(pages) for pages in (PAGES, longer)]
        driver.wait_layer(loads[1].ticket, pool, 0)
        for load in loads:
            take(driver, load)
        driver.evict_all()


@clause("HOST-6")
def test_the_layers_of_an_earlier_load_do_not_make_a_later_one_ready(driver: Scenario) -> None:
    driver.put_on_host(PAGES, OTHER)
    first = driver.start_load(PAGES)
    driver.complete(driver.pending_transfer(TransferKind.LOAD).ticket)
    second = driver.start_load(OTHER)
    found = [ready(driver, load.ticket) for load in (first, second)]
    assert found[0] == complete(driver), f"HOST-6: the first load has ended, ready is {found[0]}"
    assert not counted(found[1]), f"HOST-6: nothing of the second load has moved, ready is {found[1]}"
    take(driver, first)
    take(driver, second)


@clause("HOST-6")
def test_each_load_under_way_has_its_own_events(driver: Scenario) -> None:
    driver.put_on_host(PAGES, OTHER)
    first, second = driver.start_load(PAGES), driver.start_load(OTHER)
    older, younger = driver.pending()
    driver.complete(younger.ticket)
    found = [counted(ready(driver, load.ticket)) for load in (first, second)]
    assert found[0] == 0 < found[1], f"HOST-6: the second load alone has arrived, readable are {found}"
    driver.advance(older.ticket)
    found = [counted(ready(driver, load.ticket)) for load in (first, second)]
    assert 0 < found[0] < found[1], (
        f"HOST-6: one layer of the first has moved and all of the second, readable are {found}"
    )
    take(driver, first)
    take(driver, second)


@clause("HOST-6")
def test_loads_that_start_together_are_ready_together(driver: Scenario) -> None:
    driver.put_on_host(PAGES, OTHER)
    loads = [driver.queue_load(PAGES), driver.queue_load(OTHER)]
    driver.step()
    transfer = driver.pending_transfer(TransferKind.LOAD)
    for layer in range(transfer.units):
        first, second = (ready(driver, load.ticket) for load in loads)
        assert first == second, f"HOST-6: {layer} layers of one transfer moved, ready are {first} and {second}"
        driver.advance(transfer.ticket)
    for load in loads:
        assert ready(driver, load.ticket) == complete(driver), "HOST-6: all layers of the transfer moved"
        take(driver, load)


@clause("HOST-6", "FLOW-6")
def test_a_load_that_shares_another_is_ready_when_all_its_own_layers_have_moved(driver: Scenario) -> None:
    longer = (*PAGES, 3)
    driver.put_on_host(PAGES, longer)
    short = driver.start_load(PAGES)
    long = driver.start_load(longer)
    older, younger = driver.pending()
    for _ in range(older.units):
        driver.advance(older.ticket)
    found = [ready(driver, load.ticket) for load in (short, long)]
    assert found[0] == complete(driver), f"HOST-6: all of {PAGES} has moved, ready is {found[0]}"
    assert Pool.KV not in {pool for pool, layers in found[1].items() if layers}, (
        f"HOST-6: 3 has not, ready is {found[1]}"
    )
    driver.complete(younger.ticket)
    assert ready(driver, long.ticket)[Pool.KV] == complete(driver)[Pool.KV], f"HOST-6: all of {longer} has moved"
    take(driver, short)
    take(driver, long)


def insert_without_a_window(driver: Scenario, pages: Sequence[int]) -> None:
    """Insert a prompt without SWA data and without a state."""
    key = driver.key_of(pages)
    driver.put(key, window_start=driver.aligned(key), with_state=False)


def insert_and_evict_the_window(driver: Scenario, pages: Sequence[int]) -> None:
    """Insert a longer prompt, back it up, and evict its SWA data: the nodes keep its FULL pages."""
    driver.put(driver.key_of((*pages, 3)))
    driver.step()
    for backup in driver.pending(TransferKind.BACKUP):
        driver.complete(backup.ticket)
    driver.step()
    driver.evict(SWA, driver.sizes(Tier.DEVICE)[SWA].evictable)


@clause("HOST-6", "FLOW-10", needs=LOOKING, components=(SWA, MAMBA), page_sizes=[16], write_policies=WRITE_THROUGH)
def test_a_load_keeps_its_window_in_its_own_slots_until_it_is_claimed(driver: Scenario) -> None:
    """An insert gave the node other slots while it was loaded, without SWA data. The window is that of both."""
    cases = (
        (PAGES, insert_without_a_window, False, True),
        (OTHER, insert_without_a_window, False, False),
        ((4, 5), insert_and_evict_the_window, True, True),
    )
    for pages, insert, has_moved, is_claimed in cases:
        driver.put_on_host(pages)
        load = driver.start_load(pages)
        transfer = driver.pending_transfer(TransferKind.LOAD)
        for _ in range(transfer.units - 1 if has_moved else 0):
            driver.advance(transfer.ticket)
        # Of the layers that are ready now, each must still be ready afterwards.
        ready(driver, load.ticket)
        insert(driver, pages)
        ready(driver, load.ticket)
        driver.complete(transfer.ticket)
        driver.step()
        found = ready(driver, load.ticket)
        assert found == complete(driver), f"HOST-9: the load has ended, ready is {found}"
        if is_claimed:
            assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed, and nothing was delivered"
        else:
            driver.abandon(load.ticket)
        assert driver.tier_hits(pages) == (2, 0), f"FLOW-10: it is on the device, got {driver.tier_hits(pages)}"
        driver.evict_all()
        left = driver.device_slots(FULL)
        assert not left, f"HOST-4: it has no reader: expected an empty device after eviction, got {left.keys()}"
