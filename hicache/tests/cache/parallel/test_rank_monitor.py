"""RankMonitor: the error names the ranks without an answer in time and no other; every rank raises the same error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hicache.clock import VirtualClock
from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.mesh import places, topology_of
from hicache.parallel.rank_monitor import Call, DivergedError, RankMonitor

DEADLINE_S = 2.0
BOUND_S = 1.5 * DEADLINE_S + 0.1
CAUSE = TimeoutError("it has not ended")
TP_4 = topology_of(0, tp_size=4, cp_size=1, pp_size=1, dp_size=1)
TP_2_CP_2 = topology_of(0, tp_size=2, cp_size=2, pp_size=1, dp_size=1)
TP_2_DP_2 = topology_of(0, tp_size=2, cp_size=1, pp_size=1, dp_size=2)


class DictStore(dict[str, str]):
    """A RankStore in memory."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        if self.setdefault(key, expected_value or desired_value) == expected_value:
            self[key] = desired_value
        return self.get(key)


class DeadStore(DictStore):
    """A RankStore whose server has died."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("connection reset")


class World:
    """The monitors of a mesh's ranks, on one store and one clock. `at`: by second, what other ranks do then."""

    def __init__(self, mesh: Topology, store: DictStore) -> None:
        self.clock = VirtualClock()
        self.at: dict[float, Callable[[], object]] = {}
        self.ranks = [RankMonitor(store, place, DEADLINE_S, self.clock, self._pause) for place in places(mesh)]

    def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for second in [second for second in self.at if second <= self.clock.now()]:
            self.at.pop(second)()

    def answer(self, rank: int, group: str = "tp") -> None:
        """Let a rank that waits in a call see the alarm and answer."""
        self.ranks[rank]._answer(Call(group, 7, "MIN progress", self.clock.now(), 9, 2), has_diverged=False)

    def fail(self, rank: int, group: str = "tp") -> RankError:
        """The verdict of a rank whose call begins now and fails at once."""
        return self.ranks[rank].verdict(self.ranks[rank].begin(group, 7, "MIN progress", 2), CAUSE)


@pytest.fixture
def world() -> World:
    """Four ranks of tp."""
    return World(TP_4, DictStore())


def test_a_rank_that_does_not_answer_is_named(world: World) -> None:
    world.at = {0.1: lambda: world.answer(0), 0.2: lambda: world.answer(3)}
    error = world.fail(2)
    assert error.ranks == (1,), f"RANK-8: only rank 1 did not answer, the error names {error.ranks}"
    assert str(error) == "rank 1 of tp did not reach call 7 (MIN progress) within 2 s (world rank 1)", str(error)
    assert world.clock.now() <= BOUND_S, f"RANK-8: it took {world.clock.now():.2f} s, expected at most {BOUND_S} s"


def test_two_ranks_that_do_not_answer_are_both_named(world: World) -> None:
    world.at = {0.1: lambda: world.answer(0)}
    error = world.fail(2)
    assert error.ranks == (1, 3), f"RANK-8: ranks 1 and 3 did not answer, the error names {error.ranks}"
    assert "ranks 1, 3 of tp did not reach" in str(error), str(error)


def test_a_rank_that_calls_by_the_deadline_and_answers_after_it_is_not_named(world: World) -> None:
    late = DEADLINE_S + 2 * world.ranks[0].poll_s
    world.at = {0.1: lambda: world.answer(0), late: lambda: world.answer(3)}
    error = world.fail(2)
    assert error.ranks == (1,), f"RANK-8: rank 3 saw the alarm with its next poll, the error names {error.ranks}"


def test_a_rank_that_fails_long_after_its_deadline_still_gives_the_others_time_to_answer(world: World) -> None:
    call = world.ranks[2].begin("tp", 7, "MIN progress", 2)
    world.clock.advance(10 * DEADLINE_S)
    world.at = {world.clock.now() + rank / 10: lambda rank=rank: world.answer(rank) for rank in (0, 3)}  # type: ignore[misc]
    error = world.ranks[2].verdict(call, CAUSE)
    assert error.ranks == (1,), f"RANK-8: ranks 0 and 3 answered after the alarm, the error names {error.ranks}"


