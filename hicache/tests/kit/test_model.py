"""The oracle on small examples computed by hand, mostly with windows that are not a multiple of the page size."""

from __future__ import annotations

import numpy as np
import pytest

from hicache.errors import InvariantError
from hicache.testing.model import ExpectedInsert, Model
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, node, slots, snapshot
from hicache.types import SHARED, Key, Namespace, Tier


def key(*tokens: int, namespace: Namespace = SHARED) -> Key:
    return Key(np.array(tokens, dtype=np.int32), namespace)


def model(*components: str, page_size: int = 2, window: int | None = None, bigram: bool = False) -> Model:
    return Model(components=components, page_size=page_size, sliding_window_size=window, bigram=bigram)


def test_full_matches_whole_pages_of_its_namespace() -> None:
    oracle = model(FULL)
    oracle.insert(key(1, 2, 3, 4, 5))
    found = [oracle.expected_match(key(*tokens)).anchor for tokens in [(), (1,), (1, 2, 3), (1, 2, 3, 4, 5, 6), (2, 1)]]
    assert found == [0, 0, 2, 4, 0], f"KEY-1, MATCH-1: expected [0, 0, 2, 4, 0], got {found}"
    other = oracle.expected_match(key(1, 2, 3, 4, namespace=Namespace("a", None, None))).anchor
    assert other == 0, f"KEY-2: another namespace found {other} tokens"


def test_bigram_pages_close_with_the_token_after_them() -> None:
    oracle = model(FULL, bigram=True)
    inserted = oracle.insert(key(1, 2, 3, 4, 5))
    assert inserted == ExpectedInsert(0, 4, state_adopted=False), f"KEY-3: 5 tokens are 4 pairs, got {inserted}"
    found = [oracle.expected_match(key(*tokens)).anchor for tokens in [(1, 2), (1, 2, 3), (1, 2, 9), (1, 2, 3, 4, 5)]]
    assert found == [0, 2, 0, 4], f"KEY-3: the pair (2, 3) is of page 0: expected [0, 2, 0, 4], got {found}"


@pytest.mark.parametrize(("window", "expected"), [(1, 6), (2, 6), (3, 6), (4, 6), (5, 0), (100, 0)])
def test_the_run_of_window_data_must_reach_the_window(window: int, expected: int) -> None:
    oracle = model(FULL, SWA, window=window)
    oracle.insert(key(1, 2, 3, 4, 5, 6), window_start=2)
    found = oracle.expected_match(key(1, 2, 3, 4, 5, 6)).anchor
    assert found == expected, f"MATCH-3: 4 of 6 tokens live, window {window}: expected {expected}, got {found}"


def test_a_run_that_reaches_the_root_is_enough() -> None:
    oracle = model(FULL, SWA, window=100)
    oracle.insert(key(1, 2, 3, 4))
    assert oracle.expected_match(key(1, 2, 3, 4)).anchor == 4, (
        "MATCH-3: data from the root on is valid below one window"
    )


@pytest.mark.parametrize(("window_start", "accepted"), [(0, 6), (1, 6), (2, 6), (3, 6), (4, 6), (5, 0), (6, 0)])
def test_window_start_is_rounded_up_to_pages(window_start: int, accepted: int) -> None:
    oracle = model(FULL, SWA, window=2)
    inserted = oracle.insert(key(1, 2, 3, 4, 5, 6), window_start=window_start)
    assert inserted == ExpectedInsert(0, accepted, state_adopted=False), f"INS-5, INS-6: got {inserted}"
    assert bool(oracle.held[Tier.DEVICE][FULL]) == bool(accepted), (
        f"INS-5: a leaf outside the window exists: {oracle.held}"
    )


def test_a_page_longer_than_the_window_is_a_window() -> None:
    oracle = model(FULL, SWA, page_size=4, window=3)
    oracle.insert(key(*range(8)), window_start=2)
    found = [oracle.expected_match(key(*range(length))).anchor for length in (4, 8)]
    assert found == [0, 8], f"MATCH-3: only page 1 lives, and fills the window: expected [0, 8], got {found}"


