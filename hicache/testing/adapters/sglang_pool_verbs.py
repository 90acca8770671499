"""SglangPoolVerbs: the verbs that use SGLang's pools directly, without its tree."""

from __future__ import annotations

import numpy as np

from hicache.testing.adapter import PageBytes
from hicache.testing.adapters.sglang_pools import MAMBA, SglangPools, as_tensor
from hicache.types import Pool, Slots


class SglangPoolVerbs:
    """The verbs that need only the pools."""

    pools: SglangPools

    def free(self, slots: Slots) -> None:
        self.pools.allocator.free(as_tensor(slots))

    def partners(self, slots: Slots) -> Slots:
        return self.pools.partners(slots)

    def release_window(self, slots: Slots) -> None:
        self.pools.allocator.free_swa(as_tensor(slots))

    def free_state(self, slot: int) -> None:
        self.pools.free_lists[MAMBA].free(as_tensor(np.array([slot])))

    def layers(self, pool: Pool) -> int:
        return self.pools.layers(pool)

    def slot_bytes(self, pool: Pool) -> int:
        return self.pools.slot_bytes(pool)

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        self.pools.write(pool, slots, layer, data)

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        return self.pools.read(pool, slots, layer)
