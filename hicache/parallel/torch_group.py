"""TorchGroup: a group on torch.distributed, with gloo or NCCL; open_groups makes all groups of a rank."""

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
from hicache.errors import ConfigurationError, InvariantError
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import axis_ranks, world_rank, world_size
from hicache.parallel.rank_monitor import Call, RankMonitor

LEAST = -(2**63)
BLOCK = 64
"""Numbers in one collective of any rank: with tensors of unequal lengths gloo ends the process, and NCCL may hang."""

POLL_S = 20e-6
"""Seconds between two checks of a GPU: about as long as a reduction of a few numbers takes."""

NCCL_DEADLINES = 4
"""NCCL's own timeout, in deadlines. It ends the process, so it comes after the missing rank has been named."""

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
OPERATIONS = {Reduction.MIN: distributed.ReduceOp.MIN, Reduction.MAX: distributed.ReduceOp.MAX}


class TorchGroup:
    """A Group on a process group of torch.distributed. Numbers are sent as int64 tensors on `device`.

    Every verb is a reduction: in torch's own broadcast the first rank would go on while another is dead. It is one
    collective for up to BLOCK - 2 values, and always one that tells whether all ranks have as many values. `stream`:
    the CUDA stream on which collectives run, so that they do not wait for the model; None on other devices. A call that
    has not ended by the deadline of `monitor` raises RankError, and so does every later call on any group of the rank.
    """

    def __init__(
        self,
        name: str,
        process_group: distributed.ProcessGroup,
        device: torch.device,
        stream: torch.cuda.Stream | None,
        monitor: RankMonitor,
    ) -> None:
        self.name = name
        self.rank = process_group.rank()
        self.size = process_group.size()
        self._process_group = process_group
        self._device = device
        self._stream = stream
        self._monitor = monitor
        self._calls = 0

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        return self._call(values, reduction, f"{reduction.value} {purpose}")

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        own = values if self.rank == 0 else [LEAST] * len(values)
        return self._call(own, Reduction.MAX, f"broadcast {purpose}")

    def barrier(self, purpose: str) -> None:
        self._call([0], Reduction.MIN, f"barrier {purpose}")

    def close(self) -> None:
        """Destroy the process group."""
        distributed.destroy_process_group(self._process_group)

    def _call(self, values: Sequence[int], reduction: Reduction, what: str) -> list[int]:
        call = self._monitor.begin(self.name, self._calls, what)
        self._calls += 1
        sent = [len(values), -len(values), *values]
        first, second, *reduced = self._reduced(sent[:BLOCK], reduction, call)
        least, greatest = sorted((first, -second))
        if least != greatest:
            raise InvariantError(
                f"RANK-1: the ranks of {self.name} diverged: in {what} they have {least} to {greatest} values"
            )
        for begin in range(BLOCK, len(sent), BLOCK):
            reduced += self._reduced(sent[begin : begin + BLOCK], reduction, call)
        return reduced[: len(values)]

    def _reduced(self, values: Sequence[int], reduction: Reduction, call: Call) -> list[int]:
        padded = [*values, *[0] * (BLOCK - len(values))]
        with torch.cuda.stream(self._stream):
            numbers = torch.tensor(padded, dtype=torch.int64, device=self._device)
            try:
                self._reduce(numbers, reduction, call)
            except (RuntimeError, TimeoutError) as error:
                verdict = self._monitor.verdict(call, error)
                self._abort()
                raise verdict from error
            return [int(number) for number in numbers.tolist()]

    def _reduce(self, numbers: torch.Tensor, reduction: Reduction, call: Call) -> None:
        work = distributed.all_reduce(numbers, OPERATIONS[reduction], group=self._process_group, async_op=True)
        if work is None:
            raise RuntimeError(f"this process is not in the group {self.name}")
        if self._stream is None:
            self._await(work.is_completed, partial(_wait_briefly, work, self._monitor.poll_s), call)
            work.wait()
        else:
            # NCCL reports a collective as completed also when it has failed. The stream then never becomes idle.
            self._await(work.is_completed, partial(time.sleep, POLL_S), call)
            work.wait()
            self._await(self._stream.query, partial(time.sleep, POLL_S), call)

    def _await(self, is_done: Callable[[], bool], pause: Callable[[], object], call: Call) -> None:
        next_check_s = time.monotonic() + self._monitor.poll_s
        while not is_done():
            pause()
            if time.monotonic() < next_check_s:
                continue
            if self._monitor.must_give_up(call) and not is_done():
                raise TimeoutError(f"{call} of {self.name} has not ended")
            next_check_s = time.monotonic() + self._monitor.poll_s

    def _abort(self) -> None:
        if self._stream is not None:  # NCCL's kernel would wait on the GPU for ever; gloo ends the call itself
            self._process_group.abort()


