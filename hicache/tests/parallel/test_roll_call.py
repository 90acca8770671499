"""RollCall: who has not answered in time is named, nobody else is, and every rank raises the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.clock import VirtualClock
from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.mesh import places, topology_of
from hicache.parallel.roll_call import Call, RollCall

DEADLINE_S = 2.0
BOUND_S = 1.5 * DEADLINE_S + 0.1
CAUSE = TimeoutError("it has not ended")
TP_4 = topology_of(0, tp_size=4, cp_size=1, pp_size=1, dp_size=1)
TP_2_CP_2 = topology_of(0, tp_size=2, cp_size=2, pp_size=1, dp_size=1)
TP_2_DP_2 = topology_of(0, tp_size=2, cp_size=1, pp_size=1, dp_size=2)


class DictBoard(dict[str, str]):
    """A store in memory."""

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


class DeadBoard(DictBoard):
    """A store whose server is gone."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("connection reset")


class World:
    """The roll calls of a mesh's ranks, on one board and one clock. `at`: what other ranks do at which second."""

    def __init__(self, mesh: Topology, board: DictBoard) -> None:
        self.clock = VirtualClock()
        self.at: dict[float, Callable[[], object]] = {}
        self.board = board
        self.ranks = [RollCall(board, place, DEADLINE_S, self.clock, self._pause) for place in places(mesh)]

    def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for second in [second for second in self.at if second <= self.clock.now()]:
            self.at.pop(second)()

    def answer(self, rank: int, group: str = "tp") -> None:
        """A rank that waits in a call has seen the alarm."""
        self.ranks[rank]._answer(Call(group, 7, "MIN progress", self.clock.now()))

    def fail(self, rank: int, group: str = "tp") -> RankError:
        """A rank's call that began now and has failed at once."""
        return self.ranks[rank].conclude(self.ranks[rank].enter(group, 7, "MIN progress"), CAUSE)


@pytest.fixture
def world() -> World:
    """Four ranks of tp."""
    return World(TP_4, DictBoard())


def test_who_does_not_answer_is_named(world: World) -> None:
    world.at = {0.1: lambda: world.answer(0), 0.2: lambda: world.answer(3)}
    error = world.fail(2)
    assert error.ranks == (1,), f"RANK-8: rank 1 alone was silent, {error.ranks} are named"
    assert str(error) == "rank 1 of tp did not come to call 7 (MIN progress) within 2 s (world rank 1)", str(error)
    assert world.clock.now() <= BOUND_S, f"RANK-8: it took {world.clock.now():.2f} s, expected at most {BOUND_S} s"


def test_two_that_do_not_answer_are_both_named(world: World) -> None:
    world.at = {0.1: lambda: world.answer(0)}
    error = world.fail(2)
    assert error.ranks == (1, 3), f"RANK-8: ranks 1 and 3 were silent, {error.ranks} are named"
    assert "ranks 1, 3 of tp did not come" in str(error), str(error)


def test_who_comes_by_the_deadline_and_answers_after_it_is_not_named(world: World) -> None:
    late = DEADLINE_S + 2 * world.ranks[0].beat_s
    world.at = {0.1: lambda: world.answer(0), late: lambda: world.answer(3)}
    error = world.fail(2)
    assert error.ranks == (1,), f"RANK-8: rank 3 came, and saw the alarm with its next beat; named are {error.ranks}"


def test_who_was_held_up_itself_gives_the_others_time_to_answer(world: World) -> None:
    call = world.ranks[2].enter("tp", 7, "MIN progress")
    world.clock.advance(10 * DEADLINE_S)
    world.at = {world.clock.now() + rank / 10: lambda rank=rank: world.answer(rank) for rank in (0, 3)}  # type: ignore[misc]
    error = world.ranks[2].conclude(call, CAUSE)
    assert error.ranks == (1,), f"RANK-8: 0 and 3 answered once there was an alarm; named are {error.ranks}"


def test_every_rank_raises_the_same_even_the_one_that_is_named(world: World) -> None:
    errors = [world.fail(rank) for rank in (2, 1, 0)]
    assert len({str(error) for error in errors}) == 1, f"RANK-8: the ranks raise {[str(error) for error in errors]}"
    assert {error.ranks for error in errors} == {(0, 1, 3)}, "who came after the verdict raises what it says"
    assert world.clock.now() <= BOUND_S, "they do not wait for anybody"


def test_where_a_call_has_failed_there_is_no_other(world: World) -> None:
    error = world.fail(2)
    for group in ("tp", "cp"):
        with pytest.raises(RankError) as again:
            world.ranks[2].enter(group, 8, "MAX ended")
        found = (str(again.value), again.value.group, again.value.ranks)
        assert found == (str(error), error.group, error.ranks), f"RANK-8: expected {error}, got {again.value}"


