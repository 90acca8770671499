"""RecordedGroup over a store, as between processes: it names a rank that diverges before any rank enters the call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from torch.distributed import FileStore  # type: ignore[attr-defined]

from hicache.errors import RankError
from hicache.parallel.group import Group
from hicache.testing.ranks.calls import ComparedCalls, RecordedGroup, StoreSideChannel
from hicache.testing.ranks.world import Mesh, local_worlds
from hicache.tests.ranks.divergences import DIVERGENCES, Divergence, usual

PATIENCE_S = 60.0
"""Until a test that hangs fails."""


class Entered:
    """A group that records which calls were entered, and passes them on."""

    def __init__(self, inner: Group, entered: list[str]) -> None:
        self._inner = inner
        self._entered = entered

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if callable(found):
            self._entered.append(name)
        return found


class CountedSideChannel(StoreSideChannel):
    """Notes each call for which it waited to the deadline. `late`: of all ranks."""

    def __init__(self, store: FileStore, ranks: int, timeout_s: float, late: list[str]) -> None:
        super().__init__(store, "tp", "tp", ranks, timeout_s)
        self._late = late

    def exchange(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        said, left = super().exchange(rank, number, text)
        if len(said.keys() | left) < self.size:
            self._late.append(f"rank {rank}, call {number}")
        return said, left


@dataclass(frozen=True, slots=True)
class Recorded:
    """What happened on all ranks: calls that were entered, notes of calls, and calls waited for to the deadline."""

    entered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


def recorded(path: Path, ranks: int, record: Recorded, timeout_s: float = PATIENCE_S) -> list[RecordedGroup]:
    """A recorded group for each of some ranks, each with its own end of one store."""
    worlds = local_worlds(Mesh(ranks, 1, 1), PATIENCE_S)
    groups = []
    for rank, world in enumerate(worlds):
        store = FileStore(str(path / "store"), ranks)
        compared_calls = ComparedCalls(
            rank, CountedSideChannel(store, ranks, timeout_s, record.late), record.notes.append
        )
        inner: Group = Entered(world.groups(dict)["tp"], record.entered)  # type: ignore[assignment]
        groups.append(RecordedGroup(inner, compared_calls))
    return groups


def message(group: RecordedGroup, divergence: Divergence | None) -> str:
    """The error message on a rank that makes this divergence, or makes none."""
    try:
        (divergence.act if divergence else usual)(group)
    except RankError as error:
        return str(error)
    except ZeroDivisionError as error:
        group.leave(f"had raised ZeroDivisionError: {error}")
        return "its own error"
    group.leave("had ended")
    return "nothing"


@pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES)
def test_a_rank_that_diverges_is_named_and_the_call_is_not_entered(tmp_path: Path, divergence: Divergence) -> None:
    record = Recorded()
    groups = recorded(tmp_path, 3, record)
    divergences = [None, None, divergence]
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(message, groups, divergences))
    expected = divergence.message.format(last=2)
    if divergence is DIVERGENCES["stays-away"]:
        expected = "rank 2 of tp skipped call 2 (MIN progress): it had ended"
    assert results[:2] == [expected] * 2, f"RANK-2: expected {expected!r} on both ranks, got {results}"
    assert record.entered == ["reduce"] * 3, f"RANK-2: expected one entered call, got {record.entered}"
    assert record.late == [], f"RANK-8: expected an error without a wait to the deadline, got {record.late}"


def test_matching_calls_are_passed_on_with_their_values(tmp_path: Path) -> None:
    record = Recorded()
    groups = recorded(tmp_path, 2, record)
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(message, groups, [None, None]))
    assert results == ["nothing"] * 2, f"RANK-2: expected no error where all calls match, got {results}"
    assert groups[0].calls == groups[1].calls, f"expected the same calls, got {groups[0].calls} and {groups[1].calls}"
    count = record.notes.count("call 2 of tp (MIN progress)")
    assert count == 2, f"expected a note of each call by each rank, got {record.notes}"
    assert (groups[1].name, groups[1].rank, groups[1].size) == ("tp", 1, 2), "expected the name, rank and size inside"


def test_a_silent_rank_is_named_within_the_deadline(tmp_path: Path) -> None:
    record = Recorded()
    groups = recorded(tmp_path, 2, record, timeout_s=0.5)
    assert message(groups[0], None) == "rank 1 of tp did not reach call 1 (MIN capacities) within 0.5 s", "RANK-8"
    late = message(groups[1], None)
    assert late == "rank 1 of tp did not reach call 1 (MIN capacities) within 0.5 s", f"RANK-8: rank 1 got {late}"
    assert record.late == ["rank 0, call 1"], f"RANK-8: expected one wait to the deadline, by rank 0, got {record.late}"
