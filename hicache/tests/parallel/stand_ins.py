"""Stand-ins for torch's process groups, and for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode

from hicache.clock import VirtualClock
from hicache.config import Topology
from hicache.parallel.mesh import topology_of
from hicache.parallel.rank_monitor import RankMonitor

GPU = torch.device("cuda", 1)
TP_2 = topology_of(1, tp_size=2, cp_size=1, pp_size=1, dp_size=1)


class OnGpu(torch.Tensor):
    """A tensor in host memory whose `device` is the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU


class PretendGpu(TorchFunctionMode):
    """Makes tensors that are created on the GPU, and only those, OnGpu."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") != GPU:
            return function(*args, **kwargs)
        del kwargs["device"]
        return function(*args, **kwargs).as_subclass(OnGpu)


@dataclass(frozen=True, slots=True)
class Members:
    """A process group as seen by one of its ranks."""

    ranks: list[int]
    own: int
    aborted: list[int]

    def rank(self) -> int:
        return self.ranks.index(self.own)

    def size(self) -> int:
        return len(self.ranks)

    def abort(self) -> None:
        self.aborted.append(self.own)


class Later:
    """A collective or a stream of a GPU that is busy. `polls`: how often it answers that it has not ended."""

    def __init__(self, polls: float) -> None:
        self.polls = polls

    def is_completed(self) -> bool:
        self.polls -= 1
        return self.polls < 0

    query = is_completed

    def wait(self) -> bool:
        return True


def lone_monitor(topology: Topology) -> RankMonitor:
    """The monitor of a rank to which no other rank answers."""
    clock = VirtualClock()
    return RankMonitor(HashStore(), topology, 5, clock, clock.advance)


def record_reductions(work: Later, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Replace torch's all_reduce by one that returns `work`. Returns the list of the tensors that it is called with."""
    reduced: list[torch.Tensor] = []

    def all_reduce(numbers: torch.Tensor, *_: Any, **__: Any) -> Later:
        reduced.append(numbers)
        return work

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return reduced
