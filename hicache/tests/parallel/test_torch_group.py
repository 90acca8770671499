"""TorchGroup on stand-ins for torch's process groups: where its numbers live, and which groups a rank asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode

from hicache.clock import VirtualClock, WallClock
from hicache.config import SINGLE_RANK, Topology
from hicache.errors import ConfigurationError, RankError
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import places, topology_of, world_rank
from hicache.parallel.roll_call import RollCall
from hicache.parallel.torch_group import TorchGroup, _make_groups, open_groups

GPU = torch.device("cuda", 1)
TP_2 = topology_of(1, tp_size=2, cp_size=1, pp_size=1, dp_size=1)
TWO_BY_TWO_BY_TWO = topology_of(0, tp_size=2, cp_size=2, pp_size=2, dp_size=1)


class OnGpu(torch.Tensor):
    """Numbers in host memory that say that they are on the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU


class PretendGpu(TorchFunctionMode):
    """What is made on the GPU, and only that, is OnGpu."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") != GPU:
            return function(*args, **kwargs)
        del kwargs["device"]
        return function(*args, **kwargs).as_subclass(OnGpu)


@dataclass(frozen=True, slots=True)
class Members:
    """A process group as seen by one of its ranks."""

    ranks: list[int]
    own: int
    aborted: list[int]

    def rank(self) -> int:
        return self.ranks.index(self.own)

    def size(self) -> int:
        return len(self.ranks)

    def abort(self) -> None:
        self.aborted.append(self.own)


class Later:
    """What a GPU works at: a collective or a stream. `looks`: how often it is asked before it has ended."""

    def __init__(self, looks: float) -> None:
        self.looks = looks

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    query = is_completed

    def wait(self) -> bool:
        return True


def a_roll_call(topology: Topology) -> RollCall:
    clock = VirtualClock()
    return RollCall(HashStore(), topology, 5, clock, clock.advance)


def hand_back(work: Later, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Let torch reduce nothing, and keep what it is given."""
    given: list[torch.Tensor] = []

    def all_reduce(numbers: torch.Tensor, *_: Any, **__: Any) -> Later:
        given.append(numbers)
        return work

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return given


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


def test_every_rank_asks_for_all_groups_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[int, list[Any]] = {}
    for rank, place in enumerate(places(TWO_BY_TWO_BY_TWO)):
        asked[rank] = []

        def new_group(ranks: list[int], rank: int = rank, **options: Any) -> Members:
            asked[rank].append((ranks, options))
            return Members(ranks, rank, [])

        monkeypatch.setattr(distributed, "new_group", new_group)
        own = _make_groups(place, torch.device("cpu"), 5, a_roll_call(place))
        assert list(own) == ["tp", "cp", "pp"], f"RANK-4: rank {rank} has groups along {list(own)}"
        for axis, group in own.items():
            assert group.rank == getattr(place, f"{axis}_rank"), f"RANK-5: rank {rank} is {group.rank} of {axis}"
    lists = [ranks for ranks, _ in asked[0]]
    assert len(lists) == 12, f"RANK-6: four groups along each of three axes, asked for were {lists}"
    for rank, calls in asked.items():
        assert calls == asked[0], f"RANK-6: rank {rank} asked for {calls}, rank 0 for {asked[0]}"


def test_gloo_gives_up_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def new_group(ranks: list[int], **options: Any) -> Members:
        asked.append(options)
        return Members(ranks, 1, [])

    monkeypatch.setattr(distributed, "new_group", new_group)
    _make_groups(TP_2, torch.device("cpu"), 5, a_roll_call(TP_2))
    expected = [{"timeout": timedelta(seconds=5), "backend": "gloo"}]
    assert asked == expected, f"RANK-8: a process with an unfinished call could not end: {asked}"


def test_a_rank_alone_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: asked.append(ranks))
    assert _make_groups(SINGLE_RANK, torch.device("cpu"), 5, a_roll_call(SINGLE_RANK)) == {}, "nobody to agree with"
    assert asked == [], f"torch was asked for {asked}"


def test_a_mesh_that_is_not_the_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    with pytest.raises(ConfigurationError, match="is rank 1 of 2, torch says rank 1 of 4"):
        open_groups(TP_2, HashStore(), "cpu", 5)
    assert world_rank(TP_2) == 1, "the rank is right, the size is not"


def test_a_device_without_a_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="groups are on cpu or cuda, not on meta"):
        open_groups(TP_2, HashStore(), "meta", 5)
