"""TorchGroup and open_groups on stand-ins: the device of tensors, waits for a GPU, and the groups of torch."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode

from hicache.clock import VirtualClock, WallClock
from hicache.config import SINGLE_RANK, Topology
from hicache.errors import ConfigurationError, InvariantError, RankError
from hicache.parallel.communicators import Communicators
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import axis_ranks, places, topology_of, world_rank
from hicache.parallel.rank_monitor import RankMonitor
from hicache.parallel.torch_group import TorchGroup, open_groups
from hicache.tests.cache.parallel.fake_world import fake_world

GPU = torch.device("cuda", 1)
TWO_BY_TWO_BY_TWO = topology_of(0, tp_size=2, cp_size=2, pp_size=2, dp_size=1)
TP_2 = topology_of(1, tp_size=2, cp_size=1, pp_size=1, dp_size=1)


BLOCKED_S = 10.0
"""How long a stand-in of NCCL blocks: far beyond the deadline, and not forever, so that a test fails by itself."""


class OnGpu(torch.Tensor):
    """A tensor in host memory whose `device` is the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU


class PretendGpu(TorchFunctionMode):
    """Makes tensors that are created on the GPU, and only those, OnGpu."""

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
    """A collective or a stream of a GPU that is busy. `polls`: how often it answers that it has not ended."""

    def __init__(self, polls: float) -> None:
        self.polls = polls

    def is_completed(self) -> bool:
        self.polls -= 1
        return self.polls < 0

    query = is_completed

    def wait(self) -> bool:
        return True


def lone_monitor(topology: Topology) -> RankMonitor:
    """The monitor of a rank to which no other rank answers."""
    clock = VirtualClock()
    return RankMonitor(HashStore(), topology, 5, clock, clock.advance)


def record_reductions(work: Later, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Replace torch's all_reduce by one that returns `work`. Returns the list of the tensors that it is called with."""
    reduced: list[torch.Tensor] = []

    def all_reduce(numbers: torch.Tensor, *_: Any, **__: Any) -> Later:
        reduced.append(numbers)
        return work

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return reduced


class Options:
    """The options of a process group of NCCL, which a build of torch for the CPU does not have."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream


def made(members: Members, device: torch.device, stream: Any, monkeypatch: pytest.MonkeyPatch) -> Communicators:
    """The communicators of a rank whose only group is along tp."""
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(distributed, "new_group", lambda *_, **__: members)
    communicators = Communicators(device, stream, 5)
    communicators.add("tp", members.ranks, members.own)
    return communicators


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
    group = TorchGroup("tp", made(Members([0, 1], 1, []), GPU, None, monkeypatch), lone_monitor(TP_2))
    with PretendGpu():
        verb(group)
    found = [(numbers.device, numbers.dtype) for numbers in reduced]
    expected = [(GPU, torch.int64)]
    assert found == expected, f"RANK-3: the group's device is {GPU}: expected a tensor of {expected}, got {found}"


def on_a_gpu(members: Members, stream: Later, timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> TorchGroup:
    """A group with the stream of a GPU, whose tensors are on the CPU."""
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monitor = RankMonitor(HashStore(), TP_2, timeout_s, WallClock(), time.sleep)
    return TorchGroup("tp", made(members, torch.device("cpu"), stream, monkeypatch), monitor)


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


class Blocked:
    """A communicator whose abort waits until that of every other one was called, as ncclCommAbort waits for the GPU.

    Its kernel runs there until its own abort is called.
    """

    def __init__(self, ranks: list[int], all_called: threading.Barrier, ended: list[list[int]]) -> None:
        self.ranks = ranks
        self._all_called = all_called
        self._ended = ended

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return len(self.ranks)

    def abort(self) -> None:
        self._all_called.wait(BLOCKED_S)
        self._ended.append(self.ranks)


def fail_a_call(groups: Iterable[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of 2x2x2 makes a call of tp that no other rank joins. `groups`: those that torch makes, in order."""
    left = iter(groups)
    monkeypatch.setattr(distributed, "new_group", lambda *_, **__: next(left))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    record_reductions(Later(math.inf), monkeypatch)
    communicators = Communicators(torch.device("cpu"), Later(0), 0.2)  # type: ignore[arg-type]
    communicators.make(TWO_BY_TWO_BY_TWO)
    monitor = RankMonitor(HashStore(), TWO_BY_TWO_BY_TWO, 0.2, WallClock(), time.sleep)
    with pytest.raises(RankError, match="did not reach call 0"):
        TorchGroup("tp", communicators, monitor).reduce([3], Reduction.MIN, "progress")


def test_after_a_failure_the_communicators_of_all_axes_are_aborted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[list[int]] = []
    all_called = threading.Barrier(3)
    lists = [list(ranks) for lists in axis_ranks(TWO_BY_TWO_BY_TWO).values() for ranks in lists]
    fail_a_call((Blocked(ranks, all_called, ended) for ranks in lists), monkeypatch)
    expected = [[0, 1], [0, 2], [0, 4]]
    assert sorted(ended) == expected, f"RANK-8: expected the groups {expected} of rank 0 to be aborted, got {ended}"


def test_an_abort_that_never_ends_does_not_hide_the_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Barrier(4)
    lists = [list(ranks) for lists in axis_ranks(TWO_BY_TWO_BY_TWO).values() for ranks in lists]
    fail_a_call((Blocked(ranks, never, []) for ranks in lists), monkeypatch)
    assert never.n_waiting == 3, f"RANK-8: expected the error while 3 aborts wait, got {never.n_waiting} that do"
    never.abort()


def test_a_close_on_a_gpu_whose_peer_has_died_ends_with_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "destroy_process_group", lambda _: threading.Event().wait(BLOCKED_S))
    members = Members([0, 1], 1, [])
    monkeypatch.setattr(distributed, "new_group", lambda *_, **__: members)
    communicators = Communicators(torch.device("cpu"), Later(0), 0.2)  # type: ignore[arg-type]
    communicators.make(TP_2)
    communicators.close()
    assert members.aborted == [1], f"NCCL waits for rank 0: expected rank 1 to abort its group, got {members.aborted}"


