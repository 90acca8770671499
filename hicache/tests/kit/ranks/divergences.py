"""Ways in which a rank can diverge from the others, the error message of each, and the functions that a launch runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from hicache.errors import RankError
from hicache.parallel.group import Group, Reduction
from hicache.testing.ranks.world import RankWorld

Act = Callable[[Group], None]
"""What a rank does in a group."""


def usual(group: Group) -> None:
    """Three calls; the divergences change the second one."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5], Reduction.MIN, "progress")
    group.barrier("end")


def skips(group: Group) -> None:
    """Skips the second call and makes the third."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.barrier("end")


def is_silent(group: Group) -> None:
    """Makes the first call and no other one, and reports nothing."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")


def changes_operation(group: Group) -> None:
    """Computes the maximum where the others compute the minimum."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5], Reduction.MAX, "progress")


def changes_shape(group: Group) -> None:
    """Passes more values than the others."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5, 6], Reduction.MIN, "progress")


def raises(group: Group) -> None:
    """Raises between two calls."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    raise ZeroDivisionError("a defect of rank 1")


@dataclass(frozen=True, slots=True)
class Divergence:
    """What the last rank does while the others do `usual`, and the error message on each rank. `{last}`: its number."""

    act: Act
    message: str


DIVERGENCES: Mapping[str, Divergence] = {
    "skips": Divergence(skips, "rank {last} of tp skipped call 2 (MIN progress): it called barrier end instead"),
    "stays-away": Divergence(is_silent, "rank {last} of tp did not reach call 2 (MIN progress) within 0.5 s"),
    "other-operation": Divergence(changes_operation, "rank {last} of tp made call 2 (MIN progress) as MAX progress"),
    "other-shape": Divergence(
        changes_shape, "rank {last} of tp passed 3 values to call 2 (MIN progress), rank 0 passed 2"
    ),
    "raises": Divergence(
        raises,
        "rank {last} of tp skipped call 2 (MIN progress): it had raised ZeroDivisionError: a defect of rank 1",
    ),
}


# The functions that the processes of a launch run.


class TorchGroup:
    """A group of all ranks that only calls torch.distributed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()

    def reduce(self, values: list[int], reduction: Reduction, purpose: str) -> list[int]:
        """See Group."""
        tensor = torch.tensor(values)
        distributed.all_reduce(tensor, op=getattr(distributed.ReduceOp, reduction.value))
        return [int(value) for value in tensor.tolist()]

    def barrier(self, purpose: str) -> None:
        """See Group."""
        distributed.barrier()


def groups_of(world: RankWorld) -> Mapping[str, Group]:
    """The groups of a world, opened as a cache opens them."""
    return world.groups(lambda: {"tp": TorchGroup("tp")})  # type: ignore[dict-item]


def reduces(world: RankWorld, number: int) -> tuple[int, list[int], str]:
    """A reduction over all ranks, and the id of this process."""
    least = groups_of(world)["tp"].reduce([world.rank + number], Reduction.MIN, "numbers")
    return os.getpid(), least, world.device


def diverges(world: RankWorld, divergence: str) -> str:
    """The last rank diverges from the others."""
    group = groups_of(world)["tp"]
    (DIVERGENCES[divergence].act if group.rank == group.size - 1 else usual)(group)
    return "nothing"


def ends_early(world: RankWorld) -> str:
    """Rank 1 returns after the first call."""
    group = groups_of(world)["tp"]
    group.reduce([1], Reduction.MIN, "first")
    if group.rank != 1:
        group.reduce([1], Reduction.MIN, "second")
    return "nothing"


def exits(world: RankWorld) -> None:
    """Rank 1 ends as if all was well."""
    if world.rank == 1:
        raise SystemExit(0)


def exits_at_once(_: RankWorld) -> None:
    """Every rank ends as if all was well, without the end of a Python process."""
    os._exit(0)


