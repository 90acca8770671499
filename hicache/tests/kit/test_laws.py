"""Every law fails on a snapshot that violates it, with its clause and the place; a valid snapshot passes all laws."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hicache.config import WritePolicy
from hicache.errors import InvariantError
from hicache.testing.configurations import with_storage
from hicache.testing.laws import accepted, check_laws
from hicache.testing.laws.slots import check_host_sizes, check_partners, check_sizes
from hicache.testing.laws.tiers import Keys, check_kept, check_no_fetch, check_order
from hicache.testing.laws.tree import check_receipts, host_candidates
from hicache.testing.snapshot import FetchView, HostNodeView, NodeView, PoolView, Snapshot, StorageView, TransferView
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, below, host_tier, node, pool, slots, snapshot, tiny_config
from hicache.types import NO_SLOTS, Namespace, Pool, Sizes, Slots, Tier, TransferKind

CONFIG = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=4)
HELD = {FULL: slots(8, 9), SWA: slots(2, 3), MAMBA: slots(3)}
POOLS = {FULL: pool(8, 4, 5), SWA: pool(8, 6, 7, 4, 5), MAMBA: pool(4, 4, 2)}

UPPER = node((1, 2), {FULL: slots(2, 3), SWA: None, MAMBA: None}, locks={FULL: 1})
LOWER = node((3, 4), {FULL: slots(6, 7), SWA: slots(8, 9), MAMBA: slots(1)}, parent=0, start=2, locks={FULL: 1, SWA: 1})


def sound(*nodes: NodeView, pools: Mapping[str, PoolView] = POOLS) -> Snapshot:
    return snapshot(nodes or (UPPER, LOWER), pools)


def change(original: Any, **fields: Any) -> Any:
    """A view with other fields; mappings are merged with its own."""
    for name in fields.keys() & {"slots", "locks", "pins", "host_pins", "device", "host"}:
        fields[name] = {**getattr(original, name), **fields[name]}
    return replace(original, **fields)


def violation(clause: str, words: str) -> AbstractContextManager[object]:
    return pytest.raises(InvariantError, match=rf"^{clause}: .*{re.escape(words)}")


@pytest.fixture(autouse=True)
def _a_sound_snapshot_was_accepted() -> None:
    """What passed before must not hide what is violated now."""
    check_laws(sound(), CONFIG, HELD)


def fails(clause: str, words: str, shown: Snapshot, held: Mapping[str, Slots] = HELD) -> None:
    with violation(clause, words):
        check_laws(shown, CONFIG, held)


def test_a_sound_snapshot_breaks_no_law() -> None:
    owners = check_laws(sound(), CONFIG, HELD)[Tier.DEVICE]
    expected = [0, 0, 2, 2, 1, 1, 2, 2, 3, 3]
    assert owners[FULL].tolist() == expected, f"owners of FULL: expected {expected}, got {owners[FULL].tolist()}"


TREES = {
    "a parent that comes after": ("INS-8", "listed before", (change(UPPER, parent=1), LOWER)),
    "a gap below the parent": ("INS-8", "start where the parent ends", (UPPER, change(LOWER, start=4, end=6))),
    "a namespace unlike the parent's": (
        "KEY-2",
        "namespace",
        (UPPER, change(LOWER, namespace=Namespace("a", None, None))),
    ),
    "an empty node": ("KEY-1", "multiple of page_size 2", (UPPER, change(LOWER, end=2, segment=b""))),
    "a node of half a page": ("KEY-1", "got 1", (UPPER, change(LOWER, end=3, segment=LOWER.segment[:4]))),
    "a segment that is too short": ("KEY-3", "4 bytes per element", (UPPER, change(LOWER, segment=LOWER.segment[:4]))),
    "siblings that begin alike": ("MATCH-8", "that of node 1", (UPPER, LOWER, LOWER)),
    "too few FULL slots": ("POOL-1", "full slots for the whole node", (UPPER, change(LOWER, slots={FULL: slots(6)}))),
    "too few SWA slots": ("POOL-1", "swa slots for the whole node", (UPPER, change(LOWER, slots={SWA: slots(8)}))),
    "two states": ("POOL-1", "mamba slots for the whole node", (UPPER, change(LOWER, slots={MAMBA: slots(1, 2)}))),
    "a node that holds nothing": ("MATCH-7", "a node with data", (change(UPPER, slots={FULL: None}), LOWER)),
    "FULL data below a tombstone": (
        "EVICT-5",
        "FULL data on the parent",
        (change(UPPER, slots={FULL: None, MAMBA: slots(2)}), LOWER),
    ),
    "SWA data without FULL data": (
        "EVICT-5",
        "full data where there is swa",
        (UPPER, change(LOWER, slots={FULL: None})),
    ),
    "a state without SWA data": ("EVICT-5", "swa data where there is mamba", (UPPER, change(LOWER, slots={SWA: None}))),
    "an unlocked leaf without a state": (
        "EVICT-6",
        "mamba data on an unlocked leaf",
        (UPPER, change(LOWER, slots={MAMBA: None}, locks={FULL: 0, SWA: 0})),
    ),
    "fewer hits than a child": ("INS-8", "0 < 1", (UPPER, change(LOWER, hits=1))),
    "a negative count": ("LOCK-6", "a swa lock count of at least 0", (UPPER, change(LOWER, locks={SWA: -1}))),
    "more SWA locks than FULL locks": ("LOCK-8", "a swa lock count", (UPPER, change(LOWER, locks={SWA: 2}))),
    "a parent locked less": ("LOCK-1", "1 < 2", (UPPER, change(LOWER, locks={FULL: 2}))),
    "a lock on a tombstone": ("LOCK-5", "swa data under a swa lock", (change(UPPER, locks={SWA: 1}), LOWER)),
}


@pytest.mark.parametrize("name", TREES)
def test_a_broken_tree_fails(name: str) -> None:
    clause, words, nodes = TREES[name]
    fails(clause, words, sound(*nodes))


def test_a_departure_allows_a_tree_to_the_cache_that_has_it_and_to_no_other() -> None:
    clause, words, nodes = TREES["a negative count"]
    check_laws(sound(*nodes), CONFIG, HELD, departures=frozenset({clause}))
    fails(clause, words, sound(*nodes))


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        (((1, 2, 3, 4), (4, 5, 5, 6)), "pairs that overlap"),
        (((1, 2, 2, 3), (4, 5, 5, 6)), "overlaps the parent's last"),
    ],
    ids=["within a node", "across nodes"],
)
def test_pairs_that_do_not_join_fail(segments: tuple[tuple[int, ...], tuple[int, ...]], words: str) -> None:
    upper = node(segments[0], {FULL: slots(2, 3)}, end=2)
    lower = node(segments[1], {FULL: slots(4, 5)}, parent=0, start=2, end=4)
    with pytest.raises(InvariantError, match=f"KEY-3: .*{words}"):
        check_laws(sound(upper, lower, pools={FULL: POOLS[FULL]}), tiny_config(FULL, bigram=True), HELD)


POOLS_BROKEN = {
    "a slot that is free and the tree's": ("POOL-1", "the tree as well", {FULL: pool(8, 4, 5, 6, 7)}, {}),
    "a slot that is free and the caller's": ("POOL-1", "the caller as well", {SWA: pool(8, 2, 3, 4, 5, 6, 7)}, {}),
    "a slot that is free twice": ("POOL-1", "slots listed twice", {MAMBA: pool(4, 4, 4)}, {}),
    "a leaked page": ("POOL-1", "8 slots with an owner", {FULL: pool(8)}, {}),
    "more slots than the pool has": ("POOL-1", "4 slots with an owner", {MAMBA: pool(4, 4, 2, 5)}, {}),
    "the padding slot": ("POOL-1", "above 0, the padding slot, got 0", {MAMBA: pool(4, 4, 0)}, {}),
    "a torn page": ("POOL-4", "page 2: expected one owner", {FULL: pool(8, 4, 10)}, {FULL: slots(8, 9)}),
    "pools of other components": ("POOL-1", "the pools of", {"other": pool(1, 1)}, {}),
}


@pytest.mark.parametrize("name", POOLS_BROKEN)
def test_a_broken_pool_fails(name: str) -> None:
    clause, words, pools, held = POOLS_BROKEN[name]
    fails(clause, words, sound(pools={**POOLS, **pools}), {**HELD, **held})


def test_slots_of_the_tree_in_another_order_fail() -> None:
    fails("POOL-4", "aligned pages of 2 in order", sound(UPPER, change(LOWER, slots={FULL: slots(7, 6)})))


def test_a_lock_without_a_receipt_fails() -> None:
    check_receipts(sound(), receipts=1)
    with pytest.raises(InvariantError, match=r"LOCK-2: .*at most 0"):
        check_receipts(sound(), receipts=0)


SIZES = {FULL: Sizes(0, 4, 2), SWA: Sizes(0, 2, 4), MAMBA: Sizes(1, 0, 2)}


def test_counters_equal_their_recomputation() -> None:
    check_sizes(sound(), SIZES)


@pytest.mark.parametrize("component", SIZES)
@pytest.mark.parametrize("counter", ["evictable", "protected", "free"])
def test_a_counter_that_is_off_by_one_fails(component: str, counter: str) -> None:
    off = replace(SIZES[component], **{counter: getattr(SIZES[component], counter) + 1})
    with pytest.raises(InvariantError, match=f"LOCK-4: size counters of {component}"):
        check_sizes(sound(), {**SIZES, component: off})


def partners_in(mapping: Mapping[int, int]) -> Callable[[Slots], Slots]:
    """A cache's mapping of FULL slots to SWA slots."""
    return lambda asked: slots(*(mapping[number] for number in asked.tolist()))


