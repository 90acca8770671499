"""Every law of nodes and locks on two tiers fails on a snapshot that violates it; a valid snapshot passes all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hicache.config import WritePolicy
from hicache.errors import InvariantError
from hicache.testing.laws import check_laws
from hicache.testing.laws.candidates import host_candidates
from hicache.testing.laws.counters import check_host_sizes
from hicache.testing.laws.locks import check_receipts
from hicache.tests.kit.host_scene import (
    A_BELOW,
    B_BELOW,
    C_BELOW,
    CONFIG,
    FREE,
    HELD,
    HOST_POOLS,
    POOLS,
    STILL,
    A,
    B,
    C,
    change,
    fails,
    scene,
)
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, pool, slots, tiny_config
from hicache.types import Sizes, Tier


def test_a_sound_snapshot_breaks_no_law() -> None:
    owners = check_laws(scene(), CONFIG, HELD, is_awaited=False)
    found = {tier: owner[FULL].tolist() for tier, owner in owners.items()}
    expected = {
        Tier.DEVICE: [0, 0, 2, 2, 2, 2, 4, 4, 1, 1, 1, 1, 5, 5],
        Tier.HOST: [0, 0, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1],
    }
    assert found == expected, f"owners of FULL: expected {expected}, got {found}"


NOWHERE = change(C_BELOW, slots=dict.fromkeys((FULL, SWA, MAMBA)))

TREES: dict[str, tuple[str, str, dict[str, Any]]] = {
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
        "no more than its full locks, got 2",
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


@pytest.mark.parametrize("name", TREES)
def test_a_broken_tree_fails(name: str) -> None:
    clause, words, fields = TREES[name]
    fails(clause, words, scene(**fields))


def test_with_write_back_a_parent_may_be_on_the_device_alone() -> None:
    above = change(A_BELOW, slots=dict.fromkeys((FULL, SWA)))
    config = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=6, write_policy=WritePolicy.WRITE_BACK)
    free = {FULL: pool(12, 2, 3, 8, 9, 10, 11, 12, 13), SWA: pool(12, 2, 3, 4, 5, *range(8, 14))}
    shown = scene(below=(above, B_BELOW, C_BELOW), host_pools=HOST_POOLS | free)
    check_laws(shown, config, HELD, is_awaited=False)


def test_of_one_node_the_state_may_come_back_before_the_window() -> None:
    bare = change(B, slots={SWA: None}, locks={SWA: 0})
    shown = scene(
        nodes=(A, bare, C),
        below=(A_BELOW, change(B_BELOW, pins={SWA: 0}), C_BELOW),
        pools=POOLS | {SWA: pool(12, 2, 3, *range(6, 14))},
    )
    check_laws(shown, CONFIG, HELD, is_awaited=False)


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