# open_groups: which groups a rank creates in torch, and when.


def test_every_rank_creates_all_groups_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    created: dict[int, list[Any]] = {}
    for rank, place in enumerate(places(TWO_BY_TWO_BY_TWO)):
        created[rank] = []

        def new_group(ranks: list[int], rank: int = rank, **options: Any) -> Members:
            created[rank].append((ranks, options))
            return Members(ranks, rank, [])

        monkeypatch.setattr(distributed, "new_group", new_group)
        communicators = Communicators(torch.device("cpu"), None, 5)
        communicators.make(place)
        own = list(communicators.axes)
        assert own == ["tp", "cp", "pp"], f"RANK-4: rank {rank} has groups along {own}"
        for axis in own:
            group = TorchGroup(axis, communicators, lone_monitor(place))
            assert group.rank == getattr(place, f"{axis}_rank"), f"RANK-5: rank {rank} is {group.rank} of {axis}"
    lists = [ranks for ranks, _ in created[0]]
    assert len(lists) == 12, f"RANK-6: expected four groups along each of three axes, got {lists}"
    for rank, calls in created.items():
        assert calls == created[0], f"RANK-6: rank {rank} creates {calls}, rank 0 creates {created[0]}"


def test_the_timeout_of_gloo_is_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Any] = []

    def new_group(ranks: list[int], **options: Any) -> Members:
        created.append(options)
        return Members(ranks, 1, [])

    monkeypatch.setattr(distributed, "new_group", new_group)
    Communicators(torch.device("cpu"), None, 5).make(TP_2)
    expected = [{"timeout": timedelta(seconds=5), "backend": "gloo"}]
    assert created == expected, (
        f"RANK-8: with another timeout a process with an unfinished call cannot end: expected {expected}, got {created}"
    )


def test_agreements_run_before_the_kernels_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, made = list[Any](), list[Any]()

    def new_group(ranks: list[int], **options: Any) -> Members:
        made.append(options)
        return Members(ranks, 1, [])

    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority=0: streams.append((device, priority)))
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(distributed, "new_group", new_group)
    Communicators.on(GPU, 5).make(TP_2)
    assert streams == [(GPU, -1)], f"expected one stream of high priority on {GPU}, got {streams}"
    assert len(made) == 1, f"expected one group, got {made}"
    options = made[0]["pg_options"]
    assert options.is_high_priority_stream, "expected NCCL to run its kernels on a stream of high priority"