@pytest.mark.parametrize("slot", [2, 7, 5], ids=["of a tombstone", "of a node", "of a free slot"])
def test_a_wrong_partner_fails(slot: int) -> None:
    mapping = {2: 0, 3: 0, 6: 8, 7: 9, 4: 0, 5: 0}
    check_partners(sound(), partners_in(mapping))
    mapping[slot] = 10
    with pytest.raises(InvariantError, match=f"POOL-5: .*FULL slot {slot}"):
        check_partners(sound(), partners_in(mapping))


HOST_CONFIG = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=6, write_policy=WritePolicy.WRITE_THROUGH)
NOTHING_HELD: Mapping[str, Slots] = dict.fromkeys((FULL, SWA, MAMBA), NO_SLOTS)

# A and B are on the device, and B's state is being backed up. C, below A, is only on the host, and is being loaded.
A = node((1, 2), {FULL: slots(2, 3), SWA: None, MAMBA: None}, locks={FULL: 2})
B = node(
    (3, 4),
    {FULL: slots(4, 5), SWA: slots(2, 3), MAMBA: slots(1)},
    parent=0,
    start=2,
    locks={FULL: 1, SWA: 1, MAMBA: 1},
)
C = node((5, 6), {FULL: None, SWA: None, MAMBA: None}, parent=0, start=2)

