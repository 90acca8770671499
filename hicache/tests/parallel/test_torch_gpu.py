"""TorchGroup on NCCL: on one GPU no collective gets a CPU tensor; on two GPUs ranks agree and name a dead rank."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed import Store  # type: ignore[attr-defined]

from hicache.clock import WallClock
from hicache.config import SINGLE_RANK, Topology
from hicache.parallel.mesh import topology_of
from hicache.parallel.rank_monitor import RankMonitor
from hicache.parallel.torch_group import TorchGroup
from hicache.tests.parallel.processes import run_ranks
from hicache.tests.parallel.rank_bodies import Loss, all_verbs, answers_of, lose
from hicache.tests.parallel.survivors import check_agreed, check_named, survivors

GPUS = torch.cuda.device_count()
NO_GPU = pytest.mark.skipif(GPUS < 1, reason="torch finds no CUDA device on this machine")
FEWER_THAN_TWO = pytest.mark.skipif(GPUS < 2, reason=f"two ranks of NCCL need two CUDA devices, torch finds {GPUS}")

DEADLINE_S = 5.0
BUSY_CYCLES = 4_000_000_000
"""Cycles that keep a GPU busy for about two seconds."""

TP_2 = topology_of(0, tp_size=2, cp_size=1, pp_size=1, dp_size=1)


def group_of_one(topology: Topology, store: Store) -> TorchGroup:
    """A group of this rank alone, after a first barrier, so that NCCL is connected."""
    torch.cuda.set_device(0)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    monitor = RankMonitor(store, topology, DEADLINE_S, WallClock(), time.sleep)
    process_group = distributed.new_group([0], backend="nccl")
    group = TorchGroup("tp", process_group, torch.device("cuda", 0), stream, monitor)
    group.barrier("opening")
    return group


def answer_alone(topology: Topology, store: Store) -> tuple[tuple[object, ...], str]:
    """The results of the verbs, and the message of NCCL's error for a CPU tensor."""
    group = group_of_one(topology, store)
    answers = answers_of(group, 0)
    try:
        distributed.all_reduce(torch.zeros(1), group=group._process_group)
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


@pytest.mark.gpu
@FEWER_THAN_TWO
def test_two_gpus_agree(tmp_path: Path) -> None:
    check_agreed(run_ranks(partial(all_verbs, "cuda"), tmp_path, TP_2, "nccl"), TP_2)


@pytest.mark.gpu
@FEWER_THAN_TWO
@pytest.mark.parametrize(("dead", "hung"), [(1, None), (None, 1)], ids=["dead", "silent"])
def test_a_rank_that_is_lost_on_a_gpu_is_named(dead: int | None, hung: int | None, tmp_path: Path) -> None:
    loss = Loss(dead, hung, None, DEADLINE_S, "cuda")
    outcomes = run_ranks(partial(lose, loss), tmp_path, TP_2, "nccl")
    check_named(survivors(outcomes, 1), "tp", (1,))
