"""RankWorld: what an adapter is handed on one rank: where it is, and how it meets the other ranks."""

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

    `topology`: where this rank is. `store`: one of torch.distributed's stores that every rank reaches, or None where
    the ranks are threads. `device`: torch's name of the device that this rank's collectives use. `timeout_s`: how long
    a collective may wait for a rank.
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
        """This rank's number among all."""
        return mesh_of(self.topology).rank_of(self.topology)

    @abstractmethod
    def groups(self, open_groups: Callable[[], Mapping[str, Group]]) -> Mapping[str, Group]:
        """This rank's groups by axis: `tp`, `cp` and `pp`, those that have several ranks. Their calls are recorded.

        `open_groups`: opens the cache's own, on torch.distributed; not called where the ranks are threads.
        """

    @abstractmethod
    def interpose(self) -> None:
        """Record what torch.distributed is asked from now on, for a cache that asks it without groups of ours."""

    @property
    @abstractmethod
    def calls(self) -> Mapping[str, Sequence[Call]]:
        """The collectives of this rank so far, by group, in their order."""

    @property
    @abstractmethod
    def devices(self) -> frozenset[str]:
        """The types of devices on which tensors lay that torch.distributed was given on this rank."""

    def gather(self, purpose: str, text: str) -> list[str]:
        """What every rank says, by rank, told beside the collectives. Raises RankError when one does not come.

        All must stand between the same collectives: who is still in one, or has left one out, is named at once.
        """
        call = Call(GATHER, purpose, 0)
        for compared_calls in self._compared_of_groups():
            compared_calls.stand(call)
        return [text] if self._compared_calls is None else self._compared_calls.answer(call, text)

    @abstractmethod
    def _compared_of_groups(self) -> Iterable[ComparedCalls]:
        """Those that this rank is in, in an order that is the same on all ranks."""

    @abstractmethod
    def leave(self, how: str) -> None:
        """This rank makes no more calls: `had ended`, or `had raised` what. Nobody has to wait for it."""
