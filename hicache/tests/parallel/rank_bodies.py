"""The functions that ranks run in these tests: open groups, take decisions, die, hang or be late."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

import torch
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from hicache.config import Topology
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import world_rank, world_size
from hicache.parallel.torch_group import TorchGroup, open_groups
from hicache.tests.parallel.processes import Refusal, refusal_of

LONG_DEADLINE_S = 20
"""A deadline that no rank misses."""

LATE_S = 0.7
DEAD_EXIT_CODE = 7
"""The exit code of a rank that dies."""


def device_of(kind: str, topology: Topology) -> torch.device:
    """The device of a rank: the CPU, or a GPU of its own."""
    return torch.device(kind, world_rank(topology)) if kind == "cuda" else torch.device(kind)


def answers_of(group: TorchGroup, rank: int) -> tuple[object, ...]:
    """The result of each verb for numbers that differ from rank to rank."""
    numbers = [rank, -rank, 2**62 + rank]
    least = group.reduce(numbers, Reduction.MIN, "progress")
    greatest = group.reduce(numbers, Reduction.MAX, "ended")
    first = group.broadcast(numbers, "ended")
    group.barrier("ready")
    return (group.name, group.rank, group.size, least, greatest, first)


def all_verbs(kind: str, topology: Topology, store: Store) -> dict[str, tuple[object, ...]]:
    """By axis, the result of each verb of the group."""
    groups = open_groups(topology, store, device_of(kind, topology), LONG_DEADLINE_S)
    answers = {axis: answers_of(group, world_rank(topology)) for axis, group in groups.items()}
    for group in groups.values():
        group.close()
    return answers


@dataclass(frozen=True, slots=True)
class Loss:
    """The rank that dies, the one that hangs until all others have ended, and the one that is late; device kind."""

    dead: int | None
    hung: int | None
    late: int | None
    deadline_s: float
    kind: str


def lose(loss: Loss, topology: Topology, store: FileStore) -> list[Refusal]:
    """Take decisions until a rank is lost. Returns the errors of that call and of the next."""
    groups = open_groups(topology, store, device_of(loss.kind, topology), loss.deadline_s)
    rank = world_rank(topology)
    files = [Path(f"{store.path}.{number}") for number in range(world_size(topology))]  # type: ignore[attr-defined]
    own_file = files[rank].open("w")
    # The system releases this lock when the process ends, even if it is killed.
    flock(own_file, LOCK_EX)
    for group in groups.values():
        group.barrier("ready")
    if rank == loss.dead:
        os._exit(DEAD_EXIT_CODE)
    if rank == loss.hung:
        for file in files[:rank] + files[rank + 1 :]:
            with file.open() as other:
                flock(other, LOCK_EX)
    if rank == loss.late:
        time.sleep(LATE_S)

    def step() -> list[list[int]]:
        return [group.reduce([1, 2], Reduction.MIN, "progress") for group in groups.values()]

    refusals = [refusal_of(step), refusal_of(step)]
    for group in groups.values():
        group.close()
    return refusals


def be_late(topology: Topology, store: Store) -> list[int]:
    """Rank 1 is late, within the deadline."""
    group = open_groups(topology, store, "cpu", LONG_DEADLINE_S)["tp"]
    if group.rank == 1:
        time.sleep(LATE_S)
    return group.reduce([group.rank], Reduction.MAX, "ended")


def open_without(topology: Topology, store: Store) -> Refusal | None:
    """Rank 1 does not open its groups."""
    if world_rank(topology) == 1:
        return None
    return refusal_of(lambda: open_groups(topology, store, "cpu", LATE_S))


def open_again(deadline_s: float, topology: Topology, store: Store) -> list[int]:
    """Open new groups after a call that rank 1 has missed; there rank 1 is late again, but within the deadline."""
    group = open_groups(topology, store, "cpu", deadline_s)["tp"]
    if group.rank == 1:
        time.sleep(1.2 * deadline_s)
    refusal_of(lambda: group.barrier("ready"))
    return be_late(topology, store)
