"""TorchGroup on stand-ins: the device of its tensors, and how long it waits for a GPU."""

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
from hicache.parallel.rank_monitor import RankMonitor
from hicache.parallel.torch_group import TorchGroup
from hicache.tests.parallel.stand_ins import GPU, TP_2, Later, Members, PretendGpu, lone_monitor, record_reductions


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
    reduced = record_reductions(Later(0), monkeypatch)
    group = TorchGroup("tp", Members([0, 1], 1, []), GPU, None, lone_monitor(TP_2))  # type: ignore[arg-type]
    with PretendGpu():
        verb(group)
    found = [(numbers.device, numbers.dtype) for numbers in reduced]
    expected = [(GPU, torch.int64)]
    assert found == expected, f"RANK-3: the group's device is {GPU}: expected a tensor of {expected}, got {found}"


def on_a_gpu(members: Members, stream: Later, timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> TorchGroup:
    """A group with the stream of a GPU, whose tensors are on the CPU."""
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monitor = RankMonitor(HashStore(), TP_2, timeout_s, WallClock(), time.sleep)
    return TorchGroup("tp", members, torch.device("cpu"), stream, monitor)  # type: ignore[arg-type]


def test_a_result_is_read_after_the_stream_of_the_gpu_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    work, stream, members = Later(3), Later(2), Members([0, 1], 1, [])
    record_reductions(work, monkeypatch)
    group = on_a_gpu(members, stream, 60, monkeypatch)
    reduced = group.reduce([3, -4], Reduction.MIN, "progress")
    assert reduced == [3, -4], f"expected [3, -4], which the stand-in leaves unchanged, got {reduced}"
    left = [work.polls, stream.polls]
    assert left == [-1, -1], f"expected one poll after the end of the collective and of the stream, got {left}"
    assert members.aborted == [], f"no call failed, yet these ranks aborted: {members.aborted}"


@pytest.mark.parametrize(("work", "stream"), [(math.inf, 0), (0, math.inf)], ids=["no peer", "NCCL has failed"])
def test_a_collective_on_a_gpu_that_never_ends_is_aborted(
    work: float, stream: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_reductions(Later(work), monkeypatch)
    members = Members([0, 1], 1, [])
    group = on_a_gpu(members, Later(stream), 0.2, monkeypatch)
    with pytest.raises(RankError, match=r"rank 0 of tp did not reach call 0 \(MIN progress\) within 0.2 s"):
        group.reduce([3, -4], Reduction.MIN, "progress")
    assert members.aborted == [1], f"RANK-8: expected rank 1 to abort its kernel on the GPU, got {members.aborted}"
