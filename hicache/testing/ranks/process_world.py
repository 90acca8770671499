"""ProcessWorld: a RankWorld whose ranks are processes, connected by a store of torch.distributed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta

from hicache.config import Topology
from hicache.errors import ConfigurationError
from hicache.optional_torch import PrefixStore, Store, distributed, torch
from hicache.parallel.group import Group
from hicache.testing.ranks.calls import GATHER, CollectiveCall, ComparedCalls, RecordedGroup, StoreSideChannel
from hicache.testing.ranks.interposer import DeviceRecorder, Interposer, compare_new_groups
from hicache.testing.ranks.world import Mesh, RankWorld, axes_of, mesh_of


class ProcessWorld(RankWorld):
    """One process's view of all ranks.

    `is_recorded`: compare each call before it is entered; without it the groups are the cache's own, so that a test
    sees how they behave when ranks diverge. `note`: called with each call before it is entered.
    """

    def __init__(
        self,
        topology: Topology,
        store: Store,
        device: str,
        timeout_s: float,
        *,
        is_recorded: bool,
        note: Callable[[str], None],
    ) -> None:
        self._side_store = PrefixStore("kit", store)
        self._note = note
        self._is_recorded = is_recorded
        self._by_group = dict[str, ComparedCalls]()
        self._of_threads = set[str]()
        self._is_interposed = False
        self._openings = 0
        self._recorder = DeviceRecorder()
        self._recorder.install()
        mesh = mesh_of(topology)
        all_ranks = StoreSideChannel(self._side_store, "world", "world", mesh.ranks, timeout_s)
        self._all_ranks = ComparedCalls(mesh.rank_of(topology), all_ranks, note)
        super().__init__(topology, PrefixStore("cache", store), device, timeout_s, self._all_ranks)

    def groups(self, open_groups: Callable[[], Mapping[str, Group]]) -> Mapping[str, Group]:
        with compare_new_groups(self._all_ranks) if self._is_recorded else nullcontext():
            opened = open_groups()
        axes = axes_of(self.topology)
        if opened.keys() != axes.keys():
            raise ValueError(f"RANK-4: expected a group for each axis of {sorted(axes)}, got {sorted(opened)}")
        if not self._is_recorded:
            return opened
        self._openings += 1
        for axis, (place, size, key) in axes.items():
            self._by_group[axis] = self._open(f"{self._openings}/{key}", axis, place, size)
        return {axis: RecordedGroup(opened[axis], self._by_group[axis]) for axis in axes}

    def interpose(self) -> None:
        if self._is_recorded and not self._is_interposed:
            self._is_interposed = True
            Interposer(self._compared_calls_of, self.device).install()

    @property
    def calls(self) -> Mapping[str, Sequence[CollectiveCall]]:
        return {name: compared_calls.calls for name, compared_calls in self._by_group.items()}

    def _compared_of_groups(self) -> Iterable[ComparedCalls]:
        # A thread of the cache enters the collectives of its own groups when it likes.
        return [compared for name, compared in self._by_group.items() if name not in self._of_threads]

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(self._recorder.seen)

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends of the collectives that this rank was in with another one, sorted."""
        return tuple(sorted(self._recorder.backends))

    def await_end(self) -> None:
        """Return when every rank has ended. Raises RankError when one does not."""
        self._all_ranks.compare(CollectiveCall(GATHER, "end", 0), "")

    def leave(self, how: str) -> None:
        for compared_calls in (*self._by_group.values(), self._all_ranks):
            compared_calls.leave(how)

    def _compared_calls_of(self, name: str, ranks: Sequence[int], place: int) -> ComparedCalls:
        """The compared calls of one of torch's groups, by its name."""
        if name not in self._by_group:
            self._by_group[name] = self._open(name, name, place, len(ranks))
            if threading.current_thread() is not threading.main_thread():
                self._of_threads.add(name)
        return self._by_group[name]

    def _open(self, key: str, name: str, place: int, size: int) -> ComparedCalls:
        return ComparedCalls(place, StoreSideChannel(self._side_store, key, name, size, self.timeout_s), self._note)


def join_torchrun(mesh: Mesh, backend: str, timeout_s: float) -> ProcessWorld:
    """Connect to the other processes over torchrun's own store, and initialise torch.distributed.

    Raises ConfigurationError when torchrun has not started as many processes as the mesh has ranks.
    """
    started = int(os.environ.get("WORLD_SIZE", "0"))
    if started != mesh.ranks:
        raise ConfigurationError(f"{mesh.name} needs {mesh.ranks} processes of torchrun, and {started} were started")
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_s)
    store, rank, size = next(distributed.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return ProcessWorld(mesh.topology(rank), store, device, timeout_s, is_recorded=True, note=lambda _: None)
