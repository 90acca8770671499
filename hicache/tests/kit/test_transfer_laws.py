"""Every law of slots and transfers on two tiers fails on a snapshot that violates it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hicache.errors import InvariantError
from hicache.testing.laws import check_laws
from hicache.testing.laws.counters import check_partners
from hicache.tests.kit.host_scene import (
    A_BELOW,
    B_BELOW,
    BACKUP,
    C_BELOW,
    CONFIG,
    HELD,
    HOST_POOLS,
    KEPT,
    LOAD,
    NO_PINS,
    POOLS,
    STILL,
    change,
    fails,
    scene,
)
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, pool, slots, snapshot, tiny_config
from hicache.types import Slots

POOLS_BROKEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a target that is free": (
        "POOL-1",
        "slot 6: expected one owner, the free list, got a transfer as well",
        {"pools": POOLS | {FULL: pool(12, 6, 7, 8, 9, 10, 11)}},
    ),
    "a target that is the tree's": (
        "POOL-1",
        "one owner, the tree, got a transfer as well",
        {"transfers": (BACKUP, change(LOAD, device={FULL: slots(4, 5)}))},
    ),
    "a target of a backup that is free": (
        "POOL-1",
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


@pytest.mark.parametrize("name", POOLS_BROKEN)
def test_a_broken_pool_fails(name: str) -> None:
    clause, words, fields = POOLS_BROKEN[name]
    fails(clause, words, scene(**fields))


def test_a_host_tier_is_there_or_not_as_configured() -> None:
    without = snapshot((), {name: pool(0) for name in (FULL, SWA, MAMBA)})
    fails("POOL-1", "a host tier: True, got False", without)
    with pytest.raises(InvariantError, match="POOL-1: snapshot: expected a host tier: False, got True"):
        check_laws(scene(), tiny_config(FULL, SWA, MAMBA), HELD)


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
    fails(clause, words, scene(**fields))


def test_with_nothing_in_flight_nothing_is_pinned_or_kept() -> None:
    check_laws(scene(**STILL), CONFIG, HELD, is_awaited=False)
    pinned = STILL | {"below": (A_BELOW, *STILL["below"][1:])}
    kept = STILL | {"kept": KEPT, "pools": STILL["pools"] | {FULL: pool(12, *range(6, 12))}}
    for fields in (pinned, kept):
        check_laws(scene(**fields), CONFIG, HELD, is_awaited=True)
    fails("FLOW-7", "no pins of full while nothing is in flight, got 2", scene(**pinned))
    fails("FLOW-7", "slots kept for loads that have ended", scene(**kept))


@pytest.mark.parametrize(("slot", "partner", "is_right"), [(2, 4, True), (2, 6, False), (4, 4, False), (8, 4, False)])
def test_a_tombstone_may_map_to_what_a_load_writes_to(slot: int, partner: int, is_right: bool) -> None:
    mapping = dict.fromkeys(range(14), 0) | {4: 2, 5: 3} | {slot: partner, slot + 1: partner + 1}

    def partners(asked: Slots) -> Slots:
        return slots(*(mapping[number] for number in asked.tolist()))

    if is_right:
        check_partners(scene(), partners)
        return
    with pytest.raises(InvariantError, match=f"POOL-5: .*FULL slot {slot}"):
        check_partners(scene(), partners)
