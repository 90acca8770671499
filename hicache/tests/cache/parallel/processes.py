"""Ranks as processes: run one function on every rank of a mesh; the functions, and checks of how each rank ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import axis_ranks, topology_of, world_rank, world_size
from hicache.parallel.torch_group import TorchGroup, open_groups

KILL_AFTER_S = 60
"""Ranks that hang are killed after this time, which is far beyond every deadline in these tests."""

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["hicache.testing.ranks.preloaded", "__main__", __name__, "hicache.parallel.torch_group"]
)

Body = Callable[[Topology, Store], Any]
"""The function that a rank runs. Its result is pickled."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rank ended. `value`: what its body returned, or None if it died."""

    value: Any
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The RankError that a call raised, and how many collectives of torch the call began."""

    message: str
    group: str
    ranks: tuple[int, ...]
    collectives: int


def refusal_of(call: Callable[[], object]) -> Refusal:
    """The RankError that a call raises. Raises AssertionError when it raises none."""
    with patch.object(distributed, "all_reduce", wraps=distributed.all_reduce) as begun:
        try:
            result = call()
        except RankError as error:
            return Refusal(str(error), error.group, error.ranks, begun.call_count)
    raise AssertionError(f"expected a RankError, the call returned {result!r}")


def run_ranks(
    body: Body, folder: Path, mesh: Topology, backend: str = "gloo", environment: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Run `body` on every rank of the mesh at once, in a process group. Raises AssertionError when a rank hangs.

    `environment`: variables of the processes. One that has them ends at once after its body, where torch may wait.
    """
    pipes, processes = [], []
    for rank in range(world_size(mesh)):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(
            target=_run_rank, args=(body, folder / "store", place_in(mesh, rank), backend, environment or {}, theirs)
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        _wait_for([process.sentinel for process in processes])
        return [Outcome(_received(pipe), process.exitcode) for pipe, process in zip(pipes, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()


def _wait_for(sentinels: list[int]) -> None:
    limit_s, waiting = time.monotonic() + KILL_AFTER_S, list(sentinels)
    while waiting:
        ended = wait(waiting, limit_s - time.monotonic())
        assert ended, f"ranks {[sentinels.index(sentinel) for sentinel in waiting]} hang after {KILL_AFTER_S} s"
        waiting = [sentinel for sentinel in waiting if sentinel not in ended]


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _run_rank(
    body: Body, path: Path, topology: Topology, backend: str, environment: Mapping[str, str], pipe: Connection
) -> None:
    os.environ.update(environment, GLOO_SOCKET_IFNAME="lo")
    size, rank = world_size(topology), world_rank(topology)
    store = FileStore(str(path), size)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    pipe.send(body(topology, store))
    if environment:
        os._exit(0)


def place_in(mesh: Topology, rank: int) -> Topology:
    """The place of a world rank in a mesh. `mesh`: any place of that mesh."""
    return topology_of(rank, tp_size=mesh.tp_size, cp_size=mesh.cp_size, pp_size=mesh.pp_size, dp_size=mesh.dp_size)


# The functions that ranks run: they open groups, take decisions, die, hang or are late.

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
    groups.close()
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
    groups.close()
    return refusals


def reduce_other_lengths(lengths: Mapping[int, int], reduction: Reduction, topology: Topology, store: Store) -> str:
    """Reduce a list whose length is that of this rank in `lengths`. Returns the text of the error that it raises."""
    group = open_groups(topology, store, "cpu", 60)["tp"]
    try:
        result = group.reduce(list(range(lengths[topology.tp_rank])), reduction, "progress")
    except RankError as error:
        return str(error)
    raise AssertionError(f"expected a RankError, rank {topology.tp_rank} got {result}")


def be_late(topology: Topology, store: Store) -> list[int]:
    """Rank 1 is late, within the deadline."""
    group = open_groups(topology, store, "cpu", LONG_DEADLINE_S)["tp"]
    if group.rank == 1:
        time.sleep(LATE_S)
    return group.reduce([group.rank], Reduction.MAX, "ended")


def open_without(topology: Topology, store: Store) -> Refusal | None:
    """Rank 1 does not open its groups. It stays until rank 0 was refused: gloo names the end of a process first."""
    if world_rank(topology) == 1:
        store.wait(["refused"])
        return None
    refusal = refusal_of(lambda: open_groups(topology, store, "cpu", LATE_S))
    store.set("refused", "")
    return refusal


def open_again(deadline_s: float, topology: Topology, store: Store) -> list[int]:
    """Open new groups after a call that rank 1 has missed; there rank 1 is late again, but within the deadline."""
    group = open_groups(topology, store, "cpu", deadline_s)["tp"]
    if group.rank == 1:
        time.sleep(1.2 * deadline_s)
    refusal_of(lambda: group.barrier("ready"))
    return be_late(topology, store)


# Checks: of all ranks when none is lost, and of the survivors when some are.


def check_agreed(outcomes: list[Outcome], mesh: Topology) -> None:
    """Check that each group of the mesh reduced the numbers of its own ranks."""
    for axis, lists in axis_ranks(mesh).items():
        for ranks in (ranks for ranks in lists if len(ranks) > 1):
            low, high = min(ranks), max(ranks)
            least, greatest = [low, -high, 2**62 + low], [high, -low, 2**62 + high]
            first = [low, -low, 2**62 + low]
            for place, rank in enumerate(ranks):
                expected = (axis, place, len(ranks), least, greatest, first)
                found = outcomes[rank].value[axis]
                assert found == expected, f"RANK-4: rank {rank} of {ranks}: expected {expected}, got {found}"


def check_named(outcomes: Mapping[int, Outcome], group: str, ranks: tuple[int, ...]) -> None:
    """Check that every survivor named these ranks of the group, began no collective in the next call, and ended.

    test_rank_monitor.py tests how long a survivor waits, on a virtual clock.
    """
    messages = {outcome.value[0].message for outcome in outcomes.values()}
    assert len(messages) == 1, f"RANK-8: the survivors raise {messages}"
    for rank, outcome in outcomes.items():
        first, second = outcome.value
        assert (first.group, first.ranks) == (group, ranks), f"RANK-8: expected {ranks}, rank {rank} says {first}"
        assert "(MIN progress)" in first.message, f"RANK-8: expected the purpose, MIN progress, in {first.message!r}"
        assert second.message == first.message, f"RANK-8: rank {rank} says {first.message}, then {second.message}"
        assert second.collectives == 0, (
            f"RANK-8: rank {rank} began {second.collectives} collectives in a group that has failed, expected none"
        )
        assert outcome.exit_code == 0, f"RANK-8: rank {rank} ended with {outcome.exit_code}"


def survivors(outcomes: list[Outcome], *lost: int) -> dict[int, Outcome]:
    """The outcomes of all ranks that were not lost, by rank."""
    return {rank: outcome for rank, outcome in enumerate(outcomes) if rank not in lost}