A_BELOW = below({FULL: slots(2, 3), SWA: slots(2, 3), MAMBA: None}, pins={FULL: 2})
B_BELOW = below({FULL: slots(4, 5), SWA: None, MAMBA: None}, pins={FULL: 1, SWA: 1, MAMBA: 1})
C_BELOW = below(
    {FULL: slots(6, 7), SWA: slots(6, 7), MAMBA: slots(1)},
    locks={FULL: 2, SWA: 1, MAMBA: 1},
    host_pins={FULL: 1, SWA: 1, MAMBA: 1},
)

BACKUP = TransferView(TransferKind.BACKUP, {MAMBA: slots(1)}, {MAMBA: slots(2)})
LOAD = TransferView(
    TransferKind.LOAD,
    {FULL: slots(6, 7), SWA: slots(4, 5), MAMBA: slots(2)},
    {FULL: slots(6, 7), SWA: slots(6, 7), MAMBA: slots(1)},
)

DEVICE_POOLS = {FULL: pool(12, 8, 9, 10, 11), SWA: pool(12, 6, 7, 8, 9, 10, 11, 12, 13), MAMBA: pool(6, 3, 4, 5, 6)}
HOST_POOLS = {FULL: pool(12, 8, 9, 10, 11, 12, 13), SWA: pool(12, 4, 5, *range(8, 14)), MAMBA: pool(6, 3, 4, 5, 6)}
KEPT = {FULL: slots(12, 13)}


