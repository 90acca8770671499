"""Prefetches about whose end, or about what they brought, the ranks do not agree as they should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from hicache.config import CacheConfig
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.testing.mutants.other_agreement import OtherAgreement
from hicache.types import COMPONENT_POOL, Component, Pool

NameT = TypeVar("NameT", bound=str)


class _PoolByPool(Agreement):
    def __init__(self, groups: Mapping[str, Group], order: Sequence[Pool]) -> None:
        super().__init__(groups)
        self._order = order

    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        names = sorted(pages, key=lambda name: self._order.index(Pool(name)))
        return {name: self.least({name: pages[name]}, f"completed {Pool(name).value}")[name] for name in names}


class _KvAlone(Agreement):
    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        agreed = super().completed({pool: count for pool, count in pages.items() if pool == Pool.KV})
        return {**pages, **agreed}


class _NothingMissing(Agreement):
    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        came = {pool: count for pool, count in pages.items() if count}
        return super().completed({pool: came[pool] for pool in pages})


class _OwnClock(Agreement):
    def is_over(self, *, is_over: bool) -> bool:
        return is_over


class PoolByPool(OtherAgreement):
    """Agrees on what has come with a reduction for each pool, in the order of the dictionary of capacities."""

    def agreement(self, config: CacheConfig, groups: Mapping[str, Group]) -> Agreement:
        order = [COMPONENT_POOL[Component(name)] for name in config.capacity_tokens]
        return _PoolByPool(groups, [*order, *map(Pool, config.sidecars)])


class SidecarsOnTheirOwn(OtherAgreement):
    """Agrees on the pages of KV, and takes this rank's word for those of every other pool."""

    agreement_type = _KvAlone


class NothingMissing(OtherAgreement):
    """Looks up what has come of each pool, and raises KeyError where nothing has."""

    agreement_type = _NothingMissing


class OwnClock(OtherAgreement):
    """Ends a prefetch when its own clock says so."""

    agreement_type = _OwnClock
