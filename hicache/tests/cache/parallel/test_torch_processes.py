"""TorchGroup on processes, by gloo and NCCL: the results of each group, and the ranks named when some are lost."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed import Store  # type: ignore[attr-defined]

from hicache.clock import WallClock
from hicache.config import SINGLE_RANK, Topology
from hicache.parallel.communicators import Communicators
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import topology_of
from hicache.parallel.rank_monitor import RankMonitor
from hicache.parallel.torch_group import TorchGroup
from hicache.tests.cache.parallel.processes import (
    DEAD_EXIT_CODE,
    Loss,
    all_verbs,
    answers_of,
    be_late,
    check_agreed,
    check_named,
    lose,
    open_again,
    open_without,
    reduce_other_lengths,
    run_ranks,
    survivors,
)

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


@pytest.mark.parametrize("reduction", Reduction)
@pytest.mark.parametrize("values", [(2, 3), (0, 1), (10, 1000)], ids=str)
def test_two_ranks_that_reduce_other_numbers_of_values_are_told_what_each_did(
    values: tuple[int, int], reduction: Reduction, tmp_path: Path
) -> None:
    outcomes = run_ranks(partial(reduce_other_lengths, dict(enumerate(values)), reduction), tmp_path, TP_2)
    call = f"call 1 ({reduction.value} progress) of tp"
    made = [f"{call} with {count} value{'s' * (count != 1)} as collective 4" for count in values]
    expected = f"RANK-2: rank 0 made {made[0]} (world rank 0); rank 1 made {made[1]} (world rank 1)"
    assert [one.value for one in outcomes] == [expected] * 2, f"expected {expected!r} on both ranks, got {outcomes}"


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


# NCCL: on one GPU no collective gets a CPU tensor; on two GPUs ranks agree and name a dead rank.

GPUS = torch.cuda.device_count()
NO_GPU = pytest.mark.skipif(GPUS < 1, reason="torch finds no CUDA device on this machine")
FEWER_THAN_TWO = pytest.mark.skipif(GPUS < 2, reason=f"two ranks of NCCL need two CUDA devices, torch finds {GPUS}")

NCCL_DEADLINE_S = 5.0
BUSY_CYCLES = 4_000_000_000
"""Cycles that keep a GPU busy for about two seconds."""


def group_of_one(topology: Topology, store: Store) -> TorchGroup:
    """A group of this rank alone, after a first barrier, so that NCCL is connected."""
    torch.cuda.set_device(0)
    monitor = RankMonitor(store, topology, NCCL_DEADLINE_S, WallClock(), time.sleep)
    communicators = Communicators.on(torch.device("cuda", 0), NCCL_DEADLINE_S)
    communicators.add("tp", (0,), 0)
    group = TorchGroup("tp", communicators, monitor)
    group.barrier("opening")
    return group


def answer_alone(topology: Topology, store: Store) -> tuple[tuple[object, ...], str]:
    """The results of the verbs, and the message of NCCL's error for a CPU tensor."""
    group = group_of_one(topology, store)
    answers = answers_of(group, 0)
    try:
        distributed.all_reduce(torch.zeros(1), group=group._communicators.group("tp"))
    except RuntimeError as error:
        return answers, str(error)
    return answers, ""


@pytest.mark.gpu
@NO_GPU
def test_no_collective_of_nccl_gets_a_cpu_tensor(tmp_path: Path) -> None:
    (outcome,) = run_ranks(answer_alone, tmp_path, SINGLE_RANK, "nccl")
    answers, refusal = outcome.value
    assert "cpu" in refusal.lower(), (
        f"RANK-3: expected NCCL to refuse a CPU tensor, without which this test proves nothing; got {refusal!r}"
    )
    numbers = [0, 0, 2**62]
    assert answers == ("tp", 0, 1, numbers, numbers, numbers), f"RANK-3: expected {numbers} from each verb: {answers}"


def decide_while_the_model_runs(topology: Topology, store: Store) -> bool:
    """Whether the model still ran after a decision was taken."""
    group = group_of_one(topology, store)
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    model = torch.cuda.Event()  # type: ignore[no-untyped-call]
    model.record()
    group.barrier("ready")
    is_done: bool = model.query()  # type: ignore[no-untyped-call]
    return not is_done


@pytest.mark.gpu
@NO_GPU
def test_a_decision_does_not_wait_for_the_model(tmp_path: Path) -> None:
    (outcome,) = run_ranks(decide_while_the_model_runs, tmp_path, SINGLE_RANK, "nccl")
    assert outcome.value, "the model had ended when the decision was taken; expected a stream of its own for decisions"


def priorities(topology: Topology, store: Store) -> tuple[int, bool]:
    """The priority of the stream of a group, and whether NCCL's own stream has a high one."""
    communicators = group_of_one(topology, store)._communicators
    assert communicators.stream is not None, "a group on a GPU has a stream"
    options: Any = communicators.group("tp")._get_backend(communicators.device).options
    return communicators.stream.priority, options.is_high_priority_stream


@pytest.mark.gpu
@NO_GPU
def test_decisions_run_at_a_high_priority(tmp_path: Path) -> None:
    (outcome,) = run_ranks(priorities, tmp_path, SINGLE_RANK, "nccl")
    assert outcome.value == (-1, True), f"expected a stream of priority -1 and NCCL's at a high one: {outcome.value}"


@pytest.mark.gpu
@FEWER_THAN_TWO
def test_two_gpus_agree(tmp_path: Path) -> None:
    check_agreed(run_ranks(partial(all_verbs, "cuda"), tmp_path, TP_2, "nccl"), TP_2)


@pytest.mark.gpu
@FEWER_THAN_TWO
@pytest.mark.parametrize(("dead", "hung"), [(1, None), (None, 1)], ids=["dead", "silent"])
def test_a_rank_that_is_lost_on_a_gpu_is_named(dead: int | None, hung: int | None, tmp_path: Path) -> None:
    loss = Loss(dead, hung, None, NCCL_DEADLINE_S, "cuda")
    outcomes = run_ranks(partial(lose, loss), tmp_path, TP_2, "nccl")
    check_named(survivors(outcomes, 1), "tp", (1,))