def test_every_rank_raises_the_same_error_also_the_rank_that_it_names(world: World) -> None:
    errors = [world.fail(rank) for rank in (2, 1, 0)]
    assert len({str(error) for error in errors}) == 1, f"RANK-8: the ranks raise {[str(error) for error in errors]}"
    named = {error.ranks for error in errors}
    assert named == {(0, 1, 3)}, f"expected ranks that call after the verdict to raise it, the errors name {named}"
    now_s = world.clock.now()
    assert now_s <= BOUND_S, f"expected ranks 1 and 0 not to wait, at most {BOUND_S} s in all, it took {now_s:.2f} s"


def test_after_one_failed_call_every_later_call_raises_the_same_error(world: World) -> None:
    error = world.fail(2)
    for group in ("tp", "cp"):
        with pytest.raises(RankError) as again:
            world.ranks[2].begin(group, 8, "MAX ended", 2)
        found = (str(again.value), again.value.group, again.value.ranks)
        assert found == (str(error), error.group, error.ranks), f"RANK-8: expected {error}, got {again.value}"


def test_a_wait_ends_at_the_deadline_or_at_an_alarm(world: World) -> None:
    call = world.ranks[0].begin("tp", 7, "MIN progress", 2)
    world.clock.advance(0.9 * DEADLINE_S)
    assert not world.ranks[0].must_give_up(call), "RANK-8: the deadline of rank 0 has not passed, yet it gives up"
    world.clock.advance(0.1 * DEADLINE_S)
    assert world.ranks[0].must_give_up(call), "RANK-8: the deadline of rank 0 has passed, yet it waits"
    other = world.ranks[1].begin("tp", 7, "MIN progress", 2)
    assert not world.ranks[1].must_give_up(other), "the deadline of rank 1 has just begun, yet it gives up"
    world.fail(3)
    assert world.ranks[1].must_give_up(other), "RANK-8: there is an alarm, yet rank 1 waits"


def test_a_silent_rank_of_another_group_is_named_by_its_rank_along_the_axis() -> None:
    world = World(TP_2_CP_2, DictStore())
    world.at = {0.1: lambda: world.answer(0), 0.2: lambda: world.answer(1, "cp")}
    error = world.fail(2)
    assert str(error) == "rank 1 of tp did not reach call 7 (MIN progress) within 2 s (world rank 3)", str(error)
    assert (error.group, error.ranks) == ("tp", (1,)), f"expected rank 1 of tp, got {error.ranks} of {error.group}"


def test_the_first_call_that_a_silent_rank_did_not_reach_is_named() -> None:
    world = World(TP_2_CP_2, DictStore())
    world.ranks[2]._answer(Call("tp", 6, "MIN progress", 0.5, 8, 2), has_diverged=False)
    world.ranks[0]._answer(Call("tp", 5, "MIN capacities", 0.0, 7, 2), has_diverged=False)
    error = world.ranks[1].verdict(Call("cp", 6, "MIN progress", 0.0, 9, 2), CAUSE)
    expected = "rank 1 of tp did not reach call 6 (MIN progress) within 2 s (world rank 3)"
    assert str(error) == expected, f"RANK-8: rank 2 waits for rank 3: expected {expected!r}, got {error}"


def test_the_ranks_of_another_replica_are_not_waited_for() -> None:
    world = World(TP_2_DP_2, DictStore())
    error = world.fail(0)
    assert error.ranks == (1,), f"RANK-8: ranks 2 and 3 have their own tree, expected rank 1, got {error.ranks}"


