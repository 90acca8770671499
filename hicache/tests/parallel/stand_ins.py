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
from hicache.parallel.roll_call import RollCall

GPU = torch.device("cuda", 1)
TP_2 = topology_of(1, tp_size=2, cp_size=1, pp_size=1, dp_size=1)


class OnGpu(torch.Tensor):
    """Numbers in host memory that say that they are on the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU


class PretendGpu(TorchFunctionMode):
    """What is made on the GPU, and only that, is OnGpu."""

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
    """What a GPU works at: a collective or a stream. `looks`: how often it is asked before it has ended."""

    def __init__(self, looks: float) -> None:
        self.looks = looks

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    query = is_completed

    def wait(self) -> bool:
        return True


def a_roll_call(topology: Topology) -> RollCall:
    """A roll call of a rank that nobody answers."""
    clock = VirtualClock()
    return RollCall(HashStore(), topology, 5, clock, clock.advance)


def hand_back(work: Later, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Let torch reduce nothing, and keep what it is given."""
    given: list[torch.Tensor] = []

    def all_reduce(numbers: torch.Tensor, *_: Any, **__: Any) -> Later:
        given.append(numbers)
        return work

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return given
