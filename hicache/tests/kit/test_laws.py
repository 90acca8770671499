"""Every law fails on a snapshot that violates it, with its clause and the place; a valid snapshot passes all laws."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hicache.errors import InvariantError
from hicache.testing.laws import check_laws
from hicache.testing.laws.counters import check_partners, check_sizes
from hicache.testing.laws.locks import check_receipts
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, node, pool, slots, snapshot, tiny_config
from hicache.types import Namespace, Sizes, Slots, Tier

CONFIG = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=4)
HELD = {FULL: slots(8, 9), SWA: slots(2, 3), MAMBA: slots(3)}
POOLS = {FULL: pool(8, 4, 5), SWA: pool(8, 6, 7, 4, 5), MAMBA: pool(4, 4, 2)}

UPPER = node((1, 2), {FULL: slots(2, 3), SWA: None, MAMBA: None}, locks={FULL: 1})
LOWER = node((3, 4), {FULL: slots(6, 7), SWA: slots(8, 9), MAMBA: slots(1)}, parent=0, start=2, locks={FULL: 1, SWA: 1})


def sound(*nodes: NodeView, pools: Mapping[str, PoolView] = POOLS) -> Snapshot:
    return snapshot(nodes or (UPPER, LOWER), pools)


def change(original: NodeView, **fields: Any) -> NodeView:
    """A node with other fields; `slots` and `locks` are merged with its own."""
    for name in fields.keys() & {"slots", "locks"}:
        fields[name] = {**getattr(original, name), **fields[name]}
    return replace(original, **fields)


def fails(clause: str, words: str, shown: Snapshot, held: Mapping[str, Slots] = HELD) -> None:
    with pytest.raises(InvariantError, match=rf"^{clause}: .*{re.escape(words)}"):
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


@pytest.mark.parametrize("slot", [2, 7, 5], ids=["of a tombstone", "of a node", "of a free slot"])
def test_a_wrong_partner_fails(slot: int) -> None:
    mapping = {2: 0, 3: 0, 6: 8, 7: 9, 4: 0, 5: 0}

    def partners(asked: Slots) -> Slots:
        return slots(*(mapping[number] for number in asked.tolist()))

    check_partners(sound(), partners)
    mapping[slot] = 10
    with pytest.raises(InvariantError, match=f"POOL-5: .*FULL slot {slot}"):
        check_partners(sound(), partners)
