"""TorchGroup on gloo processes: the results of each group, and the ranks named when some are dead, silent or late."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from hicache.config import Topology
from hicache.parallel.mesh import topology_of
from hicache.tests.parallel.processes import run_ranks
from hicache.tests.parallel.rank_bodies import (
    DEAD_EXIT_CODE,
    Loss,
    all_verbs,
    be_late,
    lose,
    open_again,
    open_without,
)
from hicache.tests.parallel.survivors import check_agreed, check_named, survivors

DEADLINE_S = 3.0
"""Far more than a busy machine needs for a rank that is late by LATE_S."""

TP_2 = topology_of(0, tp_size=2, cp_size=1, pp_size=1, dp_size=1)
TP_4 = topology_of(0, tp_size=4, cp_size=1, pp_size=1, dp_size=1)
TP_2_CP_2 = topology_of(0, tp_size=2, cp_size=2, pp_size=1, dp_size=1)


@pytest.mark.parametrize("mesh", [TP_2, TP_2_CP_2], ids=["tp2", "tp2-cp2"])
def test_each_group_reduces_the_values_of_its_own_ranks(mesh: Topology, tmp_path: Path) -> None:
    outcomes = run_ranks(partial(all_verbs, "cpu"), tmp_path, mesh)
    check_agreed(outcomes, mesh)


def test_a_dead_rank_is_named_and_a_late_rank_is_not(tmp_path: Path) -> None:
    loss = Loss(1, None, 2, DEADLINE_S, "cpu")
    outcomes = run_ranks(partial(lose, loss), tmp_path, TP_4)
    code = outcomes[1].exit_code
    assert code == DEAD_EXIT_CODE, f"expected rank 1 to die with exit code {DEAD_EXIT_CODE}, got {code}"
    check_named(survivors(outcomes, 1), "tp", (1,))


def test_a_silent_rank_is_named_and_a_late_rank_is_not(tmp_path: Path) -> None:
    loss = Loss(None, 1, 2, DEADLINE_S, "cpu")
    outcomes = run_ranks(partial(lose, loss), tmp_path, TP_4)
    check_named(survivors(outcomes, 1), "tp", (1,))
    named = outcomes[1].value[0]
    assert named.ranks == (1,), f"RANK-8: expected the silent rank 1 to raise an error that names rank 1, got {named}"


def test_two_lost_ranks_are_both_named_and_no_rank_waits_for_them_to_end(tmp_path: Path) -> None:
    loss = Loss(1, 3, None, DEADLINE_S, "cpu")
    outcomes = run_ranks(partial(lose, loss), tmp_path, TP_4)
    check_named(survivors(outcomes, 1, 3), "tp", (1, 3))
    assert outcomes[3].value, f"RANK-8: expected rank 3 to go on after ranks 0 and 2 had ended, got {outcomes[3]}"


def test_a_dead_rank_is_named_by_ranks_that_share_no_group_with_it(tmp_path: Path) -> None:
    loss = Loss(3, None, None, DEADLINE_S, "cpu")
    outcomes = run_ranks(partial(lose, loss), tmp_path, TP_2_CP_2)
    check_named(survivors(outcomes, 3), outcomes[0].value[0].group, (1,))
    message = outcomes[0].value[0].message
    assert "(world rank 3)" in message, f"RANK-8: expected an error that names world rank 3, got {message}"


def test_a_rank_that_is_late_within_the_deadline_is_waited_for(tmp_path: Path) -> None:
    values = [outcome.value for outcome in run_ranks(be_late, tmp_path, TP_2)]
    assert values == [[1], [1]], f"RANK-8: expected [1] on both ranks although rank 1 is late, got {values}"


def test_a_rank_that_does_not_open_its_groups_is_named(tmp_path: Path) -> None:
    outcomes = run_ranks(open_without, tmp_path, TP_2)
    refusal = outcomes[0].value
    expected = "rank 1 of world did not reach call 0 (opening)"
    assert expected in refusal.message, f"RANK-8: expected {expected!r} in the error, got {refusal.message}"
    assert refusal.collectives == 0, (
        f"RANK-8: expected no collective before every rank has opened, got {refusal.collectives}"
    )


def test_after_a_failure_new_groups_can_be_opened(tmp_path: Path) -> None:
    values = [outcome.value for outcome in run_ranks(partial(open_again, DEADLINE_S), tmp_path, TP_2)]
    assert values == [[1], [1]], f"expected [1] from the new groups on both ranks, got {values}"
