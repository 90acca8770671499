"""TorchGroup on stand-ins: where its numbers live, and how long it waits for a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hicache.clock import WallClock
from hicache.errors import RankError
from hicache.parallel.group import Reduction
from hicache.parallel.roll_call import RollCall
from hicache.parallel.torch_group import TorchGroup
from hicache.tests.parallel.stand_ins import GPU, TP_2, Later, Members, PretendGpu, a_roll_call, hand_back


@pytest.mark.parametrize(
    "verb",
    [
        lambda group: group.reduce([3, -4], Reduction.MIN, "progress"),
        lambda group: group.reduce([3, -4], Reduction.MAX, "ended"),
        lambda group: group.broadcast([3, -4], "ended"),
        lambda group: group.barrier("opening"),
    ],
    ids=["min", "max", "broadcast", "barrier"],
)
def test_every_collective_gets_a_tensor_of_the_groups_device(
    verb: Callable[[TorchGroup], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = hand_back(Later(0), monkeypatch)
    group = TorchGroup("tp", Members([0, 1], 1, []), GPU, None, a_roll_call(TP_2))  # type: ignore[arg-type]
    with PretendGpu():
        verb(group)
    found = [(numbers.device, numbers.dtype) for numbers in given]
    expected = [(GPU, torch.int64)]
    assert found == expected, f"RANK-3: the group's device is {GPU}: expected a tensor of {expected}, got {found}"


def on_a_gpu(members: Members, stream: Later, timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> TorchGroup:
    """A group that believes to be on a GPU. Its numbers are on the CPU."""
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    roll_call = RollCall(HashStore(), TP_2, timeout_s, WallClock(), time.sleep)
    return TorchGroup("tp", members, torch.device("cpu"), stream, roll_call)  # type: ignore[arg-type]


def test_what_a_gpu_has_reduced_is_read_when_its_stream_has_come_there(monkeypatch: pytest.MonkeyPatch) -> None:
    work, stream, members = Later(3), Later(2), Members([0, 1], 1, [])
    hand_back(work, monkeypatch)
    group = on_a_gpu(members, stream, 60, monkeypatch)
    assert group.reduce([3, -4], Reduction.MIN, "progress") == [3, -4], "the numbers as they are"
    assert (work.looks, stream.looks) == (-1, -1), "both were waited for, and no longer"
    assert members.aborted == [], "nothing has failed"


@pytest.mark.parametrize(("work", "stream"), [(math.inf, 0), (0, math.inf)], ids=["no peer", "NCCL has failed"])
def test_a_gpu_that_waits_for_ever_is_given_up(work: float, stream: float, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_back(Later(work), monkeypatch)
    members = Members([0, 1], 1, [])
    group = on_a_gpu(members, Later(stream), 0.2, monkeypatch)
    with pytest.raises(RankError, match=r"rank 0 of tp did not come to call 0 \(MIN progress\) within 0.2 s"):
        group.reduce([3, -4], Reduction.MIN, "progress")
    assert members.aborted == [1], "RANK-8: the kernel that waits on the GPU is ended"