def scene(
    *,
    nodes: Sequence[NodeView] = (A, B, C),
    below: Sequence[HostNodeView] = (A_BELOW, B_BELOW, C_BELOW),
    transfers: Sequence[TransferView] = (BACKUP, LOAD),
    pools: Mapping[str, PoolView] = DEVICE_POOLS,
    host_pools: Mapping[str, PoolView] = HOST_POOLS,
    kept: Mapping[str, Slots] = KEPT,
) -> Snapshot:
    """The snapshot, or one with some other parts."""
    return snapshot(nodes, pools, host_tier(below, host_pools, *transfers, kept=kept))


FREE = {"locks": dict.fromkeys((FULL, SWA, MAMBA), 0), "host_pins": dict.fromkeys((FULL, SWA, MAMBA), 0)}
NO_PINS = {"pins": dict.fromkeys((FULL, SWA, MAMBA), 0)}

STILL: dict[str, Any] = {
    "below": (change(A_BELOW, **NO_PINS), change(B_BELOW, **NO_PINS), change(C_BELOW, host_pins=FREE["host_pins"])),
    "transfers": (),
    "pools": {FULL: pool(12, *range(6, 14)), SWA: pool(12, *range(4, 14)), MAMBA: pool(6, *range(2, 7))},
    "host_pools": HOST_POOLS | {MAMBA: pool(6, *range(2, 7))},
    "kept": {},
}
"""The same with nothing in flight. C is locked on the host by a receipt."""


def fails_on_two_tiers(
    clause: str, words: str, shown: Snapshot, write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
) -> None:
    config = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=6, write_policy=write_policy)
    with violation(clause, words):
        check_laws(shown, config, NOTHING_HELD, is_awaited=False)


def test_a_sound_snapshot_of_two_tiers_breaks_no_law() -> None:
    owners = check_laws(scene(), HOST_CONFIG, NOTHING_HELD, is_awaited=False)
    found = {tier: owner[FULL].tolist() for tier, owner in owners.items()}
    expected = {
        Tier.DEVICE: [0, 0, 2, 2, 2, 2, 4, 4, 1, 1, 1, 1, 5, 5],
        Tier.HOST: [0, 0, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1],
    }
    assert found == expected, f"owners of FULL: expected {expected}, got {found}"


NOWHERE = change(C_BELOW, slots=dict.fromkeys((FULL, SWA, MAMBA)))

HOST_TREES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a node on no tier": ("MATCH-7", "a node with data", {"below": (A_BELOW, B_BELOW, NOWHERE)}),
    "a device copy below a host copy": (
        "EVICT-5",
        "FULL data on the parent of FULL data",
        {"nodes": (change(A, slots={FULL: None}), B, C)},
    ),
    "a host copy below none": (
        "EVICT-5",
        "FULL data on the parent of FULL data on the host",
        {"below": (change(A_BELOW, slots=dict.fromkeys((FULL, SWA))), B_BELOW, C_BELOW)},
    ),
    "SWA on the host without FULL there": (
        "EVICT-5",
        "full data where there is swa data on the host",
        {"below": (A_BELOW, change(B_BELOW, slots={FULL: None, SWA: slots(4, 5)}), C_BELOW)},
    ),
    "a state on the host without FULL there": (
        "EVICT-5",
        "full data where there is mamba data on the host",
        {"below": (A_BELOW, change(B_BELOW, slots={FULL: None, MAMBA: slots(2)}), C_BELOW)},
    ),
    "an unlocked leaf whose state is nowhere": (
        "EVICT-6",
        "mamba data on an unlocked leaf",
        {"below": (A_BELOW, B_BELOW, change(C_BELOW, slots={MAMBA: None}, **FREE))},
    ),
    "too few host slots": (
        "POOL-1",
        "full slots for the whole node on the host",
        {"below": (A_BELOW, change(B_BELOW, slots={FULL: slots(4)}), C_BELOW)},
    ),
    "two states on the host": (
        "POOL-1",
        "mamba slots for the whole node on the host",
        {"below": (A_BELOW, B_BELOW, change(C_BELOW, slots={MAMBA: slots(1, 2)}))},
    ),
    "a negative count on the host": (
        "LOCK-6",
        "a full lock count of at least 0 on the host",
        {"below": (A_BELOW, change(B_BELOW, locks={FULL: -1}), C_BELOW)},
    ),
    "a host lock on what is not there": (
        "LOCK-5",
        "mamba data under a mamba lock on the host",
        {"below": (change(A_BELOW, locks={MAMBA: 1}), B_BELOW, C_BELOW)},
    ),
    "more pins than locks": (
        "HOST-3",
        "no more than its full locks, got 2 with a lock count of ",
        {"below": (A_BELOW, change(B_BELOW, pins={FULL: 2}), C_BELOW)},
    ),
    "more host pins than host locks": (
        "HOST-3",
        "pins of swa on the host",
        {"below": (A_BELOW, B_BELOW, change(C_BELOW, host_pins={SWA: 2}))},
    ),
    "a negative number of pins": (
        "HOST-3",
        "got -1",
        {"below": (change(A_BELOW, pins={FULL: -1}), B_BELOW, C_BELOW)},
    ),
}