def one_exits_at_once(world: RankWorld) -> None:
    """Rank 1 does so, and the others wait for it."""
    if world.rank == 1:
        os._exit(0)
    groups_of(world)["tp"].barrier("begin")


def leaves_a_thread(world: RankWorld) -> None:
    """Rank 1 has a thread that never ends."""
    if world.rank == 1:
        threading.Thread(target=threading.Event().wait, name="left", daemon=False).start()


def leaves_a_fork(world: RankWorld) -> int:
    """Rank 1 forks, and the fork never ends."""
    process = os.fork() if world.rank == 1 else os.getpid()
    if process == 0:
        threading.Event().wait()
    return process


def tells_what_it_leaves(world: RankWorld, place: Path) -> None:
    """The same; the number of the fork is written to `place`."""
    process = leaves_a_fork(world)
    if world.rank == 1:
        place.write_text(str(process), encoding="ascii")


def prints_without_end(world: RankWorld) -> None:
    """Rank 1 prints, and never returns."""
    while world.rank == 1:
        os.write(1, b"x" * 4096)


def fails(world: RankWorld) -> None:
    """Each rank raises its own error."""
    raise ValueError(f"defect {world.rank + 40}")


def is_killed(world: RankWorld) -> str:
    """Rank 1 is killed between two calls; the others return the message of their error."""
    group = groups_of(world)["tp"]
    group.barrier("begin")
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.reduce([1], Reduction.MIN, "progress")
    except RankError as error:
        return str(error)
    return "nothing"


def hangs(world: RankWorld) -> None:
    """Rank 1 loops forever between two calls."""
    group = groups_of(world)["tp"]
    group.barrier("begin")
    while group.rank == 1:
        time.sleep(0.05)


def is_killed_while_another_hangs(world: RankWorld) -> None:
    """Rank 1 is killed, and rank 0 never ends."""
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def tells_and_hangs(world: RankWorld, place: Path) -> None:
    """No rank ends; the number of the process of rank 1 is written to `place`."""
    if world.rank == 1:
        place.with_suffix(".draft").write_text(str(os.getpid()), encoding="ascii")
        place.with_suffix(".draft").rename(place)
    threading.Event().wait()


def interposed(world: RankWorld, divergence: str) -> list[str]:
    """The last rank diverges from the others, in direct calls of torch.distributed."""
    world.interpose()
    tensor = torch.ones(2, dtype=torch.int64)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
    is_last = world.rank == world.topology.tp_size - 1
    if divergence == "shape" and is_last:
        tensor = torch.ones(3, dtype=torch.int64)
    if divergence != "skip" or not is_last:
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN)
    distributed.broadcast(tensor, src=0)
    distributed.barrier()
    return [f"{call} of {call.count}" for calls in world.calls.values() for call in calls]


def interposed_in_a_thread(world: RankWorld) -> list[int]:
    """Two groups of the same ranks. A thread enters the second one, on the last rank only after all have compared."""
    world.interpose()
    ranks = list(range(world.topology.tp_size))
    first, second = (distributed.new_group(ranks) for _ in range(2))
    distributed.all_reduce(torch.ones(1), group=first)
    thread = threading.Thread(target=lambda: distributed.all_reduce(torch.ones(1), group=second))
    is_last = world.rank == len(ranks) - 1
    if not is_last:
        thread.start()
        while len(world.calls) < 2:
            time.sleep(0.01)
    world.gather("between", "")
    if is_last:
        thread.start()
    thread.join()
    return [len(calls) for calls in world.calls.values()]


def catches_its_own(world: RankWorld) -> None:
    """Every rank expects and suppresses a RankError."""
    with suppress(RankError):
        diverges(world, "skips")


def makes_its_own_groups(world: RankWorld) -> None:
    """Each rank makes only the groups that it is in."""

    def open_groups() -> Mapping[str, Group]:
        distributed.new_group([world.rank])
        return {}

    world.groups(open_groups)
