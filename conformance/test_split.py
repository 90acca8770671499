"""INS-8: a split does not change slots, locks, hits, hashes, priority or age, nor transfers between the tiers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import EvictionPolicy, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import EventKind, Namespace, Tier, TransferKind

from .scenario import FULL, PLACEMENTS, SWA, Scenario
from .snapshot_values import prefixes, residency
from .transfer_phases import PHASES, Phase

WHOLE = (1, 2, 3, 4, 5, 6)


# INS-8: a split on the device does not change slots, locks, hits, hashes, priority or age.


Split = Callable[[Scenario, int], object]


def by_match(driver: Scenario, pages: int) -> None:
    """Match a prompt that ends inside the node."""
    driver.match(driver.key_of(WHOLE[:pages]), chunked=True)


def by_insert(driver: Scenario, pages: int) -> None:
    """Insert a prompt that diverges inside the node."""
    driver.insert_fresh([*WHOLE[:pages], 9])


SPLITS = pytest.mark.parametrize("split", [by_match, by_insert])


@clause("INS-8", bigram=True)
@SPLITS
def test_a_split_leaves_all_slots_where_they_are(driver: Scenario, split: Split) -> None:
    driver.put_pages(WHOLE)
    before = residency(driver.snapshot(), driver.config)
    for pages in (3, 1, 5):
        split(driver, pages)
    after = residency(driver.snapshot(), driver.config)
    changed = {place for place, slots in before.items() if after.get(place) != slots}
    assert not changed, f"INS-8: {changed} changed in a split"
    ends = driver.nodes().keys()
    assert {WHOLE[:1], WHOLE[:3], WHOLE[:5], WHOLE} <= ends, f"INS-8: nodes end at pages 1, 3, 5 and 6, not {ends}"


@clause("INS-8", "EVICT-1", components=(SWA,), bigram=True)
@SPLITS
def test_both_parts_can_be_evicted(driver: Scenario, split: Split) -> None:
    driver.put_pages(WHOLE)
    for pages in (1, 3):
        split(driver, pages)
    receipt = driver.lock_pages(WHOLE)
    driver.evict_all(SWA)
    kept = driver.device_slots(SWA).keys()
    driver.unlock(receipt)
    expected = prefixes(*WHOLE) - prefixes(*WHOLE[: -driver.window_pages])
    assert kept == expected, f"INS-8: the window {expected} is locked and all else was to go, kept was {kept}"


@clause("INS-8", page_sizes=[1, 16, 64], bigram=True)
@SPLITS
def test_a_split_leaves_all_locks_where_they_are(driver: Scenario, split: Split) -> None:
    driver.put_pages(WHOLE)
    receipts = [driver.lock_pages(WHOLE), driver.lock_pages(WHOLE)]
    before = driver.all_locks()
    assert before[FULL, WHOLE] == 2, f"LOCK-1: two receipts hold the end: expected 2, got {before}"
    for pages in (3, 1, 5):
        split(driver, pages)
        after = driver.all_locks()
        assert after == before, f"INS-8: locks went from {before} to {after} in a split after page {pages}"
    for receipt in receipts:
        driver.unlock(receipt)
    assert not driver.all_locks(), (
        f"INS-8: receipts that cross the split were released, and {driver.all_locks()} is left"
    )


@clause("INS-8", needs=[Capability.HITS], page_sizes=[1, 16], bigram=True)
@SPLITS
def test_both_parts_keep_their_hits(driver: Scenario, split: Split) -> None:
    driver.put_pages(WHOLE)
    for _ in range(3):
        driver.match(driver.key_of(WHOLE))
    split(driver, 2)
    hits = {pages: driver.nodes()[pages].hits for pages in (WHOLE[:2], WHOLE)}
    assert hits == {WHOLE[:2]: 3, WHOLE: 3}, f"INS-8: three requests hit both parts, got {hits}"


@clause("INS-8", "KEY-5", needs=[Capability.EVENTS, Capability.HASHES], bigram=True)
def test_both_parts_keep_their_page_hashes(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    by_match(driver, 2)
    by_match(driver, 3)
    driver.put_pages([*WHOLE[:3], 9])
    driver.evict_all()
    events = [event for event in driver.adapter.events() if event.component == FULL]
    blocks = {kind: sorted(b for event in events if event.kind is kind for b in event.blocks) for kind in EventKind}
    prompts = (WHOLE, [*WHOLE[:3], 9])
    expected = sorted({block for pages in prompts for block in driver.adapter.page_hashes(driver.key_of(pages))})
    assert blocks[EventKind.STORED] == expected, "INS-8: a leaf below a split node was stored under other page hashes"
    assert blocks[EventKind.REMOVED] == expected, "INS-8: the parts of a split node were removed under other hashes"


@clause("INS-8", needs=[Capability.POLICIES], policies=[EvictionPolicy.PRIORITY])
def test_both_parts_keep_their_priority(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3, 4], priority=5)
    driver.put_pages([8], priority=3)
    driver.match(driver.key_of([1, 2]))
    driver.insert_fresh([1, 2])
    receipt = driver.lock_pages([8])
    driver.evict(FULL, driver.config.page_size)
    driver.unlock(receipt)
    kept = driver.device_slots(FULL).keys()
    assert kept == {(1,), (1, 2), (8,)}, f"EVICT-2: the lower part was the only leaf without a lock, left is {kept}"
    driver.evict(FULL, driver.config.page_size)
    kept = driver.device_slots(FULL).keys()
    assert kept == {(1,), (1, 2)}, f"INS-8: the upper part has priority 5, and 8 has 3: 8 must go first, left is {kept}"


@clause("INS-8", needs=[Capability.POLICIES], policies=[EvictionPolicy.FIFO, EvictionPolicy.FILO])
def test_both_parts_keep_their_age(driver: Scenario) -> None:
    for pages in ([7], [1, 2, 3, 4], [8]):
        driver.put_pages(pages)
    driver.match(driver.key_of([1, 2]))
    driver.insert_fresh([1, 2])
    is_fifo = driver.config.policy is EvictionPolicy.FIFO
    ends = [(1, 2, 3, 4), (1, 2)]
    order = [(7,), *ends, (8,)] if is_fifo else [(8,), *ends, (7,)]
    for number, end in enumerate(order):
        driver.evict(FULL, 1)
        left = set(order) & driver.nodes().keys()
        assert left == set(order[number + 1 :]), f"INS-8: expected {end} to go after {order[:number]}, left is {left}"


@clause("INS-8", "KEY-2", needs=[Capability.NAMESPACES], page_sizes=[16])
def test_both_parts_keep_their_namespace(driver: Scenario) -> None:
    for salt, is_insert in (("match", False), ("insert", True)):
        salted = Namespace(lora=None, salt=salt, tenant=None)
        whole, start, other = (driver.key(driver.prompt(one), salted) for one in (WHOLE, WHOLE[:3], (*WHOLE[:3], 9)))
        driver.put(whole)
        driver.put(other) if is_insert else driver.match(start)
        others = len(driver.adapter.match(driver.key(driver.prompt(WHOLE)), chunked=True).device_indices)
        assert others == 0, f"KEY-2: all was inserted for {salted}: expected no hit without it, got {others} tokens"
        found = len(driver.match(whole).device_indices) // driver.config.page_size
        assert found == len(WHOLE), f"INS-8: for {salted} expected {len(WHOLE)} pages, got {found}"
    salts = {node.namespace.salt for node in driver.snapshot().nodes}
    assert salts == {"match", "insert"}, f"KEY-2: all was inserted with a salt: expected no other node, got {salts}"


@clause("INS-8", "KEY-1", page_sizes=[3, 16, 64], bigram=True)
@pytest.mark.parametrize("page", [1, 2, 3])
def test_nodes_are_split_at_page_boundaries_only(driver: Scenario, page: int) -> None:
    tokens = driver.prompt([1, 2, 3])
    driver.put(driver.key(tokens))
    other = list(tokens)
    other[page * driver.config.page_size - 1] -= 1000
    driver.put(driver.key(other))
    cached = [place for place in residency(driver.snapshot(), driver.config) if place[0] == FULL]
    expected = 3 + 3 - (page - 1)
    assert len(cached) == expected, f"INS-8: two prompts of 3 pages that part inside page {page} are {expected} pages"
    for prompt in (tokens, other):
        hit = len(driver.match(driver.key(prompt)).device_indices)
        assert hit == 3 * driver.config.page_size, f"INS-8: a prompt of 3 pages hits {hit} tokens after it was split"


# INS-8: a split does not change slots on either tier, or transfers between them.

CUTS = (3, 1, 5)


@clause("INS-8", needs=[Capability.HOST])
@PLACEMENTS
def test_a_split_leaves_slots_of_both_tiers_where_they_are(driver: Scenario, place: Callable[..., None]) -> None:
    place(driver, WHOLE)
    before = _slots(driver)
    for pages in CUTS:
        by_match(driver, pages)
    assert _slots(driver) == before, f"INS-8: {before} became {_slots(driver)} in splits"
    ends = driver.nodes().keys()
    assert {WHOLE[:1], WHOLE[:3], WHOLE[:5], WHOLE} <= ends, f"INS-8: nodes end at pages 1, 3, 5 and 6, not {ends}"


@clause("INS-8", needs=[Capability.HOST], page_sizes=[16])
def test_a_split_by_an_insert_leaves_the_host_as_it_is(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = {name: driver.host_slots(name) for name in driver.config.components}
    for pages in CUTS:
        by_insert(driver, pages)
    for component, slots in before.items():
        after = driver.host_slots(component)
        changed = {prefix for prefix, own in slots.items() if after.get(prefix) != own}
        assert not changed, f"INS-8: {component} of {changed} was on the host, and moved in a split"


@clause("INS-8", "EVICT-8", page_sizes=[16])
def test_both_parts_of_an_evicted_node_can_leave_the_host(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    for pages in CUTS:
        by_match(driver, pages)
    while driver.evict_host(FULL, 1).victims:
        left = driver.host_slots(FULL).keys()
        assert left in [prefixes(*WHOLE[:count]) for count in range(6)], f"EVICT-8: a gap in what is left: {left}"
    assert not driver.nodes(), f"INS-8: every part can be evicted, left is {driver.nodes().keys()}"


@clause("INS-8", needs=[Capability.HOST, Capability.HITS], page_sizes=[16])
def test_both_parts_of_an_evicted_node_keep_their_hits(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = driver.nodes()[WHOLE].hits or 0
    for _ in range(3):
        driver.match(driver.key_of(WHOLE))
    by_match(driver, 2)
    hits = {pages: driver.nodes()[pages].hits for pages in (WHOLE[:2], WHOLE)}
    expected = {WHOLE[:2]: before + 3, WHOLE: before + 3}
    assert hits == expected, f"INS-8: requests hit both parts: expected {expected}, got {hits}"


@clause("INS-8", "FLOW-5", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
@PHASES
@SPLITS
def test_a_backup_covers_both_parts_of_a_node_that_is_split_meanwhile(
    driver: Scenario, phase: Phase, split: Split
) -> None:
    driver.put_pages(WHOLE)
    phase(driver, TransferKind.BACKUP)
    for pages in CUTS:
        split(driver, pages)
    _require_sources_pinned(driver, Tier.DEVICE, TransferKind.BACKUP)
    driver.drain()
    missing = prefixes(*WHOLE) - driver.host_slots(FULL).keys()
    assert not missing, f"INS-8: {WHOLE} was being backed up when it was split, {missing} is not on the host"
    driver.evict_all()
    assert driver.tier_hits(WHOLE) == (0, 6), (
        f"FLOW-8: all six pages were backed up: expected (0, 6), got {driver.tier_hits(WHOLE)}"
    )
    driver.verify_state(driver.key_of(WHOLE), driver.load(driver.key_of(WHOLE)))


@clause("INS-8", "FLOW-5", page_sizes=[16])
@PHASES
def test_a_load_brings_both_parts_of_a_node_that_is_split_meanwhile(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    for pages in CUTS:
        by_match(driver, pages)
    _require_sources_pinned(driver, Tier.HOST, TransferKind.LOAD)
    driver.drain()
    delivered = driver.claim(load.ticket)
    assert delivered is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    assert delivered.tolist() == load.indices.tolist(), f"INS-8: asked {load.indices}, delivered {delivered}"
    assert driver.tier_hits(WHOLE) == (6, 0), (
        f"INS-8: all six pages were loaded: expected (6, 0), got {driver.tier_hits(WHOLE)}"
    )


@clause("INS-8", "FLOW-3", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_that_fails_after_a_split_leaves_nothing_of_either_part(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    split_and_fail(driver)
    assert not driver.host_slots(FULL), f"FLOW-3: it failed, and {driver.host_slots(FULL).keys()} is on the host"
    assert driver.device_slots(FULL).keys() == prefixes(*WHOLE), "FLOW-3: a backup that failed cost the device data"
    driver.drain()


@clause("INS-8", "FLOW-3", page_sizes=[16])
def test_a_load_that_fails_after_a_split_leaves_both_parts_on_the_host(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    split_and_fail(driver)
    assert driver.claim(load.ticket) is None, "FLOW-3: the load failed and was delivered"
    assert driver.tier_hits(WHOLE) == (0, 6), (
        f"FLOW-3: all six pages are on the host still: expected (0, 6), got {driver.tier_hits(WHOLE)}"
    )
    driver.load(driver.key_of(WHOLE))
    assert driver.tier_hits(WHOLE) == (6, 0), (
        f"FLOW-4: another load can succeed: expected (6, 0), got {driver.tier_hits(WHOLE)}"
    )


def _slots(driver: Scenario) -> dict[str, tuple[object, object]]:
    """The slots of each prefix on both tiers, by component."""
    return {name: (driver.device_slots(name), driver.host_slots(name)) for name in driver.config.components}


def _require_sources_pinned(driver: Scenario, tier: Tier, kind: TransferKind) -> None:
    """FLOW-5: each part of a transfer's source is pinned on its tier."""
    if not driver.transfer_views(kind):
        return
    bare = {prefix for prefix in prefixes(*WHOLE) if not driver.pins(tier)[FULL, prefix]}
    assert not bare, f"FLOW-5: {WHOLE} is being moved, and of its parts {bare} is not pinned on the {tier.value}"


def split_and_fail(driver: Scenario) -> None:
    """Start the queued transfer, split its node, and let it fail in its first part."""
    driver.step()
    for pages in CUTS:
        by_match(driver, pages)
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