def _wait_briefly(work: distributed.Work, seconds: float) -> None:
    with suppress(RuntimeError):  # a timeout, or a failure, which the final wait() raises again
        work.wait(timedelta(seconds=seconds))


def open_groups(
    topology: Topology, store: Store, device: str | torch.device, timeout_s: float
) -> dict[str, TorchGroup]:
    """The groups of this rank by axis; none along an axis of one rank. Every world rank calls this with the same mesh.

    `torch.distributed` is initialised before; its ranks are the world ranks of the mesh, on any number of hosts.
    `store`: a store that all ranks reach and that outlives each of them: torchrun's, or the one that the process group
    was made with. `device`: the device of this rank, such as `cuda:1`; gloo serves a CPU, NCCL a GPU. `timeout_s`: the
    deadline of every call, and of opening; a missing rank is named within about one and a half times this deadline.
    Raises ConfigurationError when the mesh differs from torch's world or no backend serves the device, RankError when a
    rank is missing.
    """
    own_device = torch.device(device)
    _check(topology, own_device)
    monitor = RankMonitor(_own_keys(store, topology), topology, timeout_s, WallClock(), time.sleep)
    opening = monitor.begin("world", 0, "opening")
    try:
        monitor.wait_for_all(opening)
        groups = _make_groups(topology, own_device, timeout_s, monitor)
    except (RuntimeError, TimeoutError) as error:
        raise monitor.verdict(opening, error) from error
    for group in groups.values():
        group.barrier("opening")
    return groups


def _check(topology: Topology, device: torch.device) -> None:
    if device.type not in BACKENDS:
        raise ConfigurationError(f"the device of a group is {' or '.join(BACKENDS)}, got {device}")
    mesh = (world_rank(topology), world_size(topology))
    world = (distributed.get_rank(), distributed.get_world_size())
    if mesh != world:
        raise ConfigurationError(f"{topology} is rank {mesh[0]} of {mesh[1]}, torch says rank {world[0]} of {world[1]}")


def _own_keys(store: Store, topology: Topology) -> Store:
    """A part of the store for this opening alone. Each rank counts its own openings: all ranks open equally often."""
    opening = store.add(f"hicache/openings/{world_rank(topology)}", 1)
    return PrefixStore(f"hicache/{opening}/{topology.dp_rank}", store)


def _make_groups(
    topology: Topology, device: torch.device, timeout_s: float, monitor: RankMonitor
) -> dict[str, TorchGroup]:
    is_gpu = device.type == "cuda"
    stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]
    timeout = timedelta(seconds=timeout_s * (NCCL_DEADLINES if is_gpu else 1))
    groups = {}
    for axis, lists in axis_ranks(topology).items():
        for ranks in (ranks for ranks in lists if len(ranks) > 1):
            made = distributed.new_group(list(ranks), timeout=timeout, backend=BACKENDS[device.type])
            if world_rank(topology) in ranks:
                groups[axis] = TorchGroup(axis, made, device, stream, monitor)
    return groups
