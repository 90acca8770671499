"""MergedBlocks: a sound cache that merges equal blocks when they are scheduled, as lmdeploy does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from hicache.config import CacheConfig
from hicache.testing.adapter import Capability
from hicache.testing.caches.block_cache import BlockCache, BlockRequest
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.geometry import GeometricConfig, Geometry, Publish
from hicache.types import Component

FULL = Component.FULL.value


class MergingCache(BlockCache):
    """A block that is cached already takes the place of a request's own when the request publishes it."""

    def _publish_block(self, request: BlockRequest, group: int, index: int) -> None:
        table = request.tables[group]
        copies = self._copies(self._content(request, group, index))
        if not copies:
            super()._publish_block(request, group, index)
            return
        own, table[index] = table[index], copies[0].id
        self._touch(table[index : index + 1])
        self._free(self._blocks[own])


class MergedBlocks(BlockCacheAdapter):
    """The last block of a prompt that is cached whole is computed again, in place, while others read it."""

    capabilities: ClassVar[frozenset[Capability]] = BlockCacheAdapter.capabilities - {Capability.SWA, Capability.MAMBA}
    cache_type = MergingCache

    def __init__(self, config: CacheConfig) -> None:
        assert isinstance(config, GeometricConfig), f"{config.name} has no geometry"
        super().__init__(replace(config, geometry=replace(config.geometry, duplicates=True)))
        self._geometry = config.geometry

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS


def _config(block_tokens: int, lookahead: int) -> GeometricConfig:
    geometry = Geometry({FULL: block_tokens}, shared_pool=True, lookahead=lookahead, publish=Publish.SCHEDULED)
    return GeometricConfig(
        capacity_tokens={FULL: 12 * block_tokens},
        page_size=block_tokens,
        components=(FULL,),
        events=True,
        geometry=geometry,
    )


CONFIGURATIONS: tuple[GeometricConfig, ...] = (_config(1, 0), _config(3, 1), _config(16, 1))
