"""The oracle on two tiers, on small examples computed by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from hicache.errors import InvariantError
from hicache.testing.model import ExpectedInsert, ExpectedMatch, Model
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot, TransferView
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, below, host_tier, node, slots, snapshot
from hicache.types import SHARED, Key, Slots, TransferKind

COMPONENTS = (FULL, SWA, MAMBA)


def key(*tokens: int) -> Key:
    return Key(np.array(tokens, dtype=np.int32), SHARED)


PROMPT = key(1, 2, 3, 4, 5, 6)


def model(*components: str, window: int = 2) -> Model:
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
    oracle = model(*COMPONENTS)
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
    oracle = model(FULL, SWA, MAMBA)
    oracle.sync(chain(("fsm", "fsm"), ("", "fsm"), ("", "fsm")))
    inserted = oracle.insert(key(1, 2, 3), shared=1, window_start=2, state=True)
    assert inserted == ExpectedInsert(1, 1, state_adopted=True), f"INS-3: page 2 has no window data, got {inserted}"
    shown = chain(("fsm", "fsm"), ("f", "fsm"), ("fsm", "fsm"))
    assert oracle.agrees(shown), f"INS-3: expected no differences, got {oracle.differences(shown)}"


def test_an_insert_over_the_host_needs_no_state() -> None:
    oracle = model(FULL, MAMBA)
    oracle.sync(chain(("fm", "fm"), ("", "fm")))
    inserted = oracle.insert(key(1, 2, 3), shared=1)
    assert inserted == ExpectedInsert(1, 1, state_adopted=False), f"INS-3, INS-5: got {inserted}"
    shown = chain(("fm", "fm"), ("f", "fm"))
    assert oracle.agrees(shown), f"INS-5: page 3 has no state, and is refused: {oracle.differences(shown)}"


def test_a_window_that_is_being_loaded_is_not_restored_by_an_insert() -> None:
    oracle = model(FULL, SWA, MAMBA)
    load = TransferView(TransferKind.LOAD, {SWA: slots(9)}, {SWA: slots(2)})
    oracle.sync(chain(("fsm", "fsm"), ("f", "fsm"), ("f", "fsm"), transfers=(load,)))
    oracle.insert(key(1, 2, 3), shared=1)
    shown = chain(("fsm", "fsm"), ("f", "fsm"), ("fs", "fsm"))
    assert oracle.agrees(shown), f"expected page 2 to be loading and page 3 to be restored: {oracle.differences(shown)}"


def test_pages_move_between_the_tiers_and_come_from_nowhere_else() -> None:
    oracle = model(FULL, SWA, MAMBA)
    oracle.sync(chain(("fsm", ""), ("fsm", "")))
    for shown in (
        chain(("fsm", "fsm"), ("fsm", "fsm")),
        chain(("", "fsm"), ("", "fsm")),
        chain(("fsm", ""), ("fs", "f")),
    ):
        oracle.sync(shown)
    for shown in (chain(("fsm", ""), ("fsm", "")), chain(("fsm", ""), ("fs", "fm"))):
        with pytest.raises(InvariantError, match=r"mamba: .*\[1, 2\].* appeared on the (device|host)"):
            oracle.sync(shown)


def test_what_is_lacking_and_what_is_gone() -> None:
    oracle = model(FULL, MAMBA)
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
