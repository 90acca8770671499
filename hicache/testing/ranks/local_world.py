"""LocalWorld: a RankWorld whose ranks are threads of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hicache.config import Topology
from hicache.parallel.group import Group
from hicache.testing.ranks.call import Call
from hicache.testing.ranks.compared_calls import ComparedCalls
from hicache.testing.ranks.local_group import LocalGroup
from hicache.testing.ranks.local_side_channel import LocalSideChannel
from hicache.testing.ranks.mesh import Mesh, axes_of
from hicache.testing.ranks.world import RankWorld


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
    def calls(self) -> Mapping[str, Sequence[Call]]:
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
