"""TorchGroup: a group on torch.distributed, with gloo or NCCL; open_groups makes those of a rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from hicache.clock import WallClock
from hicache.config import Topology
from hicache.errors import ConfigurationError
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import axis_ranks, world_rank, world_size
from hicache.parallel.roll_call import Call, RollCall

LEAST = -(2**63)
POLL_S = 20e-6
"""Between two looks at a GPU: a reduction of a few numbers takes as long."""

NCCL_DEADLINES = 4
"""NCCL's own timeout, which ends the process: late enough that a rank is named before."""

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
OPERATIONS = {Reduction.MIN: distributed.ReduceOp.MIN, Reduction.MAX: distributed.ReduceOp.MAX}


class TorchGroup:
    """A Group on a process group of torch.distributed. Numbers travel as int64 on `device`.

    Every verb is one reduction: in a broadcast of torch's the first rank would go on while another is dead. `stream`:
    where a GPU's part of it runs, so that it does not wait for the model; None for another device. A call that has not
    ended after the deadline of `roll_call` raises RankError, and so does every later call on any group of the rank.
    """

    def __init__(
        self,
        name: str,
        process_group: distributed.ProcessGroup,
        device: torch.device,
        stream: torch.cuda.Stream | None,
        roll_call: RollCall,
    ) -> None:
        self.name = name
        self.rank = process_group.rank()
        self.size = process_group.size()
        self._process_group = process_group
        self._device = device
        self._stream = stream
        self._roll_call = roll_call
        self._calls = 0

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        return self._call(values, reduction, f"{reduction.value} {purpose}")

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        own = values if self.rank == 0 else [LEAST] * len(values)
        return self._call(own, Reduction.MAX, f"broadcast {purpose}")

    def barrier(self, purpose: str) -> None:
        self._call([0], Reduction.MIN, f"barrier {purpose}")

    def close(self) -> None:
        """Give the process group back to torch."""
        distributed.destroy_process_group(self._process_group)

    def _call(self, values: Sequence[int], reduction: Reduction, what: str) -> list[int]:
        call = self._roll_call.enter(self.name, self._calls, what)
        self._calls += 1
        with torch.cuda.stream(self._stream):
            numbers = torch.tensor(values, dtype=torch.int64, device=self._device)
            try:
                self._reduce(numbers, reduction, call)
            except (RuntimeError, TimeoutError) as error:
                verdict = self._roll_call.conclude(call, error)
                self._abort()
                raise verdict from error
            return [int(number) for number in numbers.tolist()]

    def _reduce(self, numbers: torch.Tensor, reduction: Reduction, call: Call) -> None:
        work = distributed.all_reduce(numbers, OPERATIONS[reduction], group=self._process_group, async_op=True)
        if work is None:
            raise RuntimeError(f"this process is not in the group {self.name}")
        if self._stream is None:
            self._await(work.is_completed, partial(_doze, work, self._roll_call.beat_s), call)
            work.wait()
        else:
            # NCCL calls a work completed also when it has failed: then the stream never comes to its end.
            self._await(work.is_completed, partial(time.sleep, POLL_S), call)
            work.wait()
            self._await(self._stream.query, partial(time.sleep, POLL_S), call)

    def _await(self, is_there: Callable[[], bool], doze: Callable[[], object], call: Call) -> None:
        look_s = time.monotonic() + self._roll_call.beat_s
        while not is_there():
            doze()
            if time.monotonic() < look_s:
                continue
            if self._roll_call.is_lost(call) and not is_there():
                raise TimeoutError(f"{call} of {self.name} has not ended")
            look_s = time.monotonic() + self._roll_call.beat_s

    def _abort(self) -> None:
        if self._stream is not None:  # the kernel on the GPU waits for ever; gloo gives up by itself
            self._process_group.abort()


def _doze(work: distributed.Work, seconds: float) -> None:
    with suppress(RuntimeError):  # not yet, or a failure: it is raised again when the work is completed
        work.wait(timedelta(seconds=seconds))


def open_groups(
    topology: Topology, store: Store, device: str | torch.device, timeout_s: float
) -> dict[str, TorchGroup]:
    """The groups of this rank by axis; none along an axis of one rank. Every world rank calls it, with one mesh.

    `torch.distributed` is initialised before, its ranks being those of the mesh, on as many hosts as there are.
    `store`: reached by all ranks, and outliving each: torchrun's, or the one that the process group was made with.
    `device`: of this rank, such as `cuda:1`; gloo on a CPU, NCCL on a GPU. `timeout_s`: the deadline of every call, and
    of the opening; a rank that does not come is named within about one and a half of it.
    Raises ConfigurationError when the mesh is not the world or no backend serves the device, RankError when a rank does
    not come.
    """
    place = torch.device(device)
    _check(topology, place)
    roll_call = RollCall(_own_keys(store, topology), topology, timeout_s, WallClock(), time.sleep)
    opening = roll_call.enter("world", 0, "opening")
    try:
        roll_call.assemble(opening)
        groups = _make_groups(topology, place, timeout_s, roll_call)
    except (RuntimeError, TimeoutError) as error:
        raise roll_call.conclude(opening, error) from error
    for group in groups.values():
        group.barrier("opening")
    return groups


def _check(topology: Topology, device: torch.device) -> None:
    if device.type not in BACKENDS:
        raise ConfigurationError(f"groups are on {' or '.join(BACKENDS)}, not on {device}")
    mesh = (world_rank(topology), world_size(topology))
    world = (distributed.get_rank(), distributed.get_world_size())
    if mesh != world:
        raise ConfigurationError(f"{topology} is rank {mesh[0]} of {mesh[1]}, torch says rank {world[0]} of {world[1]}")


def _own_keys(store: Store, topology: Topology) -> Store:
    """A part of the store for this opening alone. Each rank counts its own: all have opened as often."""
    opening = store.add(f"hicache/openings/{world_rank(topology)}", 1)
    return PrefixStore(f"hicache/{opening}/{topology.dp_rank}", store)


def _make_groups(
    topology: Topology, device: torch.device, timeout_s: float, roll_call: RollCall
) -> dict[str, TorchGroup]:
    is_gpu = device.type == "cuda"
    stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]
    timeout = timedelta(seconds=timeout_s * (NCCL_DEADLINES if is_gpu else 1))
    groups = {}
    for axis, lists in axis_ranks(topology).items():
        for ranks in (ranks for ranks in lists if len(ranks) > 1):
            made = distributed.new_group(list(ranks), timeout=timeout, backend=BACKENDS[device.type])
            if world_rank(topology) in ranks:
                groups[axis] = TorchGroup(axis, made, device, stream, roll_call)
    return groups
