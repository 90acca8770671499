"""HostPools: the pools of one cache in host memory, which a GPU reaches directly. Sidecars follow KV's slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.pools.buffers import RawBytes
from hicache.pools.pinning import CudaRuntime, PinnedMemory, runtime_for
from hicache.pools.specs import PoolSpec
from hicache.pools.tier import TierPools
from hicache.types import Pool, Slots


class HostPools(TierPools):
    """Allocators by component, buffers by pool. Unlike on the device, SWA pages are nobody's partners.

    The memory is pinned where the device is a GPU, until `close`. Raises ConfigurationError without a host tier, and
    PinningError when memory cannot be pinned. `runtime`: what pins it, if not CUDA's own.
    """

    def __init__(self, config: CacheConfig, specs: Mapping[Pool, PoolSpec], runtime: CudaRuntime | None = None) -> None:
        if config.host is None:
            raise ConfigurationError("host pools need host=HostConfig(...), got None")
        on_host = {pool: replace(spec, layout=config.host.layout) for pool, spec in specs.items()}
        super().__init__(config, config.host.capacity_tokens, on_host, "cpu")
        tensors = [raw for buffers in self.buffers.values() for raw in buffers.raw]
        runtime = runtime or runtime_for(config.device)
        self._pinned = None if runtime is None else PinnedMemory(tensors, runtime)

    def free(self, component: str, pages: Slots) -> None:
        """Take back pages of one component. Raises SlotError, changing nothing, when one is not handed out."""
        self.allocators[component].free(pages)

    def read(self, pool: Pool, slots: Slots, layer: int) -> RawBytes:
        """The raw bytes at the slots of one pool, uint8 [len(slots), slot_bytes]."""
        return self.buffers[pool].read(slots, layer)

    def page_bytes(self, pool: Pool) -> int:
        """Bytes of one page, over all layers and buffers."""
        buffers = self.buffers[pool]
        return buffers.page_size * buffers.spec.layers * buffers.spec.slot_bytes

    def regions(self) -> list[memoryview]:
        """All memory of all pools: what pages come from and go to."""
        return [buffers.memory(number) for buffers in self.buffers.values() for number in range(len(buffers.raw))]

    def close(self) -> None:
        """Unpin the memory. May be called twice."""
        if self._pinned is not None:
            self._pinned.close()
