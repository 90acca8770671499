"""TorchGroup on processes of gloo: what is agreed on, and who is named when ranks are dead, silent or late."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import Store  # type: ignore[attr-defined]

from hicache.config import Topology
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import axis_ranks, topology_of, world_rank
from hicache.parallel.torch_group import open_groups
from hicache.tests.parallel.processes import Outcome, Refusal, refusal_of, run_ranks

DEADLINE_S = 1.2
LATE_S = 0.7
PATIENCE_S = 20
"""A deadline that no rank is meant to miss."""

BOUND_S = 2.5 * DEADLINE_S
"""One and a half deadlines, and what a busy machine takes."""

AGES_S = 2 * DEADLINE_S
GONE = 7
"""The exit code of a rank that dies."""

TP_2 = topology_of(0, tp_size=2, cp_size=1, pp_size=1, dp_size=1)
TP_4 = topology_of(0, tp_size=4, cp_size=1, pp_size=1, dp_size=1)
TP_2_CP_2 = topology_of(0, tp_size=2, cp_size=2, pp_size=1, dp_size=1)


def all_verbs(topology: Topology, store: Store) -> dict[str, tuple[object, ...]]:
    """What each verb of each group answers to numbers that tell the rank."""
    rank, answers = world_rank(topology), dict[str, tuple[object, ...]]()
    for axis, group in open_groups(topology, store, "cpu", PATIENCE_S).items():
        numbers = [rank, -rank, 2**62 + rank]
        least = group.reduce(numbers, Reduction.MIN, "progress")
        greatest = group.reduce(numbers, Reduction.MAX, "ended")
        first = group.broadcast(numbers, "ended")
        group.barrier("ready")
        answers[axis] = (group.name, group.rank, group.size, least, greatest, first)
        group.close()
    return answers


@pytest.mark.parametrize("mesh", [TP_2, TP_2_CP_2], ids=["tp2", "tp2-cp2"])
def test_each_group_agrees_on_its_own(mesh: Topology, tmp_path: Path) -> None:
    outcomes = run_ranks(all_verbs, tmp_path, mesh)
    for axis, lists in axis_ranks(mesh).items():
        for ranks in (ranks for ranks in lists if len(ranks) > 1):
            low, high = min(ranks), max(ranks)
            least, greatest = [low, -high, 2**62 + low], [high, -low, 2**62 + high]
            first = [low, -low, 2**62 + low]
            for place, rank in enumerate(ranks):
                expected = (axis, place, len(ranks), least, greatest, first)
                found = outcomes[rank].value[axis]
                assert found == expected, f"RANK-4: rank {rank} of {ranks}: expected {expected}, got {found}"


def lose(dead: int | None, hung: int | None, late: int | None, topology: Topology, store: Store) -> list[Refusal]:
    """Take decisions until a rank is lost; what is raised by that call and by the next."""
    groups = open_groups(topology, store, "cpu", DEADLINE_S)
    rank = world_rank(topology)
    for group in groups.values():
        group.barrier("ready")
    if rank == dead:
        os._exit(GONE)
    if rank == hung:
        time.sleep(AGES_S)
    if rank == late:
        time.sleep(LATE_S)

    def step() -> list[list[int]]:
        return [group.reduce([1, 2], Reduction.MIN, "progress") for group in groups.values()]

    refusals = [refusal_of(step), refusal_of(step)]
    for group in groups.values():
        group.close()
    return refusals


def check_named(outcomes: Mapping[int, Outcome], group: str, ranks: tuple[int, ...]) -> None:
    """Every survivor named these ranks of the group within the bound, refused the next call at once, and ended."""
    messages = {outcome.value[0].message for outcome in outcomes.values()}
    assert len(messages) == 1, f"RANK-8: the survivors raise {messages}"
    for rank, outcome in outcomes.items():
        first, second = outcome.value
        assert (first.group, first.ranks) == (group, ranks), f"RANK-8: expected {ranks}, rank {rank} says {first}"
        assert "(MIN progress)" in first.message, f"RANK-8: the purpose is told: {first.message}"
        assert first.seconds < BOUND_S, f"RANK-8: rank {rank} took {first.seconds:.2f} s, the bound is {BOUND_S} s"
        assert second.message == first.message, f"RANK-8: rank {rank} says {first.message}, then {second.message}"
        assert second.seconds < 0.5, f"RANK-8: rank {rank} waited {second.seconds:.2f} s in a group that has failed"
        assert outcome.exit_code == 0, f"RANK-8: rank {rank} ended with {outcome.exit_code}"


def survivors(outcomes: list[Outcome], *lost: int) -> dict[int, Outcome]:
    return {rank: outcome for rank, outcome in enumerate(outcomes) if rank not in lost}


def test_a_dead_rank_is_named_and_no_late_one(tmp_path: Path) -> None:
    outcomes = run_ranks(partial(lose, 1, None, 2), tmp_path, TP_4)
    assert outcomes[1].exit_code == GONE, f"rank 1 was to die, its exit code is {outcomes[1].exit_code}"
    check_named(survivors(outcomes, 1), "tp", (1,))


def test_a_silent_rank_is_named_and_no_late_one(tmp_path: Path) -> None:
    outcomes = run_ranks(partial(lose, None, 1, 2), tmp_path, TP_4)
    check_named(survivors(outcomes, 1), "tp", (1,))
    named = outcomes[1].value[0]
    assert named.ranks == (1,), f"RANK-8: a rank that comes too late is told so: {named}"
    assert named.seconds < DEADLINE_S, f"it waits for nobody, yet took {named.seconds:.2f} s"


def test_two_lost_ranks_are_both_named_and_nobody_waits_for_them_to_end(tmp_path: Path) -> None:
    outcomes = run_ranks(partial(lose, 1, 3, None), tmp_path, TP_4)
    check_named(survivors(outcomes, 1, 3), "tp", (1, 3))
    for rank in (0, 2):
        assert outcomes[rank].ended_s < outcomes[3].ended_s, f"RANK-8: rank {rank} did not end before rank 3 woke up"


def test_a_dead_rank_is_named_by_those_that_share_no_group_with_it(tmp_path: Path) -> None:
    outcomes = run_ranks(partial(lose, 3, None, None), tmp_path, TP_2_CP_2)
    check_named(survivors(outcomes, 3), outcomes[0].value[0].group, (1,))
    assert "(world rank 3)" in outcomes[0].value[0].message, f"RANK-8: it is rank 3: {outcomes[0].value[0].message}"


def come_late(topology: Topology, store: Store) -> list[int]:
    """Rank 1 comes late, within the deadline."""
    group = open_groups(topology, store, "cpu", PATIENCE_S)["tp"]
    if group.rank == 1:
        time.sleep(LATE_S)
    return group.reduce([group.rank], Reduction.MAX, "ended")


def test_a_rank_that_is_late_within_the_deadline_is_waited_for(tmp_path: Path) -> None:
    values = [outcome.value for outcome in run_ranks(come_late, tmp_path, TP_2)]
    assert values == [[1], [1]], f"RANK-8: being late is no error, got {values}"


def open_without(topology: Topology, store: Store) -> Refusal | None:
    """Rank 1 does not open its groups."""
    if world_rank(topology) == 1:
        return None
    return refusal_of(lambda: open_groups(topology, store, "cpu", LATE_S))


def test_a_rank_that_does_not_open_its_groups_is_named(tmp_path: Path) -> None:
    outcomes = run_ranks(open_without, tmp_path, TP_2)
    refusal = outcomes[0].value
    assert "rank 1 of world did not come to call 0 (opening)" in refusal.message, f"RANK-8: it says {refusal.message}"
    assert refusal.seconds < BOUND_S, f"RANK-8: it took {refusal.seconds:.2f} s, the bound is {BOUND_S} s"


def open_again(topology: Topology, store: Store) -> list[int]:
    """Open anew after a call that rank 1 has missed."""
    group = open_groups(topology, store, "cpu", LATE_S / 2)["tp"]
    if group.rank == 1:
        time.sleep(LATE_S)
    refusal_of(lambda: group.barrier("ready"))
    return open_groups(topology, store, "cpu", PATIENCE_S)["tp"].reduce([group.rank], Reduction.MAX, "ended")


def test_what_has_failed_can_be_opened_anew(tmp_path: Path) -> None:
    values = [outcome.value for outcome in run_ranks(open_again, tmp_path, TP_2)]
    assert values == [[1], [1]], f"the new groups know nothing of the failure, got {values}"
