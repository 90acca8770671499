"""Caches whose ranks do not agree: they skip a collective, decide alone, or open something else than the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

from hicache.cache import UnifiedRadixCache
from hicache.config import CacheConfig, Topology
from hicache.parallel import agree, communicators, torch_group
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.parallel.mesh import axis_ranks, world_rank
from hicache.parallel.torch_group import TorchGroup
from hicache.storage.keys import StorageKeys
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.ranks.world import RankWorld
from hicache.tiers.load_back import LoadBackTicket
from hicache.tiers.prefetch import Prefetch
from hicache.types import COMPONENT_POOL, Component, Pool

NameT = TypeVar("NameT", bound=str)


class OtherAgreement(ReferenceAdapter):
    """The reference cache over `agreement_type` in the place of Agreement."""

    agreement_type: ClassVar[type[Agreement]]

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self._groups = groups or {}
        super().__init__(config, groups)

    def _open_cache(self, agreement: Agreement) -> UnifiedRadixCache:
        return super()._open_cache(self.agreement(self._config, self._groups))

    def agreement(self, config: CacheConfig, groups: Mapping[str, Group]) -> Agreement:
        """How this rank decides with the others."""
        return self.agreement_type(groups)


class BreaksEarly(ReferenceAdapter):
    """Does not ask the others whether a prefetch is over while its own part is under way."""

    def check_prefetch(self, ticket: Prefetch) -> int | None:
        job = ticket.job
        if job is not None and any(one.ticket == job.number for one in self.pending()):
            return None
        return super().check_prefetch(ticket)


class _OnlyWhenEnded(Agreement):
    def acknowledged(
        self, started: int, outcomes: Sequence[int], bits: int = 0, count: int = 0, waiting: str = ""
    ) -> tuple[Sequence[int], int]:
        # The last number says whether storage answers in time.
        if all(outcome <= 0 for outcome in outcomes[:-1]):
            return outcomes, bits
        return super().acknowledged(started, outcomes, bits, count, waiting)


class SkipsIdleSteps(OtherAgreement):
    """Does not ask what has ended on the others while nothing has on this rank."""

    agreement_type = _OnlyWhenEnded


class _OwnPatience(Agreement):
    def acknowledged(
        self, started: int, outcomes: Sequence[int], bits: int = 0, count: int = 0, waiting: str = ""
    ) -> tuple[Sequence[int], int]:
        agreed, common = super().acknowledged(started, outcomes, bits, count, waiting)
        return [*agreed[:-1], outcomes[-1]], common


class AbandonsAlone(OtherAgreement):
    """Only the rank whose storage does not answer goes on without it."""

    agreement_type = _OwnPatience


class _EachStage(Agreement):
    def __init__(self, groups: Mapping[str, Group]) -> None:
        super().__init__(groups)
        self._of_stage = Agreement({axis: group for axis, group in groups.items() if axis != "pp"})

    def acknowledged(
        self, started: int, outcomes: Sequence[int], bits: int = 0, count: int = 0, waiting: str = ""
    ) -> tuple[Sequence[int], int]:
        return self._of_stage.acknowledged(started, outcomes, bits, count, waiting)


class _TensorParallelAlone(Agreement):
    def __init__(self, groups: Mapping[str, Group]) -> None:
        super().__init__({axis: group for axis, group in groups.items() if axis == "tp"})


class StagesOnTheirOwn(OtherAgreement):
    """Each pipeline stage takes over what has ended on that stage."""

    agreement_type = _EachStage


class TensorParallelAlone(OtherAgreement):
    """All is agreed along tp alone, and other axes are ignored."""

    agreement_type = _TensorParallelAlone


class _PoolByPool(Agreement):
    def __init__(self, groups: Mapping[str, Group], order: Sequence[str]) -> None:
        super().__init__(groups)
        self._order = order

    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        names = sorted(pages, key=self._order.index)
        return {name: self.least({name: pages[name]}, f"completed {name}")[name] for name in names}


class _KvAlone(Agreement):
    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        agreed = super().completed({pool: count for pool, count in pages.items() if pool == Pool.KV})
        return {**pages, **agreed}


class _NothingMissing(Agreement):
    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        came = {pool: count for pool, count in pages.items() if count}
        return super().completed({pool: came[pool] for pool in pages})


class _LeastOfTheLongest(Agreement):
    def acknowledged(
        self, started: int, outcomes: Sequence[int], bits: int = 0, count: int = 0, waiting: str = ""
    ) -> tuple[Sequence[int], int]:
        (*agreed, longest), _ = super().acknowledged(started, [*outcomes, bits.bit_length()], 0, 0, waiting)
        return agreed, (1 << longest) >> 1


class _OwnClock(Agreement):
    def ended_waits(self, votes: Sequence[int], waiting: str) -> list[int]:
        return list(votes)


class PoolByPool(OtherAgreement):
    """Agrees on what has come with a reduction for each pool, in the order of the dictionary of capacities."""

    def agreement(self, config: CacheConfig, groups: Mapping[str, Group]) -> Agreement:
        order = [COMPONENT_POOL[Component(name)].value for name in config.capacity_tokens]
        return _PoolByPool(groups, [*order, *config.sidecars])


class SidecarsOnTheirOwn(OtherAgreement):
    """Agrees on the pages of KV, and takes this rank's word for those of every other pool."""

    agreement_type = _KvAlone


class NothingMissing(OtherAgreement):
    """Looks up what has come of each pool, and raises KeyError where nothing has."""

    agreement_type = _NothingMissing


class LeastOfTheLongest(OtherAgreement):
    """Prefetches the least of the longest prefixes that the ranks have."""

    agreement_type = _LeastOfTheLongest


class OwnClock(OtherAgreement):
    """Ends a prefetch when its own clock says so."""

    agreement_type = _OwnClock


class _OwnCapacities(Agreement):
    def least(self, numbers: Mapping[str, int], purpose: str) -> dict[str, int]:
        return dict(numbers) if purpose == "capacities" else super().least(numbers, purpose)


class OwnCapacities(OtherAgreement):
    """Each rank uses all of the memory that it has."""

    agreement_type = _OwnCapacities


class NumbersAnywhere(TorchGroup):
    """A group that does not name the device of its numbers: the CPU, unless torch's default was changed."""

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
        with patch.object(communicators, "axis_ranks", _own_ranks):
            return super().on_rank(config, world)


def _own_ranks(topology: Topology) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    own = world_rank(topology)
    return {axis: tuple(ranks for ranks in lists if own in ranks) for axis, lists in axis_ranks(topology).items()}


class OwnFingerprint(ReferenceAdapter):
    """A rank opens with another fingerprint of the model than the others."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        with patch.object(agree, "PER_RANK", agree.PER_RANK | {"model_fingerprint"}):
            super().__init__(config, groups)


class EveryRankWrites(ReferenceAdapter):
    """No rank leaves a shared shard to another one."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        names = StorageKeys.of(config) if config.storage else None
        everything = names and replace(names, written=frozenset(names.shards))
        with patch.object(StorageKeys, "of", lambda _: everything):
            super().__init__(config, groups)


class LayersOfTheModel(ReferenceAdapter):
    """On a later stage a reader takes a layer for one of the whole model, and subtracts the stage's first layer."""

    def layer_ready(self, ticket: LoadBackTicket, pool: str, layer: int) -> bool:
        first = self.cache.config.topology.pp_rank * self._host.layers
        return self.stack_layer(pool, layer) - first < self.cache.layers_done(ticket)