@pytest.mark.parametrize("name", HOST_TREES)
def test_a_broken_tree_of_two_tiers_fails(name: str) -> None:
    clause, words, fields = HOST_TREES[name]
    fails_on_two_tiers(clause, words, scene(**fields))


def test_with_write_back_a_parent_may_be_on_the_device_alone() -> None:
    above = change(A_BELOW, slots=dict.fromkeys((FULL, SWA)))
    config = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=6, write_policy=WritePolicy.WRITE_BACK)
    free = {FULL: pool(12, 2, 3, 8, 9, 10, 11, 12, 13), SWA: pool(12, 2, 3, 4, 5, *range(8, 14))}
    shown = scene(below=(above, B_BELOW, C_BELOW), host_pools=HOST_POOLS | free)
    check_laws(shown, config, NOTHING_HELD, is_awaited=False)


def test_of_one_node_the_state_may_come_back_before_the_window() -> None:
    bare = change(B, slots={SWA: None}, locks={SWA: 0})
    shown = scene(
        nodes=(A, bare, C),
        below=(A_BELOW, change(B_BELOW, pins={SWA: 0}), C_BELOW),
        pools=DEVICE_POOLS | {SWA: pool(12, 2, 3, *range(6, 14))},
    )
    check_laws(shown, HOST_CONFIG, NOTHING_HELD, is_awaited=False)


def test_pins_need_no_receipt() -> None:
    check_receipts(scene(), receipts=0)
    shown = scene(nodes=(change(A, locks={FULL: 3}), B, C))
    check_receipts(shown, receipts=1)
    with pytest.raises(InvariantError, match=r"LOCK-2: .*at most 0, the receipts, got 1"):
        check_receipts(shown, receipts=0)


HOST_SIZES = {FULL: Sizes(4, 2, 6), SWA: Sizes(2, 2, 8), MAMBA: Sizes(0, 1, 4)}


@pytest.mark.parametrize("component", HOST_SIZES)
@pytest.mark.parametrize("counter", ["evictable", "protected", "free"])
def test_host_counters_equal_their_recomputation(component: str, counter: str) -> None:
    host = scene().host
    assert host, "the scene has a host tier"
    check_host_sizes(host, HOST_SIZES)
    off = replace(HOST_SIZES[component], **{counter: getattr(HOST_SIZES[component], counter) + 1})
    with pytest.raises(InvariantError, match=f"LOCK-4: host size counters of {component}"):
        check_host_sizes(host, {**HOST_SIZES, component: off})


def test_what_a_host_eviction_may_take() -> None:
    assert not host_candidates(scene(), FULL), "transfers may hold on to anything"
    free = STILL | {"below": (*STILL["below"][:2], change(C_BELOW, **FREE))}
    locked = STILL | {
        "below": (*STILL["below"][:2], change(C_BELOW, **(FREE | {"locks": {FULL: 0, SWA: 0, MAMBA: 1}})))
    }
    found = {name: [host_candidates(scene(**fields), name) for fields in (free, locked)] for name in (FULL, SWA, MAMBA)}
    expected = {FULL: [[1, 2], [1]], SWA: [[0, 2], [0]], MAMBA: [[2], []]}
    assert found == expected, f"EVICT-8: leaves of the host without a lock: expected {expected}, got {found}"


