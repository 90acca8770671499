"""RankWorld: what an adapter receives on one rank: its position, and the connection to the other ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hicache.config import Topology
from hicache.parallel.group import Group
from hicache.testing.ranks.call import GATHER, Call
from hicache.testing.ranks.compared_calls import ComparedCalls
from hicache.testing.ranks.mesh import mesh_of


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
    def calls(self) -> Mapping[str, Sequence[Call]]:
        """The collectives of this rank so far, by group, in order."""

    @property
    @abstractmethod
    def devices(self) -> frozenset[str]:
        """The device types of the tensors that this rank passed to torch.distributed."""

    def gather(self, purpose: str, text: str) -> list[str]:
        """Exchange texts over the side channel: one per rank, by rank. Raises RankError when a rank does not take part.

        All ranks must be between the same collectives: a rank that is inside one, or has skipped one, is named at once.
        """
        call = Call(GATHER, purpose, 0)
        for compared_calls in self._compared_of_groups():
            compared_calls.require_between_calls(call)
        return [text] if self._compared_calls is None else self._compared_calls.compare(call, text)

    @abstractmethod
    def _compared_of_groups(self) -> Iterable[ComparedCalls]:
        """The compared calls of this rank's groups, in an order that is the same on all ranks."""

    @abstractmethod
    def leave(self, how: str) -> None:
        """Record that this rank makes no more calls: `had ended`, or `had raised` and the error."""
