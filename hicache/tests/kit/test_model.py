"""The oracles on small examples computed by hand, on one tier and on two."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from hicache.config import Recency
from hicache.errors import InvariantError
from hicache.testing.models.tree import ExpectedInsert, ExpectedMatch, Model
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot, TransferView
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, below, host_tier, node, pool, slots, snapshot, tiny_config
from hicache.types import SHARED, Key, Namespace, Slots, Tier, TransferKind
from properties.eviction_oracle import require_victims
from properties.uses import UseLog


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
    with pytest.raises(InvariantError, match=r"EVICT-1: full on the device: .*\[1, 3\]"):
        oracle.sync(snapshot([upper, lower], {}))


def test_bigram_snapshots_join_over_nodes() -> None:
    oracle = model(FULL, bigram=True)
    oracle.insert(key(1, 2, 3, 4, 5))
    upper = node((1, 2, 2, 3), {FULL: slots(2, 3)}, end=2)
    lower = node((3, 4, 4, 5), {FULL: slots(4, 5)}, parent=0, start=2, end=4)
    differences = oracle.differences(snapshot([upper, lower], {}))
    assert not differences, f"KEY-3: expected the same content, got {differences}"


COMPONENTS = (FULL, SWA, MAMBA)


PROMPT = key(1, 2, 3, 4, 5, 6)


def model_of_prompt(*components: str, window: int = 2) -> Model:
    """An oracle with pages of one token, after an insert of the whole prompt with a state after each token."""
    oracle = Model(components=components, page_size=1, sliding_window_size=window, bigram=False)
    for length in range(1, 7):
        oracle.insert(Key(PROMPT.tokens[:length], SHARED), shared=length - 1, state=True)
    return oracle


def held(components: str, tier: int) -> dict[str, Slots | None]:
    """Slots of the components with these first letters."""
    return {name: slots(tier) if name[0] in components else None for name in COMPONENTS}


def chain(*pages: tuple[str, str], transfers: tuple[TransferView, ...] = ()) -> Snapshot:
    """The prompt as a chain of nodes of one token: the components of each on the device, and on the host."""
    nodes: list[NodeView] = []
    views: list[HostNodeView] = []
    for number, (device, host) in enumerate(pages):
        nodes.append(node((number + 1,), held(device, number + 1), parent=number - 1, start=number))
        views.append(below(held(host, number + 1)))
    return snapshot(nodes, {}, host_tier(views, {}, *transfers))


def hits(full: int, swa: int, mamba: int) -> Mapping[str, int]:
    return {FULL: full, SWA: swa, MAMBA: mamba}


MATCHES = {
    "all on the device": ([("fsm", "")] * 6, ExpectedMatch(6, 6, hits(0, 0, 0))),
    "all on both": ([("fsm", "fsm")] * 6, ExpectedMatch(6, 6, hits(0, 0, 0))),
    "all on the host": ([("", "fsm")] * 6, ExpectedMatch(0, 6, hits(6, 2, 1))),
    "the end on the host": ([("fsm", "fsm")] * 4 + [("", "fsm")] * 2, ExpectedMatch(4, 6, hits(2, 2, 1))),
    "one page of the window on each": ([("fsm", "")] * 5 + [("", "fsm")], ExpectedMatch(5, 6, hits(1, 1, 1))),
    "a state on the host alone": ([("fsm", "fsm")] * 5 + [("fs", "fsm")], ExpectedMatch(5, 6, hits(0, 0, 1))),
    "a window on the host alone": (
        [("fsm", "fsm")] * 4 + [("f", "fs"), ("fsm", "fs")],
        ExpectedMatch(4, 6, hits(0, 1, 0)),
    ),
    "a tombstone before the window": (
        [("fsm", "f"), ("f", "f"), ("f", "f"), ("f", "f"), ("", "fs"), ("", "fsm")],
        ExpectedMatch(1, 6, hits(2, 2, 1)),
    ),
    "a tombstone in the window": (
        [("fsm", "f"), ("", "fsm"), ("", "f"), ("", "fsm")],
        ExpectedMatch(1, 2, hits(1, 1, 1)),
    ),
    "no state where the window is": ([("fsm", "fs"), ("", "fs"), ("", "fs")], ExpectedMatch(1, 1, hits(0, 0, 0))),
    "a run of window data over both tiers": (
        [("f", "f"), ("f", "f"), ("f", "f"), ("fs", "f"), ("", "fsm")],
        ExpectedMatch(0, 5, hits(1, 1, 1)),
    ),
    "nothing": ([], ExpectedMatch(0, 0, hits(0, 0, 0))),
}


@pytest.mark.parametrize(("pages", "expected"), MATCHES.values(), ids=MATCHES)
def test_a_match_counts_the_tiers_apart_and_together(pages: list[tuple[str, str]], expected: ExpectedMatch) -> None:
    oracle = model_of_prompt(*COMPONENTS)
    oracle.sync(chain(*pages))
    found = oracle.expected_match(PROMPT)
    assert found == expected, f"MATCH-5, MATCH-12: expected {expected}, got {found}"


def test_host_hits_count_tokens_of_whole_pages() -> None:
    oracle = Model(components=(FULL, SWA), page_size=2, sliding_window_size=3, bigram=False)
    oracle.insert(key(1, 2, 3, 4, 5, 6))
    views = [below({FULL: slots(2, 3), SWA: slots(2, 3)})]
    upper = node((1, 2), {FULL: slots(2, 3), SWA: slots(2, 3)})
    lower = node((3, 4, 5, 6), {FULL: None, SWA: None}, parent=0, start=2)
    views.append(below({FULL: slots(4, 5, 6, 7), SWA: slots(4, 5, 6, 7)}))
    oracle.sync(snapshot([upper, lower], {}, host_tier(views, {})))
    found = oracle.expected_match(key(1, 2, 3, 4, 5, 6))
    expected = ExpectedMatch(2, 6, {FULL: 4, SWA: 4})
    assert found == expected, f"MATCH-12: a window of 3 tokens needs two pages: expected {expected}, got {found}"


def test_an_insert_over_the_host_takes_fresh_slots_and_leaves_the_copy() -> None:
    oracle = model_of_prompt(FULL, SWA, MAMBA)
    oracle.sync(chain(("fsm", "fsm"), ("", "fsm"), ("", "fsm")))
    inserted = oracle.insert(key(1, 2, 3), shared=1, window_start=2, state=True)
    assert inserted == ExpectedInsert(1, 1, state_adopted=True), f"INS-3: page 2 has no window data, got {inserted}"
    shown = chain(("fsm", "fsm"), ("f", "fsm"), ("fsm", "fsm"))
    assert oracle.agrees(shown), f"INS-3: expected no differences, got {oracle.differences(shown)}"


def test_an_insert_over_the_host_needs_no_state() -> None:
    oracle = model_of_prompt(FULL, MAMBA)
    oracle.sync(chain(("fm", "fm"), ("", "fm")))
    inserted = oracle.insert(key(1, 2, 3), shared=1)
    assert inserted == ExpectedInsert(1, 1, state_adopted=False), f"INS-3, INS-5: got {inserted}"
    shown = chain(("fm", "fm"), ("f", "fm"))
    assert oracle.agrees(shown), f"INS-5: page 3 has no state, and is refused: {oracle.differences(shown)}"


def test_a_window_that_is_being_loaded_is_not_restored_by_an_insert() -> None:
    oracle = model_of_prompt(FULL, SWA, MAMBA)
    load = TransferView(TransferKind.LOAD, {SWA: slots(9)}, {SWA: slots(2)})
    oracle.sync(chain(("fsm", "fsm"), ("f", "fsm"), ("f", "fsm"), transfers=(load,)))
    oracle.insert(key(1, 2, 3), shared=1)
    shown = chain(("fsm", "fsm"), ("f", "fsm"), ("fs", "fsm"))
    assert oracle.agrees(shown), f"expected page 2 to be loading and page 3 to be restored: {oracle.differences(shown)}"


def test_pages_move_between_the_tiers_and_come_from_nowhere_else() -> None:
    oracle = model_of_prompt(FULL, SWA, MAMBA)
    oracle.sync(chain(("fsm", ""), ("fsm", "")))
    for shown in (
        chain(("fsm", "fsm"), ("fsm", "fsm")),
        chain(("", "fsm"), ("", "fsm")),
        chain(("fsm", ""), ("fs", "f")),
    ):
        oracle.sync(shown)
    for shown in (chain(("fsm", ""), ("fsm", "")), chain(("fsm", ""), ("fs", "fm"))):
        with pytest.raises(InvariantError, match=r"EVICT-1: mamba on the (device|host): .*\[1, 2\]"):
            oracle.sync(shown)


def test_stored_pages_come_to_the_host_alone() -> None:
    oracle = Model(components=(FULL,), page_size=1, sliding_window_size=None, bigram=False)
    oracle.announce(key(1), {FULL: [True]})
    with pytest.raises(InvariantError, match="EVICT-1: full on the device"):
        oracle.sync(chain(("f", "")))
    oracle.sync(chain(("", "f")))


def test_what_is_lacking_and_what_is_gone() -> None:
    oracle = model_of_prompt(FULL, MAMBA)
    oracle.sync(chain(("fm", "fm"), ("fm", "fm"), ("fm", "")))
    shown = chain(("fm", "fm"), ("f", "fm"))
    lacking, gone = oracle.lacking(shown, key(1, 2)), oracle.gone(shown)
    assert lacking == [f"mamba lacks the prefix of pages beginning [1, 2] of {SHARED}"], f"got {lacking}"
    prefix = f"the prefix of pages beginning [1, 2, 3] of {SHARED}"
    assert gone == [f"full lost {prefix}", f"mamba lost {prefix}"], f"the state of page 2 is on the host, got {gone}"
    differences = oracle.differences(chain(("fm", "f"), ("fm", "fm"), ("fm", "f")))
    expected = [
        f"full on the host holds {prefix} and should not",
        f"mamba on the host lacks the prefix of pages beginning [1] of {SHARED}",
    ]
    assert differences == expected, f"expected {expected}, got {differences}"


def test_an_eviction_takes_the_least_recently_used_leaf() -> None:
    first, second = (node((token,), {FULL: slots(token)}) for token in (1, 2))
    before, one_left = snapshot([first, second], {FULL: pool(2)}), {FULL: pool(2, 1)}
    uses = UseLog(tiny_config(FULL, page_size=1), Recency.USED)
    for one in (first, second):
        uses.matched(SHARED, one.segment, before, is_hit=True)
    require_victims(uses, before, snapshot([second], one_left), FULL, 1)
    with pytest.raises(AssertionError, match=r"^EVICT-2: 1 slots of full on the device"):
        require_victims(uses, before, snapshot([first], one_left), FULL, 1)