def test_an_insert_over_a_tombstone_restores_its_own_pages_inside_the_window() -> None:
    oracle = model(FULL, SWA, window=2)
    oracle.insert(key(1, 2, 3, 4, 5, 6, 7, 8), window_start=6)
    restored = oracle.insert(key(1, 2, 3, 4, 5, 6, 7, 8), shared=2, window_start=0)
    assert restored == ExpectedInsert(8, 8, state_adopted=False), f"INS-4: got {restored}"
    found = [oracle.expected_match(key(*range(1, length + 1))).anchor for length in (2, 4, 6)]
    assert found == [0, 4, 6], f"INS-4: shared page 0 stays a tombstone: expected [0, 4, 6], got {found}"


def test_a_state_is_valid_only_where_it_is() -> None:
    oracle = model(FULL, MAMBA)
    inserted = oracle.insert(key(1, 2, 3, 4), state=True)
    assert inserted == ExpectedInsert(0, 4, state_adopted=True), f"INS-7: got {inserted}"
    found = [oracle.expected_match(key(*tokens)).anchor for tokens in [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)]]
    assert found == [0, 4, 4], f"MATCH-4: expected [0, 4, 4], got {found}"


def test_a_leaf_without_a_state_is_not_created() -> None:
    oracle = model(FULL, MAMBA)
    inserted = oracle.insert(key(1, 2))
    assert inserted == ExpectedInsert(0, 0, state_adopted=False), f"EVICT-6: got {inserted}"
    assert not oracle.held[Tier.DEVICE][FULL], f"EVICT-6: an unlocked leaf without a state exists: {oracle.held}"


def test_a_second_state_stays_the_callers() -> None:
    oracle = model(FULL, MAMBA)
    first, second = (oracle.insert(key(1, 2), state=True).state_adopted for _ in range(2))
    assert (first, second) == (True, False), f"INS-7: expected (True, False), got {(first, second)}"


def test_a_state_needs_window_data_at_its_page() -> None:
    oracle = model(FULL, SWA, MAMBA, window=2)
    oracle.insert(key(1, 2, 3, 4), window_start=2, state=True)
    inserted = oracle.insert(key(1, 2), shared=2, state=True)
    assert inserted == ExpectedInsert(2, 0, state_adopted=False), f"EVICT-5: no state on a tombstone, got {inserted}"


def test_sync_forgets_what_is_gone_and_refuses_what_is_new() -> None:
    oracle = model(FULL)
    oracle.insert(key(1, 2, 3, 4))
    upper = node((1, 2), {FULL: slots(2, 3)})
    assert not oracle.agrees(snapshot([upper], {})), "the cache lost page 1 and the oracle did not notice"
    assert oracle.differences(snapshot([upper], {})) == [
        f"full lacks the prefix of pages beginning [1, 3] of {SHARED}"
    ], f"got {oracle.differences(snapshot([upper], {}))}"
    oracle.sync(snapshot([upper], {}))
    assert oracle.agrees(snapshot([upper], {})), f"expected agreement, got {oracle.differences(snapshot([upper], {}))}"
    lower = node((3, 4), {FULL: slots(4, 5)}, parent=0, start=2)
    with pytest.raises(InvariantError, match=r"appeared.*\[1, 3\]|\[1, 3\].*appeared"):
        oracle.sync(snapshot([upper, lower], {}))


def test_bigram_snapshots_join_over_nodes() -> None:
    oracle = model(FULL, bigram=True)
    oracle.insert(key(1, 2, 3, 4, 5))
    upper = node((1, 2, 2, 3), {FULL: slots(2, 3)}, end=2)
    lower = node((3, 4, 4, 5), {FULL: slots(4, 5)}, parent=0, start=2, end=4)
    differences = oracle.differences(snapshot([upper, lower], {}))
    assert not differences, f"KEY-3: expected the same content, got {differences}"
