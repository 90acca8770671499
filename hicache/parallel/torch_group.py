"""TorchGroup: a group on torch.distributed, with gloo or NCCL; open_groups makes all groups of a rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from types import TracebackType

from hicache.bounded import bounded
from hicache.clock import WallClock
from hicache.config import Topology
from hicache.errors import ConfigurationError, RankError
from hicache.optional_torch import PrefixStore, Store, distributed, require_torch, torch
from hicache.parallel.communicators import BACKENDS, Communicators
from hicache.parallel.group import GREATEST, Reduction
from hicache.parallel.mesh import world_rank, world_size
from hicache.parallel.rank_monitor import Call, DivergedError, RankMonitor

BLOCK = 64
"""Numbers in the first collective of any call: where lengths differ, gloo ends the process, and NCCL may hang."""

POLL_S = 20e-6
"""Seconds between two checks of a GPU: about as long as a reduction of a few numbers takes."""


class TorchGroup:
    """A Group on a process group of torch.distributed. Numbers are sent as int64 tensors on the communicators' device.

    Every verb is a MIN: in torch's own broadcast the first rank would go on while another is dead, and ranks that
    reduce by MIN and MAX at once get different results. It is one collective for up to BLOCK - 2 values, and two for
    more. The first numbers tell whether all ranks are in the same call with as many values. A call that differs, or has
    not ended by the deadline of `monitor`, raises RankError, and so does every later call on any group of the rank.
    """

    def __init__(self, name: str, communicators: Communicators, monitor: RankMonitor) -> None:
        process_group = communicators.group(name)
        self.name = name
        self.rank = process_group.rank()
        self.size = process_group.size()
        self._communicators = communicators
        self._device = communicators.device
        self._stream = communicators.stream
        self._monitor = monitor
        self._calls = 0
        self._is_connected = False

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        if reduction is Reduction.MIN:
            return self._call(values, f"MIN {purpose}")
        # The bits of a number inverted: the order of int64 numbers the other way round.
        return [~least for least in self._call([~value for value in values], f"MAX {purpose}")]

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        return self._call(values if self.rank == 0 else [GREATEST] * len(values), f"broadcast {purpose}")

    def barrier(self, purpose: str) -> None:
        self._call([], f"barrier {purpose}")

    def _call(self, values: Sequence[int], what: str) -> list[int]:
        """The least of each value over all ranks."""
        call = self._monitor.begin(self.name, self._calls, what, len(values))
        self._calls += 1
        sent = [call.signature, ~call.signature, *values]
        least, greatest, *reduced = self._reduced([*sent[:BLOCK], *[0] * (BLOCK - len(sent))], call)
        if least != ~greatest:
            raise self._failed(call, DivergedError("its ranks were in different calls"))
        rest = self._reduced(sent[BLOCK:], call) if len(sent) > BLOCK else []
        return [*reduced, *rest][: len(values)]

    def _failed(self, call: Call, cause: Exception) -> RankError:
        verdict = self._monitor.verdict(call, cause)
        self._communicators.abort()
        return verdict

    def _reduced(self, values: Sequence[int], call: Call) -> list[int]:
        with torch.cuda.stream(self._stream):
            numbers = torch.tensor(values, dtype=torch.int64, device=self._device)
            try:
                self._reduce(numbers, call)
            except (RuntimeError, TimeoutError) as error:
                raise self._failed(call, error) from error
            return [int(number) for number in numbers.tolist()]

    def _reduce(self, numbers: torch.Tensor, call: Call) -> None:
        work = self._begin(numbers, call)
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

    def _begin(self, numbers: torch.Tensor, call: Call) -> distributed.Work | None:
        group = self._communicators.group(self.name)

        def begin() -> distributed.Work | None:
            with torch.cuda.stream(self._stream):
                work: distributed.Work | None = distributed.all_reduce(
                    numbers, distributed.ReduceOp.MIN, group=group, async_op=True
                )
            return work

        if self._is_connected:
            return begin()
        # NCCL connects the ranks in the first collective, and blocks until every rank has come.
        work = bounded(begin, partial(self._monitor.must_give_up, call), self._monitor.poll_s, str(call))
        self._is_connected = True
        return work

    def _await(self, is_done: Callable[[], bool], pause: Callable[[], object], call: Call) -> None:
        next_check_s = time.monotonic() + self._monitor.poll_s
        while not is_done():
            pause()
            if time.monotonic() < next_check_s:
                continue
            if self._monitor.must_give_up(call) and not is_done():
                raise TimeoutError(f"{call} of {self.name} has not ended")
            next_check_s = time.monotonic() + self._monitor.poll_s


def _wait_briefly(work: distributed.Work, seconds: float) -> None:
    with suppress(RuntimeError):  # a timeout, or a failure, which the final wait() raises again
        work.wait(timedelta(seconds=seconds))


class TorchGroups(Mapping[str, TorchGroup]):
    """The groups of one rank by axis. A context manager that closes them.

    A rank that opens its cache again opens new groups: it closes the old ones, or their connections and their memory on
    the GPU stay until the process ends.
    """

    def __init__(self, communicators: Communicators, monitor: RankMonitor) -> None:
        self._communicators = communicators
        self._by_axis = {axis: TorchGroup(axis, communicators, monitor) for axis in communicators.axes}

    def __getitem__(self, axis: str) -> TorchGroup:
        return self._by_axis[axis]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_axis)

    def __len__(self) -> int:
        return len(self._by_axis)

    def close(self) -> None:
        """Destroy the groups in torch. Every rank calls this, once no rank is in a call. Later calls are refused."""
        self._communicators.close()

    def __enter__(self) -> TorchGroups:  # noqa: PYI034 - 3.10 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_groups(topology: Topology, store: Store, device: str | torch.device, timeout_s: float) -> TorchGroups:
    """The groups of this rank by axis; none along an axis of one rank. Every world rank calls this with the same mesh.

    The caller that opens groups closes them, after the cache that uses them: `with open_groups(…) as groups`.
    `torch.distributed` is initialised before; its ranks are the world ranks of the mesh, on any number of hosts.
    `store`: a store that all ranks reach and that outlives each of them: torchrun's, or the one that the process group
    was made with. `device`: the device of this rank, such as `cuda:1`; gloo serves a CPU, NCCL a GPU. `timeout_s`: the
    deadline of every call, and of opening; a missing rank is named within about one and a half times this deadline.
    Raises ConfigurationError when the mesh differs from torch's world or no backend serves the device, RankError when a
    rank is missing.
    """
    require_torch("open_groups")
    own_device = torch.device(device)
    _check(topology, own_device)
    monitor = RankMonitor(_own_keys(store, topology), topology, timeout_s, WallClock(), time.sleep)
    communicators = Communicators.on(own_device, timeout_s)
    with ExitStack() as failed:
        failed.callback(communicators.close)
        _make(communicators, topology, monitor)
        groups = TorchGroups(communicators, monitor)
        for group in groups.values():
            group.barrier("opening")
        failed.pop_all()
    return groups


def _make(communicators: Communicators, topology: Topology, monitor: RankMonitor) -> None:
    """Make the groups when every rank has come. Raises RankError when one does not."""
    call = monitor.begin("world", 0, "opening", 0)
    try:
        monitor.wait_for_all(call)
        call = monitor.begin("world", 1, "connecting", 0)
        must_give_up = partial(monitor.must_give_up, call)
        bounded(partial(communicators.make, topology), must_give_up, monitor.poll_s, "connecting")
    except (RuntimeError, TimeoutError) as error:
        verdict = monitor.verdict(call, error)
        communicators.abort()
        raise verdict from error


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
