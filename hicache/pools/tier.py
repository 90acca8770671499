"""TierPools: what the pools of both tiers have in common: allocators by component, buffers by pool."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.pools.buffers import PoolBuffers
from hicache.pools.slots import PageAllocator
from hicache.pools.specs import PoolSpec
from hicache.types import COMPONENT_POOL, Component, Pool, Slots


def owner_of(pool: Pool) -> str:
    """The component whose pages a pool has. A sidecar has those of FULL, and is never allocated from (sglang#22767)."""
    owners = {owned: component for component, owned in COMPONENT_POOL.items()}
    return owners.get(pool, Component.FULL.value)


class TierPools:
    """The pools of one cache on one tier, each with a padding page besides its capacity.

    A state is a page of one slot.
    """

    def __init__(
        self, config: CacheConfig, capacity_tokens: Mapping[str, int], specs: Mapping[Pool, PoolSpec], device: str
    ) -> None:
        self.page_size = config.page_size
        sizes = {c: 1 if c == Component.MAMBA else config.page_size for c in config.components}
        self.allocators = {c: PageAllocator(c, capacity_tokens[c] // size) for c, size in sizes.items()}
        self.buffers: dict[Pool, PoolBuffers] = {}
        for pool, spec in specs.items():
            owner = owner_of(pool)
            self.buffers[pool] = PoolBuffers(spec, self.capacity_pages(owner) + 1, sizes[owner], device)

    def capacity_pages(self, component: str) -> int:
        """The pages that a component's pool has: 1 to this number."""
        return self.allocators[component].capacity_pages

    def take(self, pages: Mapping[str, int]) -> dict[str, Slots] | None:
        """So many pages of each component, SWA pages nobody's partners; None, with nothing taken, when one is short."""
        if any(count > self.allocators[component].free_pages for component, count in pages.items()):
            return None
        taken = {component: self.allocators[component].allocate(count) for component, count in pages.items()}
        return {component: own for component, own in taken.items() if own is not None}