def test_a_rank_that_calls_after_the_deadline_is_named_although_it_answers(world: World) -> None:
    call = world.ranks[2].begin("tp", 7, "MIN progress", 2)
    others = [world.ranks[rank].begin("tp", 7, "MIN progress", 2) for rank in (0, 3)]
    world.clock.advance(DEADLINE_S)
    for rank, other in zip((0, 3), others, strict=True):
        world.ranks[rank]._answer(other, has_diverged=False)
    world.at = {world.clock.now() + 0.1: lambda: world.answer(1)}
    errors = [world.ranks[2].verdict(call, CAUSE), world.fail(1)]
    for error in errors:
        assert error.ranks == (1,), f"RANK-8: rank 1 called after the deadline and before the verdict, got {error}"


def test_a_late_rank_does_not_judge_before_those_that_waited_for_it(world: World) -> None:
    calls = [world.ranks[rank].begin("tp", 7, "MIN progress", 2) for rank in (0, 2, 3)]
    world.clock.advance(DEADLINE_S)
    for rank, call in zip((0, 2, 3), calls, strict=True):
        world.ranks[rank]._answer(call, has_diverged=False)
    world.clock.advance(0.2 * DEADLINE_S)
    first = list[RankError]()
    world.at = {world.clock.now() + 0.1: lambda: first.append(world.ranks[0].verdict(calls[0], CAUSE))}
    error = world.fail(1)
    assert first, "rank 1 does not know when the others answered, and gave its verdict before rank 0"
    assert error.ranks == (1,), f"RANK-8: rank 1 called after the deadline of the others, got {error}"


def test_when_every_rank_answers_the_error_tells_which_call_each_was_in(world: World) -> None:
    world.at = {0.1: lambda: world.answer(0), 0.2: lambda: world.answer(1, "cp"), 0.3: lambda: world.answer(3)}
    error = world.fail(2)
    assert error.ranks == (), f"every rank answered, the error names {error.ranks}"
    assert "call 7 (MIN progress) of cp on world rank 1" in str(error), str(error)
    assert str(CAUSE) in str(error), f"expected the cause {CAUSE} in the error: {error}"
    assert world.clock.now() < 1, f"every rank answered within 0.3 s, the wait took {world.clock.now():.2f} s"


DIVERGED = DivergedError("its ranks were in different calls")


def part(world: World, calls: Sequence[tuple[str, int, str, int]]) -> RankError:
    """Let each rank be in one of these calls, by rank, of a group whose collective has ended; the error of rank 0.

    A call is its group, its position, what it is and the number of its values.
    """
    made = [Call(group, 7, what, 0.0, position, count) for group, position, what, count in calls]
    for rank, call in enumerate(made[1:], start=1):
        world.ranks[rank]._answer(call, has_diverged=call.group == made[0].group)
    return world.ranks[0].verdict(made[0], DIVERGED)


def test_a_rank_in_another_call_than_most_is_named(world: World) -> None:
    usual, other = ("tp", 9, "MIN progress", 2), ("tp", 9, "MAX ended", 1)
    error = part(world, [usual, usual, other, usual])
    expected = "RANK-2: rank 2 made call 7 (MAX ended) of tp with 1 value as collective 9 (world rank 2), "
    expected += "where the others made call 7 (MIN progress) of tp with 2 values as collective 9"
    assert (str(error), error.group, error.ranks) == (expected, "tp", (2,)), f"expected {expected!r}, got {error}"


def test_of_two_ranks_the_one_in_the_call_of_the_other_ranks_is_right() -> None:
    world = World(TP_2_CP_2, DictStore())
    right, wrong = ("cp", 9, "MIN progress", 2), ("cp", 8, "MIN progress", 2)
    error = part(world, [wrong, right, right, ("tp", 9, "MIN progress", 2)])
    assert (error.group, error.ranks) == ("cp", (0,)), f"expected rank 0 of cp, one call behind, got {error}"