def test_a_wait_is_lost_at_the_deadline_or_with_the_alarm(world: World) -> None:
    call = world.ranks[0].enter("tp", 7, "MIN progress")
    world.clock.advance(0.9 * DEADLINE_S)
    assert not world.ranks[0].is_lost(call), "RANK-8: who is late, but within the deadline, is waited for"
    world.clock.advance(0.1 * DEADLINE_S)
    assert world.ranks[0].is_lost(call), "RANK-8: no longer than the deadline"
    other = world.ranks[1].enter("tp", 7, "MIN progress")
    assert not world.ranks[1].is_lost(other), "its own deadline has just begun"
    world.fail(3)
    assert world.ranks[1].is_lost(other), "RANK-8: another rank knows already that somebody is missing"


def test_a_silent_rank_of_another_list_is_named_by_its_place_along_the_axis() -> None:
    world = World(TP_2_CP_2, DictBoard())
    world.at = {0.1: lambda: world.answer(0), 0.2: lambda: world.answer(1, "cp")}
    error = world.fail(2)
    assert str(error) == "rank 1 of tp did not come to call 7 (MIN progress) within 2 s (world rank 3)", str(error)
    assert (error.group, error.ranks) == ("tp", (1,)), f"expected rank 1 of tp, got {error.ranks} of {error.group}"


def test_the_ranks_of_another_replica_are_not_waited_for() -> None:
    world = World(TP_2_DP_2, DictBoard())
    error = world.fail(0)
    assert error.ranks == (1,), f"RANK-8: ranks 2 and 3 have a tree of their own; named are {error.ranks}"


def test_who_comes_after_the_deadline_and_answers_is_named(world: World) -> None:
    call = world.ranks[2].enter("tp", 7, "MIN progress")
    others = [world.ranks[rank].enter("tp", 7, "MIN progress") for rank in (0, 3)]
    world.clock.advance(DEADLINE_S)
    for rank, other in zip((0, 3), others, strict=True):
        world.ranks[rank]._answer(other)
    world.at = {world.clock.now() + 0.1: lambda: world.answer(1)}
    errors = [world.ranks[2].conclude(call, CAUSE), world.fail(1)]
    for error in errors:
        assert error.ranks == (1,), f"RANK-8: rank 1 came too late, though before the verdict: {error}"


def test_when_nobody_is_silent_each_says_where_it_is(world: World) -> None:
    world.at = {0.1: lambda: world.answer(0), 0.2: lambda: world.answer(1, "cp"), 0.3: lambda: world.answer(3)}
    error = world.fail(2)
    assert error.ranks == (), f"no rank is silent, {error.ranks} are named"
    assert "call 7 (MIN progress) of cp on world rank 1" in str(error), str(error)
    assert str(CAUSE) in str(error), f"what the backend met is told: {error}"
    assert world.clock.now() < 1, "there is nobody to wait for"


def test_a_store_that_is_gone_is_told() -> None:
    world = World(TP_4, DeadBoard())
    error = world.fail(2)
    assert error.ranks == (), f"nobody knows who is there, yet {error.ranks} are named"
    assert "(it has not ended), and so did the store that tells who is there: connection reset" in str(error), str(
        error
    )


def test_all_assemble_before_anything_begins(world: World) -> None:
    opening = Call("world", 0, "opening", 0.0)
    arrived = []

    def come(rank: int) -> None:
        arrived.append(rank)
        if rank < 3:
            world.at = {world.clock.now() + 0.1: lambda: come(rank + 1)}
        world.ranks[rank].assemble(opening)

    come(0)
    assert arrived == [0, 1, 2, 3], f"everybody came, {arrived}"
    assert world.clock.now() >= 0.3, "RANK-8: the first waited for the last"


def test_nobody_assembles_beyond_the_deadline_or_an_alarm(world: World) -> None:
    with pytest.raises(TimeoutError, match=r"call 0 \(opening\) has not begun"):
        world.ranks[0].assemble(Call("world", 0, "opening", 0.0))
    assert DEADLINE_S <= world.clock.now() < BOUND_S, f"RANK-8: the first gave up after {world.clock.now():.2f} s"
    world.answer(0)
    begun_s = world.clock.now()
    with pytest.raises(TimeoutError):
        world.ranks[1].assemble(Call("world", 0, "opening", begun_s))
    assert world.clock.now() == begun_s, "RANK-8: after the alarm nobody waits"
