"""The reading of SGLang's tree in Rust, and the comparison of both trees, without SGLang."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from hicache.engines.sglang.rust_tree import Lock, RustLocks, RustTree, printed
from hicache.engines.sglang.twins import DifferenceError, Pair, joined
from hicache.types import SHARED, EvictResult, MatchResult

WINDOW = 4
MARK = 77
KINDS = {"full": 0, "swa": 1, "mamba": 2}
TREE = {1: (None, 0), 2: (1, 4), 3: (2, 8), 4: (2, 6)}
"""By node: its parent, and its end in the whole key."""


class Core:
    """A tree that prints itself, and gives receipts as SGLang's tree in Rust does."""

    def __init__(self) -> None:
        self.nodes = dict(TREE)

    def backfill_missing_hash_values(self) -> int:
        return 0

    def pretty_print(self) -> None:
        self._print(1, 0)

    def collect_path_info(self, ends: list[int]) -> list[list[SimpleNamespace]]:
        return [self._path(node) for node in ends]

    def inc_lock_ref(self, node: int, skipped: tuple[int, ...] = ()) -> SimpleNamespace:
        return receipt(node, skipped=skipped, marks={1: MARK})

    def inc_host_lock_ref(self, node: int) -> SimpleNamespace:
        return receipt(node, host_marks={0: MARK + 1, 1: None})

    def dec_lock_ref(self, node: int, params: SimpleNamespace, skip_swa: bool = False) -> None: ...
    def dec_host_lock_ref(self, node: int, params: SimpleNamespace) -> None: ...
    def dec_swa_lock_only(self, node: int, params: SimpleNamespace) -> None: ...
    def reset(self) -> None: ...

    def _print(self, node: int, depth: int) -> None:
        parent, end = self.nodes[node]
        length = end - (self.nodes[parent][1] if parent is not None else 0)
        os.write(1, f" {'  ' * depth}[{node}] {length} full_lock={node} Full=yes Swa=no\n".encode())
        for child in [one for one, (above, _) in self.nodes.items() if above == node]:
            self._print(child, depth + 1)

    def _path(self, node: int | None) -> list[SimpleNamespace]:
        if node is None or self.nodes[node][0] is None:
            return []
        parent, end = self.nodes[node]
        assert parent is not None, f"node {node} is not the root"
        return [*self._path(parent), SimpleNamespace(path_start=self.nodes[parent][1], path_end=end)]


def receipt(
    node: int,
    *,
    skipped: tuple[int, ...] = (),
    marks: dict[int, int | None] | None = None,
    host_marks: dict[int, int | None] | None = None,
) -> SimpleNamespace:
    """A receipt with SGLang's fields."""
    return SimpleNamespace(
        node_id=node,
        skipped_lock_components=skipped,
        component_lock_uuids=marks or {},
        component_host_lock_uuids=host_marks or {},
    )


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def locks(core: Core) -> RustLocks:
    return RustLocks(core, KINDS, WINDOW)


def locked(core: Core, locks: RustLocks) -> dict[tuple[str, bool, int], int]:
    """How often each node is locked, by component and tier, without FULL on the device, which the tree shows."""
    counts = RustTree(core, KINDS, locks).counts
    return {place: count for place, count in counts.items() if count and (place[0] != "full" or place[1])}


def test_a_tree_is_read_from_what_it_prints(core: Core, locks: RustLocks) -> None:
    tree = RustTree(core, KINDS, locks)
    found = {number: (node.parent and node.parent.id, node.end) for number, node in tree.nodes.items()}
    assert found == TREE, f"expected the nodes that were printed, got {found}"
    assert tree.root.id == 1, f"expected the first node to be the root, got {tree.root.id}"


def test_another_way_to_print_a_tree_is_an_error(core: Core, locks: RustLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "pretty_print", lambda: os.write(1, b"node 1 of 4 tokens\n"))
    with pytest.raises(ValueError, match="got 'node 1 of 4 tokens'"):
        RustTree(core, KINDS, locks)


def test_what_is_printed_does_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    found = printed(lambda: os.write(1, b"below"))
    os.write(1, b"after")
    assert (found, capfd.readouterr().out) == ("below", "after"), "expected the output after the call alone"


def test_the_window_of_a_lock_ends_where_it_began_also_after_a_split(core: Core, locks: RustLocks) -> None:
    held = core.inc_lock_ref(3)
    assert locked(core, locks) == {("swa", False, 3): 1, ("mamba", False, 3): 1}, "the window is the last node"
    # The tree gives the upper part of a node a new number.
    core.nodes |= {5: (2, 6), 3: (5, 8)}
    assert locked(core, locks) == {("swa", False, 5): 1, ("swa", False, 3): 1, ("mamba", False, 3): 1}, "both parts"
    core.dec_swa_lock_only(3, held)
    assert not locked(core, locks), "expected the window and the state to be released"
    core.dec_lock_ref(3, held, skip_swa=True)
    assert not +locks.held, f"expected no lock, got {+locks.held}"


def test_locks_on_the_host_and_without_a_state_are_counted(core: Core, locks: RustLocks) -> None:
    stateless, host = core.inc_lock_ref(3, skipped=(2,)), core.inc_host_lock_ref(4)
    of_host = {("full", True, 4): 1, ("swa", True, 4): 1, ("swa", True, 2): 1, ("mamba", True, 4): 1}
    assert locked(core, locks) == {("swa", False, 3): 1, **of_host}, "expected both locks"
    core.dec_host_lock_ref(4, host)
    assert locked(core, locks) == {("swa", False, 3): 1}, "expected the lock on the device alone"
    core.dec_lock_ref(3, stateless)
    core.inc_lock_ref(4)
    core.reset()
    assert not locks.held, f"expected no lock after a reset, got {locks.held}"


def test_a_lock_on_a_node_that_is_gone_covers_nothing(core: Core, locks: RustLocks) -> None:
    tree = RustTree(core, KINDS, locks)
    found = [node.id for node in tree.covered(Lock("swa", on_host=False, node=9, mark=None))]
    assert not found, f"expected no node, got {found}"


MATCH = MatchResult(np.array([3, 4]), 1, 2, 0, {"swa": 2}, None)


def test_two_equal_answers_are_one_with_the_handles_of_both() -> None:
    other = MatchResult(np.array([3, 4]), 11, 12, 0, {"swa": 2}, None)
    found = joined("match", MATCH, other)
    assert (found.device_anchor, found.best_match) == (Pair(1, 11), Pair(2, 12)), f"got {found}"
    assert joined("lock", None, None, is_handle=True) is None, "expected no handle of two that are none"


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (MATCH, MatchResult(np.array([3, 5]), 1, 2, 0, {"swa": 2}, None), "verb.device_indices"),
        (MATCH, MatchResult(np.array([3, 4]), 1, 2, 0, {"swa": 1}, None), "verb.component_host_hit_lengths"),
        (EvictResult({"full": 1}, 1, 0), EvictResult({"full": 1}, 2, 0), "verb.victims"),
        (EvictResult({"full": 1}, 1, 0), ValueError("refused"), "verb"),
        ({(SHARED, b"a"): (0, {"full": [1]})}, {(SHARED, b"a"): (0, {"full": [2]})}, "verb"),
        ([1, 2], None, "verb"),
    ],
)
def test_a_difference_names_the_verb_and_the_field(first: object, second: object, name: str) -> None:
    with pytest.raises(DifferenceError, match=f"^{name}: the tree in Python answered"):
        joined("verb", first, second)
