"""The collectives of ranks, recorded: results when all make the same calls, and the rank named that does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]

from hicache.errors import InvariantError, RankError
from hicache.parallel.group import Group, Reduction
from hicache.testing.ranks.calls import ComparedCalls, RecordedGroup, StoreSideChannel
from hicache.testing.ranks.interposer import VERBS, DeviceRecorder, Interposer
from hicache.testing.ranks.world import Mesh, Team, local_worlds
from hicache.tests.kit.ranks.divergences import DIVERGENCES, Divergence, usual

# LocalGroup, between threads.

OpenTeam = Callable[..., Team]

TIMEOUT_S = 0.5
"""Until a rank is missed that is meant not to come."""

PATIENCE_S = 60.0
"""Until a test that hangs fails."""


@pytest.fixture
def open_team() -> Iterator[OpenTeam]:
    opened: list[Team] = []

    def open_one(mesh: Mesh, timeout_s: float = PATIENCE_S) -> Team:
        opened.append(Team(mesh, timeout_s))
        return opened[-1]

    yield open_one
    for team in opened:
        team.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each wait of a rank for the others, from now on: whether what it waited for came before the deadline."""
    waits, wait_for = list[bool](), threading.Condition.wait_for

    def note(condition: threading.Condition, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        waits.append(bool(wait_for(condition, predicate, timeout)))
        return waits[-1]

    monkeypatch.setattr(threading.Condition, "wait_for", note)
    return waits


def group_of(team: Team, rank: int, axis: str = "tp") -> Group:
    return team.worlds[rank].groups(dict)[axis]


def errors_of(team: Team, acts: Callable[[int], Callable[[Group], None]]) -> list[RankError | None]:
    """The error of each rank, or None."""

    def guarded(rank: int) -> RankError | None:
        try:
            acts(rank)(group_of(team, rank))
        except RankError as error:
            return error
        except ZeroDivisionError as error:
            team.worlds[rank].leave(f"had raised ZeroDivisionError: {error}")
        return None

    return team.each(guarded)


@pytest.mark.parametrize(
    ("reduction", "expected"), [(Reduction.MIN, [0, -7]), (Reduction.MAX, [3, 2])], ids=["min", "max"]
)
def test_a_reduction_is_elementwise(open_team: OpenTeam, reduction: Reduction, expected: list[int]) -> None:
    team = open_team(Mesh(4, 1, 1))
    given = [[0, 2], [1, -7], [2, 0], [3, 1]]
    results = team.each(lambda rank: group_of(team, rank).reduce(given[rank], reduction, "numbers"))
    assert results == [expected] * 4, f"RANK-1: {reduction.value} of {given}: expected {expected}, got {results}"


def test_a_broadcast_returns_the_values_of_the_first_rank(open_team: OpenTeam) -> None:
    team = open_team(Mesh(3, 1, 1))
    results = team.each(lambda rank: group_of(team, rank).broadcast([rank, 10 * rank + 5], "values"))
    assert results == [[0, 5]] * 3, f"expected the values of rank 0, [0, 5], on all ranks, got {results}"


def test_a_barrier_returns_on_no_rank_before_all_have_entered(open_team: OpenTeam) -> None:
    team, order = open_team(Mesh(2, 1, 1)), list[str]()

    def act(rank: int) -> None:
        if rank:
            time.sleep(0.02)
            order.append("rank 1 enters")
        group_of(team, rank).barrier("all")
        order.append("returned")

    team.each(act)
    assert order == ["rank 1 enters", "returned", "returned"], f"expected no return before rank 1 entered, got {order}"


@pytest.mark.parametrize(("axis", "step"), [("tp", 1), ("cp", 2), ("pp", 4)])
def test_a_group_of_a_mesh_has_the_ranks_of_its_axis_alone(open_team: OpenTeam, axis: str, step: int) -> None:
    team = open_team(Mesh(2, 2, 2))
    results = team.each(lambda rank: group_of(team, rank, axis).reduce([rank], Reduction.MAX, "rank"))
    expected = [[rank | step] for rank in range(8)]
    assert results == expected, f"RANK-4: the greatest rank along {axis}: expected {expected}, got {results}"


def test_a_group_records_its_calls(open_team: OpenTeam) -> None:
    team = open_team(Mesh(2, 1, 1))
    team.each(lambda rank: usual(group_of(team, rank)))
    calls = [(str(call), call.count) for call in team.worlds[1].calls["tp"]]
    expected = [("MIN capacities", 3), ("MIN progress", 2), ("barrier end", 0)]
    assert calls == expected, f"expected the calls in their order, {expected}, got {calls}"


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES)
def test_each_rank_names_the_one_that_diverges(
    open_team: OpenTeam, waits: list[bool], divergence: Divergence, size: int
) -> None:
    is_silent = divergence is DIVERGENCES["stays-away"]
    team = open_team(Mesh(size, 1, 1), TIMEOUT_S if is_silent else PATIENCE_S)
    last = size - 1
    errors = errors_of(team, lambda rank: divergence.act if rank == last else usual)
    expected = divergence.message.format(last=last)
    raised = errors[:last]
    assert all(str(error) == expected for error in raised), f"RANK-8: expected {expected!r}, got {raised}"
    assert all(error and (error.group, error.ranks) == ("tp", (last,)) for error in raised), (
        f"RANK-8: named in {raised}"
    )
    most = last if is_silent else 0
    assert waits.count(False) <= most, (
        f"RANK-8: expected {most} waits to the deadline at most, got {waits.count(False)}"
    )