def test_a_single_rank_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Any] = []
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: created.append(ranks))
    communicators = Communicators(torch.device("cpu"), None, 5)
    communicators.make(SINGLE_RANK)
    assert not communicators.axes, f"expected no group for a single rank, got {communicators.axes}"
    assert created == [], f"expected no group in torch, got {created}"


def test_torch_makes_no_group_before_every_rank_has_reached_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Any] = []
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: created.append(ranks))
    with pytest.raises(RankError, match=r"rank 0 of world did not reach call 0 \(opening\)"):
        open_groups(TP_2, HashStore(), "cpu", 0.2)
    assert created == [], f"RANK-8: NCCL would wait for rank 0 in a group of {created}"


def blocks(*_: Any, **__: Any) -> Any:
    """NCCL blocks in the first collective of a group until every rank has come: here one has died."""
    threading.Event().wait(BLOCKED_S)
    raise InvariantError(f"no call gave up on NCCL in {BLOCKED_S:g} s")


def test_a_rank_that_dies_before_the_first_collective_is_named_by_those_that_block_in_it() -> None:
    expected = r"rank 0 of tp did not reach call 0 \(barrier opening\) within 0.2 s"
    with (
        fake_world(TP_2) as world,
        patch.object(distributed, "all_reduce", blocks),
        pytest.raises(RankError, match=expected),
    ):
        open_groups(TP_2, world.store, "cpu", 0.2)


def test_a_rank_that_dies_while_groups_are_made_is_named_by_those_that_block_in_it() -> None:
    expected = r"rank 0 of world did not reach call 1 \(connecting\) within 0.2 s"
    with (
        fake_world(TP_2) as world,
        patch.object(distributed, "new_group", blocks),
        pytest.raises(RankError, match=expected),
    ):
        open_groups(TP_2, world.store, "cpu", 0.2)


def test_a_group_that_is_made_after_all_have_given_up_is_destroyed() -> None:
    was_made, has_failed, before = threading.Event(), threading.Event(), set(threading.enumerate())
    with fake_world(TWO_BY_TWO_BY_TWO) as world:

        def late(ranks: list[int], **options: Any) -> Any:
            has_failed.wait(BLOCKED_S)
            made = world.new_group(ranks, **options)
            was_made.set()
            return made

        refused = pytest.raises(RankError, match=r"did not reach call 1 \(connecting\)")
        with patch.object(distributed, "new_group", late), refused:
            open_groups(TWO_BY_TWO_BY_TWO, world.store, "cpu", 0.2)
        has_failed.set()
        assert was_made.wait(BLOCKED_S), "the thread that was given up on did not go on"
        for thread in set(threading.enumerate()) - before:
            thread.join(BLOCKED_S)
        assert len(world.made) == 1, f"expected no further group after the first late one, got {world.made}"
        assert world.open_groups == 0, f"expected the late group to be destroyed, torch has {world.open_groups}"


def test_each_group_is_opened_with_one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = record_reductions(Later(0), monkeypatch)
    monkeypatch.setattr(RankMonitor, "wait_for_all", lambda *_: None)
    monkeypatch.setattr(distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(distributed, "new_group", lambda ranks, **_: Members(ranks, 0, []))
    groups = open_groups(TWO_BY_TWO_BY_TWO, HashStore(), "cpu", 5)
    assert len(reduced) == len(groups) == 3, (
        f"NCCL connects in the first collective: expected 3 groups with one each, got {len(groups)} and {len(reduced)}"
    )


def test_a_mesh_that_is_not_the_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    with pytest.raises(ConfigurationError, match="is rank 1 of 2, torch says rank 1 of 4"):
        open_groups(TP_2, HashStore(), "cpu", 5)
    assert world_rank(TP_2) == 1, f"expected torch and the mesh to differ in the size alone, got {world_rank(TP_2)}"


def test_a_device_without_a_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the device of a group is cpu or cuda, got meta"):
        open_groups(TP_2, HashStore(), "meta", 5)