HOST_POOLS_BROKEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a target that is free": (
        "FLOW-1",
        "slot 6: expected one owner, the free list, got a transfer as well",
        {"pools": DEVICE_POOLS | {FULL: pool(12, 6, 7, 8, 9, 10, 11)}},
    ),
    "a target that is the tree's": (
        "FLOW-1",
        "one owner, the tree, got a transfer as well",
        {"transfers": (BACKUP, change(LOAD, device={FULL: slots(4, 5)}))},
    ),
    "a target of a backup that is free": (
        "FLOW-1",
        "the free list, got a transfer as well",
        {"host_pools": HOST_POOLS | {MAMBA: pool(6, 2, 3, 4, 5, 6)}},
    ),
    "two transfers into one page": ("POOL-1", "slots listed twice", {"transfers": (BACKUP, LOAD, LOAD)}),
    "a leaked target": ("POOL-1", "12 slots with an owner", {"transfers": (BACKUP,)}),
    "a leaked page of the host": (
        "POOL-1",
        "host pool of full: expected 12 slots with an owner",
        {"host_pools": HOST_POOLS | {FULL: pool(12, 8, 9)}},
    ),
    "a host page of two nodes": (
        "POOL-1",
        "host pool of full: expected each slot once",
        {"below": (A_BELOW, change(B_BELOW, slots={FULL: slots(2, 3)}), C_BELOW)},
    ),
    "what is kept and free": (
        "POOL-1",
        "the free list, got a load that has ended as well",
        {"kept": {FULL: slots(8, 9)}},
    ),
    "a target that begins inside a page": (
        "POOL-4",
        "slots of a transfer",
        {"transfers": (BACKUP, change(LOAD, device={FULL: slots(7, 6)}))},
    ),
    "host slots in another order": (
        "POOL-4",
        "host pool of full, slots of the tree",
        {"below": (A_BELOW, change(B_BELOW, slots={FULL: slots(5, 4)}), C_BELOW)},
    ),
    "pools of other components": ("POOL-1", "snapshot on the host", {"host_pools": {"other": pool(1, 1)}}),
    "fewer nodes on the host": ("POOL-1", "snapshot on the host: expected 3 nodes", {"below": (A_BELOW, B_BELOW)}),
}


@pytest.mark.parametrize("name", HOST_POOLS_BROKEN)
def test_a_broken_pool_of_two_tiers_fails(name: str) -> None:
    clause, words, fields = HOST_POOLS_BROKEN[name]
    fails_on_two_tiers(clause, words, scene(**fields))


def test_a_host_tier_is_there_or_not_as_configured() -> None:
    without = snapshot((), {name: pool(0) for name in (FULL, SWA, MAMBA)})
    fails_on_two_tiers("POOL-1", "a host tier: True, got False", without)
    with pytest.raises(InvariantError, match="POOL-1: snapshot: expected a host tier: False, got True"):
        check_laws(scene(), tiny_config(FULL, SWA, MAMBA), NOTHING_HELD)


TRANSFERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a source that is free": (
        "FLOW-1",
        "source of transfer 0, backup, mamba slot 5: expected the tree, got the free list",
        {"transfers": (change(BACKUP, device={MAMBA: slots(5)}), LOAD)},
    ),
    "a host source that is free": (
        "FLOW-1",
        "source of transfer 1, load, full slot 8: expected the tree, got the free list",
        {"transfers": (BACKUP, change(LOAD, host={FULL: slots(8, 9)}))},
    ),
    "a source without an owner": (
        "FLOW-1",
        "mamba slot 99: expected the tree, got the free list",
        {"transfers": (change(BACKUP, device={MAMBA: slots(99)}), LOAD)},
    ),
    "ends of unequal length": (
        "FLOW-1",
        "as many slots on the host as on the device",
        {"transfers": (BACKUP, change(LOAD, host={FULL: slots(4, 5, 6, 7)}))},
    ),
    "ends of other components": (
        "FLOW-1",
        "as many slots on the host as on the device",
        {"transfers": (BACKUP, replace(LOAD, host={FULL: slots(6, 7), SWA: slots(6, 7)}))},
    ),
    "a backup of an unlocked node": (
        "HOST-3",
        "a pin of full while a transfer reads its mamba slots",
        {"below": (A_BELOW, change(B_BELOW, **NO_PINS), C_BELOW)},
    ),
    "a load from an unlocked node": (
        "HOST-3",
        "a pin of swa on the host while a transfer reads its swa slots",
        {"below": (A_BELOW, B_BELOW, change(C_BELOW, host_pins={SWA: 0}))},
    ),
}


