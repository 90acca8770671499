"""Every law of the storage tier fails on a snapshot, or a store, that violates it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from hicache.errors import InvariantError
from hicache.testing.laws import check_laws
from hicache.testing.laws.storage import Keys, check_kept, check_no_fetch, check_order
from hicache.testing.snapshot import FetchView, Snapshot, StorageView
from hicache.testing.storage_configurations import with_storage
from hicache.tests.kit.host_scene import CONFIG, HELD, HOST_POOLS, STILL, scene
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, pool, slots
from hicache.types import Pool

STORED = with_storage(CONFIG)
NOTHING = frozenset[str]()
MARKS = (frozenset({FULL, SWA}), NOTHING, frozenset({FULL, SWA, MAMBA}))
"""The marks of A, of B below A, and of C below A, the nodes of the scene."""

FETCH = FetchView({FULL: slots(8, 9)})
KEYS: dict[int, Keys] = {
    0: {Pool.KV: ("a",), Pool.INDEXER: ("ia",), Pool.MAMBA: ("ma",)},
    1: {Pool.KV: ("a", "b"), Pool.INDEXER: ("ia", "ib"), Pool.MAMBA: ("ma", "mb")},
    2: {Pool.KV: ("a", "c"), Pool.INDEXER: ("ia", "ic"), Pool.MAMBA: ("ma", "mc")},
}


def shown(marks: tuple[frozenset[str], ...] = MARKS, *fetches: FetchView, **more: object) -> Snapshot:
    """The scene with nothing in flight, and with marks of stored nodes."""
    return replace(scene(**{**STILL, **more}), storage=StorageView(marks, fetches))


def check(snapshot: Snapshot) -> None:
    check_laws(snapshot, STORED, HELD, is_awaited=False)


def test_a_scene_that_breaks_no_law_passes() -> None:
    check(shown())
    check(shown(MARKS, FETCH, host_pools=STILL["host_pools"] | {FULL: pool(12, 10, 11, 12, 13)}))
    check(shown((NOTHING, NOTHING, NOTHING)))


BROKEN: dict[str, tuple[str, str, Callable[[], Snapshot]]] = {
    "a prefetch into free slots": ("POOL-1", "a prefetch, got the free list as well", lambda: shown(MARKS, FETCH)),
    "a prefetch into a node's slots": (
        "POOL-1",
        "the tree",
        lambda: shown(MARKS, FetchView({FULL: slots(2, 3)})),
    ),
    "a prefetch of half a page": (
        "POOL-4",
        "one owner",
        lambda: shown(
            MARKS, FetchView({FULL: slots(8)}), host_pools=STILL["host_pools"] | {FULL: pool(12, *range(9, 14))}
        ),
    ),
    "a leak of a prefetch": (
        "POOL-1",
        "12 slots with an owner",
        lambda: shown(host_pools=STILL["host_pools"] | {FULL: HOST_POOLS[FULL]} | {SWA: pool(12, 4, 5)}),
    ),
    "marks for some nodes": ("FLOW-9", "3 nodes, got 2", lambda: shown(MARKS[:2])),
    "a mark of no component": ("FLOW-9", "components", lambda: shown((frozenset({"x"}), NOTHING, NOTHING))),
    "a mark without FULL": (
        "FLOW-9",
        "FULL stored with the rest",
        lambda: shown((frozenset({SWA}), NOTHING, NOTHING)),
    ),
    "a child before its parent": (
        "FLOW-9",
        "a parent that is stored",
        lambda: shown((NOTHING, NOTHING, frozenset({FULL}))),
    ),
    "no view of storage": ("POOL-1", "storage: True", lambda: scene(**STILL)),
}


@pytest.mark.parametrize(("clause", "words", "broken"), BROKEN.values(), ids=BROKEN)
def test_a_broken_law_is_named(clause: str, words: str, broken: Callable[[], Snapshot]) -> None:
    with pytest.raises(InvariantError, match=rf"^{clause}: .*{re.escape(words)}"):
        check(broken())


def test_slots_and_pins_without_a_waiting_request_are_found() -> None:
    check_no_fetch(shown())
    with pytest.raises(InvariantError, match=r"^FETCH-8"):
        check_no_fetch(shown(MARKS, FETCH))
    pinned = replace(scene(), storage=StorageView(MARKS, ()))
    with pytest.raises(InvariantError, match=r"^FLOW-7: .*node 2"):
        check_no_fetch(pinned)


def test_a_mark_needs_the_objects_of_the_node_itself() -> None:
    there = {"a", "ia", "c", "ic", "mc"}
    check_kept(shown(), KEYS.__getitem__, there.__contains__)
    for lost in ("a", "ia", "c", "ic", "mc"):
        with pytest.raises(InvariantError, match=f"^FETCH-9: .*{lost}"):
            check_kept(shown(), KEYS.__getitem__, (there - {lost}).__contains__)


def test_storage_has_no_gap_and_no_kv_without_its_sidecar() -> None:
    check_order(shown(), KEYS.__getitem__, {"a", "ia", "ic", "mb"}.__contains__)
    with pytest.raises(InvariantError, match=r"^FLOW-9: .*no gap"):
        check_order(shown(), KEYS.__getitem__, {"b", "ib", "ia"}.__contains__)
    with pytest.raises(InvariantError, match=r"^FLOW-9: .*indexer"):
        check_order(shown(), KEYS.__getitem__, {"a"}.__contains__)
