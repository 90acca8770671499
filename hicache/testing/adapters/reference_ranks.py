"""ReferenceRankVerbs: opens the reference cache on one of several ranks."""

from __future__ import annotations

from typing import TypeVar

from hicache.config import CacheConfig
from hicache.parallel.torch_group import open_groups
from hicache.testing.adapters.reference_host import ReferenceHostVerbs
from hicache.testing.rank_verbs import RankVerbs
from hicache.testing.ranks.world import RankWorld

Adapter = TypeVar("Adapter", bound="ReferenceRankVerbs")


class ReferenceRankVerbs(ReferenceHostVerbs, RankVerbs):
    """The reference cache with its transfers, its storage and its ranks."""

    @classmethod
    def on_rank(cls: type[Adapter], config: CacheConfig, world: RankWorld) -> Adapter:  # noqa: PYI019 - 3.10 has no Self
        groups = world.groups(lambda: open_groups(config.topology, world.store, world.device, world.timeout_s))
        return cls(config, groups)