def test_a_rank_that_is_late_for_a_failed_call_raises_the_same_error(open_team: OpenTeam) -> None:
    team, has_failed = open_team(Mesh(2, 1, 1), TIMEOUT_S), threading.Event()

    def act(rank: int) -> str:
        if rank:
            assert has_failed.wait(PATIENCE_S), f"rank 0 waits longer than {PATIENCE_S:g} s"
        try:
            group_of(team, rank).barrier("start")
        except RankError as error:
            has_failed.set()
            return str(error)
        return "returned"

    results = team.each(act)
    expected = "rank 1 of tp did not reach call 1 (barrier start) within 0.5 s"
    assert results == [expected] * 2, f"RANK-8: expected {expected!r} on both ranks, got {results}"


def test_a_group_that_failed_refuses_each_further_call_with_the_same_error(
    open_team: OpenTeam, waits: list[bool]
) -> None:
    team = open_team(Mesh(2, 1, 1))
    errors_of(team, lambda rank: DIVERGENCES["skips"].act if rank else usual)
    waits.clear()
    errors = [str(error) for error in errors_of(team, lambda _: usual)]
    expected = DIVERGENCES["skips"].message.format(last=1)
    assert errors == [expected] * 2, f"RANK-8: expected {expected!r} again on both ranks, got {errors}"
    assert waits == [], f"RANK-8: expected to be refused without another wait, got {len(waits)}"


def test_a_team_raises_the_first_error_and_not_its_consequences(open_team: OpenTeam) -> None:
    team = open_team(Mesh(2, 1, 1))
    with pytest.raises(ZeroDivisionError, match="a defect of rank 1"):
        team.each(lambda rank: (DIVERGENCES["raises"].act if rank else usual)(group_of(team, rank)))


def test_a_rank_that_gathers_while_another_is_in_a_collective_is_named_at_once(
    open_team: OpenTeam, waits: list[bool]
) -> None:
    team = open_team(Mesh(2, 1, 1))

    def act(rank: int) -> None:
        if rank:
            team.worlds[rank].gather("trees", "a tree")
        group_of(team, rank).barrier("all")

    with pytest.raises(RankError) as raised:
        team.each(act)
    expected = "rank 1 of tp skipped call 1 (barrier all): it called gather trees instead"
    assert str(raised.value) == expected, f"RANK-2: expected {expected!r}, got {raised.value}"
    assert all(waits), f"RANK-8: expected the error before the deadline, got {waits.count(False)} waits to its end"


def test_ranks_exchange_texts_outside_of_their_collectives(open_team: OpenTeam) -> None:
    team = open_team(Mesh(2, 1, 2))
    results = team.each(lambda rank: team.worlds[rank].gather("trees", f"tree of rank {rank}"))
    expected = [[f"tree of rank {rank}" for rank in range(4)]] * 4
    assert results == expected, f"expected the text of each rank, by rank: {expected[0]}, got {results}"
    assert not any(team.worlds[0].calls.values()), f"expected no collective for it, got {team.worlds[0].calls}"


# RecordedGroup over a store, as between processes: it names who diverges before any rank enters the call.


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


# DeviceRecorder and Interposer: they record the devices of tensors, and refuse a tensor on the wrong device.


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the collectives that were entered. Each is replaced by a function that does nothing."""
    verbs: list[str] = []

    def replace(verb: str) -> None:
        monkeypatch.setattr(distributed, verb, wraps(getattr(distributed, verb))(lambda *_, **__: verbs.append(verb)))

    for verb in (*VERBS, "barrier"):
        replace(verb)
    return verbs


def nothing_compared(*_: object) -> ComparedCalls:
    raise AssertionError("a tensor on another device is refused before it is compared")


def test_every_tensor_is_seen_also_one_in_a_list(entered: list[str]) -> None:
    recorder = DeviceRecorder()
    recorder.install()
    distributed.all_reduce(torch.ones(1))
    assert recorder.seen == {"cpu"}, f"RANK-3: expected to see the device of the tensor, got {recorder.seen}"
    with pytest.raises(InvariantError, match="RANK-3: all_gather: expected a tensor on the device of the group, got"):
        distributed.all_gather([torch.ones(1, device="meta")], torch.ones(1))
    assert recorder.seen == {"meta", "cpu"}, f"RANK-3: expected the tensors of the list, too, got {recorder.seen}"
    assert entered == ["all_reduce"], f"expected a tensor without data not to be passed on, got {entered}"


def test_a_tensor_on_another_device_is_refused_before_the_collective(entered: list[str]) -> None:
    Interposer(nothing_compared, "meta").install()
    with pytest.raises(
        InvariantError, match=r"RANK-3: MIN test_a_tensor\w+: expected a tensor on meta, got one on cpu"
    ):
        distributed.all_reduce(torch.ones(1), distributed.ReduceOp.MIN, None)
    assert not entered, f"RANK-3: expected the collective not to be entered, got {entered}"