@pytest.mark.parametrize("name", TRANSFERS)
def test_a_broken_transfer_fails(name: str) -> None:
    clause, words, fields = TRANSFERS[name]
    fails_on_two_tiers(clause, words, scene(**fields))


def test_with_nothing_in_flight_nothing_is_pinned_or_kept() -> None:
    check_laws(scene(**STILL), HOST_CONFIG, NOTHING_HELD, is_awaited=False)
    pinned = STILL | {"below": (A_BELOW, *STILL["below"][1:])}
    kept = STILL | {"kept": KEPT, "pools": STILL["pools"] | {FULL: pool(12, *range(6, 12))}}
    for fields in (pinned, kept):
        check_laws(scene(**fields), HOST_CONFIG, NOTHING_HELD, is_awaited=True)
    fails_on_two_tiers("FLOW-7", "no pins of full while nothing is in flight, got 2", scene(**pinned))
    fails_on_two_tiers("FLOW-7", "slots kept for loads that have ended", scene(**kept))


@pytest.mark.parametrize(("slot", "partner", "is_right"), [(2, 4, True), (2, 6, False), (4, 4, False), (8, 4, False)])
def test_a_tombstone_may_map_to_what_a_load_writes_to(slot: int, partner: int, is_right: bool) -> None:
    mapping = dict.fromkeys(range(14), 0) | {4: 2, 5: 3} | {slot: partner, slot + 1: partner + 1}
    if is_right:
        check_partners(scene(), partners_in(mapping))
        return
    with pytest.raises(InvariantError, match=f"POOL-5: .*FULL slot {slot}"):
        check_partners(scene(), partners_in(mapping))


STORAGE_CONFIG = with_storage(HOST_CONFIG)
NOTHING = frozenset[str]()
MARKS = (frozenset({FULL, SWA}), NOTHING, frozenset({FULL, SWA, MAMBA}))
"""The marks of A, of B below A, and of C below A, the nodes of the scene."""

FETCH = FetchView({FULL: slots(8, 9)})
OF_POOLS: dict[str, str] = {Pool.KV: FULL, Pool.INDEXER: FULL, Pool.MAMBA: MAMBA}
KEYS: dict[int, Keys] = {
    0: {Pool.KV: ("a",), Pool.INDEXER: ("ia",), Pool.MAMBA: ("ma",)},
    1: {Pool.KV: ("a", "b"), Pool.INDEXER: ("ia", "ib"), Pool.MAMBA: ("ma", "mb")},
    2: {Pool.KV: ("a", "c"), Pool.INDEXER: ("ia", "ic"), Pool.MAMBA: ("ma", "mc")},
}


def stored(marks: tuple[frozenset[str], ...] = MARKS, *fetches: FetchView, **more: object) -> Snapshot:
    """The scene with nothing in flight, and with marks of stored nodes."""
    return replace(scene(**{**STILL, **more}), storage=StorageView(marks, fetches))


def check_stored(snapshot: Snapshot) -> None:
    check_laws(snapshot, STORAGE_CONFIG, NOTHING_HELD, is_awaited=False)


def test_a_sound_snapshot_with_storage_breaks_no_law() -> None:
    check_stored(stored())
    check_stored(stored(MARKS, FETCH, host_pools=STILL["host_pools"] | {FULL: pool(12, 10, 11, 12, 13)}))
    check_stored(stored((NOTHING, NOTHING, NOTHING)))


