"""Ranks that do not open the same: other capacities, other groups, and numbers where the group is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from unittest.mock import patch

from hicache.config import CacheConfig, Topology
from hicache.parallel import torch_group
from hicache.parallel.agree import Agreement
from hicache.parallel.mesh import axis_ranks, world_rank
from hicache.parallel.torch_group import TorchGroup
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.mutants.other_agreement import OtherAgreement
from hicache.testing.ranks.world import RankWorld

NameT = TypeVar("NameT", bound=str)


class _OwnCapacities(Agreement):
    def least(self, numbers: Mapping[str, int], purpose: str) -> dict[str, int]:
        return dict(numbers) if purpose == "capacities" else super().least(numbers, purpose)


class OwnCapacities(OtherAgreement):
    """Each rank uses all of the memory that it has."""

    agreement_type = _OwnCapacities


class NumbersAnywhere(TorchGroup):
    """A group that does not say where its numbers are to be: on the CPU, unless somebody changed torch's default."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._device = None  # type: ignore[assignment]


class NoDevice(ReferenceAdapter):
    """All groups are NumbersAnywhere."""

    @classmethod
    def on_rank(cls, config: CacheConfig, world: RankWorld) -> NoDevice:
        with patch.object(torch_group, "TorchGroup", NumbersAnywhere):
            return super().on_rank(config, world)


class OwnGroups(ReferenceAdapter):
    """Each rank makes the groups that it is in, and no others."""

    @classmethod
    def on_rank(cls, config: CacheConfig, world: RankWorld) -> OwnGroups:
        with patch.object(torch_group, "axis_ranks", _own_ranks):
            return super().on_rank(config, world)


def _own_ranks(topology: Topology) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    own = world_rank(topology)
    return {axis: tuple(ranks for ranks in lists if own in ranks) for axis, lists in axis_ranks(topology).items()}