def test_a_call_that_other_ranks_have_made_before_is_right() -> None:
    world = World(TP_2_CP_2, DictStore())
    for rank in (2, 3):
        world.ranks[rank].begin("tp", 7, "MIN progress", 2)
        world.ranks[rank]._answer(world.ranks[rank].begin("cp", 7, "MIN progress", 2), has_diverged=False)
    right = Call("tp", 7, "MIN progress", 0.0, 1, 2)
    world.ranks[1]._answer(right, has_diverged=True)
    error = world.ranks[0].verdict(replace(right, what="MAX progress"), DIVERGED)
    assert error.ranks == (0,), f"ranks 2 and 3 have made the call of rank 1: expected rank 0 to be named, got {error}"


def test_of_two_ranks_in_different_calls_both_are_named() -> None:
    world = World(topology_of(0, tp_size=2, cp_size=1, pp_size=1, dp_size=1), DictStore())
    error = part(world, [("tp", 9, "MIN progress", 2), ("tp", 9, "MAX ended", 1)])
    assert error.ranks == (0, 1), f"which of two is right is unknown: expected both, got {error}"


def test_a_rank_that_does_not_answer_does_not_hide_one_in_another_call() -> None:
    world = World(TP_2_CP_2, DictStore())
    calls = [Call("tp", 7, "MIN progress", 0.0, 9, count) for count in (2, 3)]
    world.ranks[1]._answer(calls[1], has_diverged=True)
    error = world.ranks[0].verdict(calls[0], DIVERGED)
    made = "rank 1 made call 7 (MIN progress) of tp with 3 values"
    assert made in str(error), f"ranks 2 and 3 are busy, expected {made!r} in {error}"


@pytest.mark.parametrize("field", ["group", "number", "what", "position", "count"])
def test_calls_that_differ_in_anything_have_different_signatures(field: str) -> None:
    call = Call("tp", 7, "MIN progress", 0.0, 9, 2)
    changed: Any = {field: "cp" if isinstance(getattr(call, field), str) else 70}
    other = replace(call, **changed)
    assert call.signature != other.signature, f"{call} and {other} have the signature {call.signature}"
    later = replace(call, since=5.0)
    assert call.signature == later.signature, f"{call} has another signature 5 s later"


def test_a_store_that_fails_is_reported_and_no_rank_is_named() -> None:
    world = World(TP_4, DeadStore())
    error = world.fail(2)
    assert error.ranks == (), f"without a store no rank can be named, the error names {error.ranks}"
    assert "(it has not ended), and so did the store that the ranks share: connection reset" in str(error), str(error)


def test_the_opening_waits_until_every_rank_has_reached_it(world: World) -> None:
    opening = Call("world", 0, "opening", 0.0, 1, 0)
    arrived = []

    def arrive(rank: int) -> None:
        arrived.append(rank)
        if rank < 3:
            world.at = {world.clock.now() + 0.1: lambda: arrive(rank + 1)}
        world.ranks[rank].wait_for_all(opening)

    arrive(0)
    assert arrived == [0, 1, 2, 3], f"expected every rank to arrive, got {arrived}"
    assert world.clock.now() >= 0.3, f"RANK-8: rank 3 arrives at 0.3 s, rank 0 waited {world.clock.now():.2f} s"


def test_the_opening_does_not_wait_beyond_the_deadline_or_an_alarm(world: World) -> None:
    with pytest.raises(TimeoutError, match=r"call 0 \(opening\) has not begun"):
        world.ranks[0].wait_for_all(Call("world", 0, "opening", 0.0, 1, 0))
    assert DEADLINE_S <= world.clock.now() < BOUND_S, f"RANK-8: the first gave up after {world.clock.now():.2f} s"
    world.answer(0)
    begun_s = world.clock.now()
    with pytest.raises(TimeoutError):
        world.ranks[1].wait_for_all(Call("world", 0, "opening", begun_s, 1, 0))
    waited_s = world.clock.now() - begun_s
    assert waited_s == 0, f"RANK-8: there is an alarm, expected no wait, rank 1 waited {waited_s:.2f} s"