STORAGE_BROKEN: dict[str, tuple[str, str, Callable[[], Snapshot]]] = {
    "a prefetch into free slots": ("FLOW-1", "a prefetch, got the free list as well", lambda: stored(MARKS, FETCH)),
    "a prefetch into a node's slots": (
        "FLOW-1",
        "the tree",
        lambda: stored(MARKS, FetchView({FULL: slots(2, 3)})),
    ),
    "a prefetch of half a page": (
        "POOL-4",
        "one owner",
        lambda: stored(
            MARKS, FetchView({FULL: slots(8)}), host_pools=STILL["host_pools"] | {FULL: pool(12, *range(9, 14))}
        ),
    ),
    "a leak of a prefetch": (
        "POOL-1",
        "12 slots with an owner",
        lambda: stored(host_pools=STILL["host_pools"] | {FULL: HOST_POOLS[FULL]} | {SWA: pool(12, 4, 5)}),
    ),
    "marks for some nodes": ("FLOW-9", "3 nodes, got 2", lambda: stored(MARKS[:2])),
    "a mark of no component": ("FLOW-9", "components", lambda: stored((frozenset({"x"}), NOTHING, NOTHING))),
    "a mark without FULL": (
        "FLOW-9",
        "FULL stored with the rest",
        lambda: stored((frozenset({SWA}), NOTHING, NOTHING)),
    ),
    "a child before its parent": (
        "FLOW-9",
        "a parent that is stored",
        lambda: stored((NOTHING, NOTHING, frozenset({FULL}))),
    ),
    "no view of storage": ("POOL-1", "storage: True", lambda: scene(**STILL)),
}


@pytest.mark.parametrize(("clause", "words", "broken"), STORAGE_BROKEN.values(), ids=STORAGE_BROKEN)
def test_a_broken_law_of_storage_is_named(clause: str, words: str, broken: Callable[[], Snapshot]) -> None:
    with violation(clause, words):
        check_stored(broken())


def test_slots_and_pins_without_a_waiting_request_are_found() -> None:
    check_no_fetch(stored())
    with pytest.raises(InvariantError, match=r"^FETCH-8"):
        check_no_fetch(stored(MARKS, FETCH))
    pinned = replace(scene(), storage=StorageView(MARKS, ()))
    with pytest.raises(InvariantError, match=r"^FLOW-7: .*node 2"):
        check_no_fetch(pinned)


def test_a_mark_needs_the_objects_of_the_node_itself() -> None:
    there = {"a", "ia", "c", "ic", "mc"}
    check_kept(stored(), OF_POOLS, KEYS.__getitem__, there.__contains__)
    for lost in ("a", "ia", "c", "ic", "mc"):
        with pytest.raises(InvariantError, match=f"^FETCH-9: .*{lost}"):
            check_kept(stored(), OF_POOLS, KEYS.__getitem__, (there - {lost}).__contains__)


def test_storage_has_no_gap_and_no_kv_without_its_sidecar() -> None:
    check_order(stored(), OF_POOLS, KEYS.__getitem__, {"a", "ia", "ic", "mb"}.__contains__)
    with pytest.raises(InvariantError, match=r"^FLOW-9: .*no gap"):
        check_order(stored(), OF_POOLS, KEYS.__getitem__, {"b", "ib", "ia"}.__contains__)
    with pytest.raises(InvariantError, match=r"^FLOW-9: .*indexer"):
        check_order(stored(), OF_POOLS, KEYS.__getitem__, {"a"}.__contains__)


def test_a_value_is_checked_until_it_passes_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted, "LIMIT", 2)
    checked: list[str] = []

    def check(value: str) -> int:
        checked.append(value)
        if value == "fails" and checked.count(value) == 1:
            raise InvariantError(value)
        return len(value)

    known = accepted.Accepted[int]()
    for value in ("a", "a", "fails", "fails", "fails"):
        with suppress(InvariantError):
            length = known.result(value, partial(check, value))
            assert length == len(value), f"{value!r}: expected {len(value)}, got {length}"
    assert checked == ["a", "fails", "fails"], f"expected what failed to be checked again, got {checked}"
    known.add("third", 3)
    assert "a" not in known, "expected no more values than the limit"
    assert "third" in known, "expected the last value to be kept"
