"""RankWorld: one rank's view of the ranks that share a tree, which form a Mesh; LocalWorld: ranks that are threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.group import Group
from hicache.testing.ranks.calls import GATHER, CollectiveCall, ComparedCalls, LocalGroup, LocalSideChannel

Result = TypeVar("Result")

AXES = ("tp", "cp", "pp")
"""The axes along which ranks share a tree, innermost first."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks of one replica: `tp_size` * `cp_size` * `pp_size`, numbered with tp innermost and pp outermost."""

    tp_size: int
    cp_size: int
    pp_size: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.tp_size * self.cp_size * self.pp_size

    @property
    def name(self) -> str:
        """The axes with several ranks, outermost first, such as `pp2-tp2`."""
        sizes = {"pp": self.pp_size, "cp": self.cp_size, "tp": self.tp_size}
        return "-".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "tp1"

    def topology(self, rank: int) -> Topology:
        """The position of a rank on all axes."""
        rest, tp_rank = divmod(rank, self.tp_size)
        pp_rank, cp_rank = divmod(rest, self.cp_size)
        return Topology(
            tp_rank=tp_rank,
            tp_size=self.tp_size,
            cp_rank=cp_rank,
            cp_size=self.cp_size,
            pp_rank=pp_rank,
            pp_size=self.pp_size,
            dp_rank=0,
            dp_size=1,
        )

    def rank_of(self, topology: Topology) -> int:
        """The rank at a position."""
        return (topology.pp_rank * self.cp_size + topology.cp_rank) * self.tp_size + topology.tp_rank


def mesh_of(topology: Topology) -> Mesh:
    """The mesh of a topology."""
    return Mesh(topology.tp_size, topology.cp_size, topology.pp_size)


def axes_of(topology: Topology) -> dict[str, tuple[int, int, str]]:
    """By axis with several ranks: this rank's index on it, the number of ranks, and a unique name of the group."""
    sizes = {axis: getattr(topology, f"{axis}_size") for axis in AXES}
    places = {axis: getattr(topology, f"{axis}_rank") for axis in AXES}
    return {
        axis: (places[axis], size, "/".join([axis, *(f"{other}{places[other]}" for other in AXES if other != axis)]))
        for axis, size in sizes.items()
        if size > 1
    }


class RankWorld(ABC):
    """One rank's view of all ranks that share a tree.

    `topology`: this rank's position. `store`: a store of torch.distributed that every rank reaches, or None when the
    ranks are threads. `device`: torch's name of the device for this rank's collectives. `timeout_s`: how long a
    collective may wait for a rank.
    """

    def __init__(
        self, topology: Topology, store: Any, device: str, timeout_s: float, compared_calls: ComparedCalls | None
    ) -> None:
        self.topology = topology
        self.store = store
        self.device = device
        self.timeout_s = timeout_s
        self._compared_calls = compared_calls

    @property
    def rank(self) -> int:
        """This rank's number in the mesh."""
        return mesh_of(self.topology).rank_of(self.topology)

    @abstractmethod
    def groups(self, open_groups: Callable[[], Mapping[str, Group]]) -> Mapping[str, Group]:
        """This rank's groups by axis: `tp`, `cp` and `pp`, those with several ranks. Their calls are recorded.

        `open_groups`: opens the cache's own groups on torch.distributed; not called when the ranks are threads.
        """

    @abstractmethod
    def interpose(self) -> None:
        """Record calls to torch.distributed from now on, for a cache that does not use the kit's groups."""

    @property
    @abstractmethod
    def calls(self) -> Mapping[str, Sequence[CollectiveCall]]:
        """The collectives of this rank so far, by group, in order."""

    @property
    @abstractmethod
    def devices(self) -> frozenset[str]:
        """The device types of the tensors that this rank passed to torch.distributed."""

    def gather(self, purpose: str, text: str) -> list[str]:
        """Exchange texts over the side channel: one per rank, by rank. Raises RankError when a rank does not take part.

        All ranks must be between the same collectives: a rank that is inside one, or has skipped one, is named at once.
        """
        call = CollectiveCall(GATHER, purpose, 0)
        for compared_calls in self._compared_of_groups():
            compared_calls.require_between_calls(call)
        return [text] if self._compared_calls is None else self._compared_calls.compare(call, text)

    @abstractmethod
    def _compared_of_groups(self) -> Iterable[ComparedCalls]:
        """The compared calls of this rank's groups, in an order that is the same on all ranks."""

    @abstractmethod
    def leave(self, how: str) -> None:
        """Record that this rank makes no more calls: `had ended`, or `had raised` and the error."""


class LocalWorld(RankWorld):
    """One thread's view of all ranks."""

    def __init__(
        self, topology: Topology, groups: Mapping[str, LocalGroup], compared_calls: ComparedCalls, timeout_s: float
    ) -> None:
        super().__init__(topology, None, "cpu", timeout_s, compared_calls)
        self._groups = groups
        self._world_calls = compared_calls

    def groups(self, open_groups: Callable[[], Mapping[str, Group]]) -> Mapping[str, Group]:
        return self._groups

    def interpose(self) -> None:
        raise NotImplementedError("ranks that are threads share one torch.distributed: start processes for this cache")

    @property
    def calls(self) -> Mapping[str, Sequence[CollectiveCall]]:
        return {axis: group.calls for axis, group in self._groups.items()}

    def _compared_of_groups(self) -> Iterable[ComparedCalls]:
        return [group.compared_calls for group in self._groups.values()]

    @property
    def devices(self) -> frozenset[str]:
        return frozenset()

    def leave(self, how: str) -> None:
        for group in self._groups.values():
            group.leave(how)
        self._world_calls.leave(how)


def local_worlds(mesh: Mesh, timeout_s: float) -> list[LocalWorld]:
    """A world for each rank of a mesh, by rank; their groups use side channels of this process."""
    channels = dict[str, LocalSideChannel]()
    all_ranks = LocalSideChannel("world", mesh.ranks, timeout_s)
    worlds = []
    for rank in range(mesh.ranks):
        groups = {}
        for axis, (place, size, key) in axes_of(mesh.topology(rank)).items():
            channel = channels.setdefault(key, LocalSideChannel(axis, size, timeout_s))
            groups[axis] = LocalGroup(ComparedCalls(place, channel, _ignore))
        worlds.append(LocalWorld(mesh.topology(rank), groups, ComparedCalls(rank, all_ranks, _ignore), timeout_s))
    return worlds


def _ignore(_: str) -> None:
    """A thread needs no note of where it hangs, as its calls time out."""


class Team:
    """A thread for each rank of a mesh. `worlds`: by rank. Must be closed."""

    def __init__(self, mesh: Mesh, timeout_s: float) -> None:
        self.worlds = local_worlds(mesh, timeout_s)
        self._threads = ThreadPoolExecutor(mesh.ranks, thread_name_prefix="rank")

    def each(self, call: Callable[[int], Result]) -> list[Result]:
        """Run a function on every rank at the same time, and return the results by rank.

        Raises a rank's first error that is not a RankError, or else the first RankError. When one rank raises, the
        ranks that wait for it get a RankError at once.
        """
        futures = [self._threads.submit(self._guarded, call, rank) for rank in range(len(self.worlds))]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, RankError)), errors[0])
        return [future.result() for future in futures]

    def _guarded(self, call: Callable[[int], Result], rank: int) -> Result:
        try:
            return call(rank)
        except Exception as error:
            self.worlds[rank].leave(f"had raised {type(error).__name__}: {error}")
            raise

    def close(self) -> None:
        """Shut down the threads."""
        self._threads.shutdown()
