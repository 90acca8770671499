"""ModelPools: write what a forward computed into the pools of a cache, and read a prefix back from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from hicache.testing.adapter import PageBytes
from hicache.testing.violation import violation
from hicache.types import Pool, Slots

from .model_layout import ModelLayout
from .model_runner import ModelRunner
from .recorded_cache import RecordedCache
from .slot_rows import to_rows


class Pools(Protocol):
    """The verbs of an adapter that read and write its pools."""

    def partners(self, slots: Slots) -> Slots: ...

    def slot_bytes(self, pool: Pool) -> int: ...

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None: ...

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes: ...


class ModelPools:
    """Copies the bytes of one model to and from the pools of one cache. Writes only slots that the caller owns."""

    def __init__(self, runner: ModelRunner, layout: ModelLayout, pools: Pools) -> None:
        self._runner = runner
        self._layout = layout
        self._pools = pools
        self._has_window = layout.window_tokens is not None

    def write(self, recorded: RecordedCache, slots: Slots) -> None:
        """Write what the last forward computed, one token in each FULL slot and its SWA partner."""
        by_pool = {Pool.KV: slots, Pool.SWA: self._pools.partners(slots) if self._has_window else slots}
        for number, rows in recorded.take_rows().items():
            part = self._layout.layers[number].attention
            assert part is not None, f"layer {number} has attention now, and had none when the model was inspected"
            self._write_rows(part.pool, by_pool[part.pool], part.layer, rows)
        for number, keys in recorded.take_index_rows().items():
            index = self._layout.layers[number].index
            assert index is not None, f"layer {number} has an indexer now, and had none when the model was inspected"
            self._write_rows(Pool.INDEXER, slots, index.layer, (keys,))

    def write_state(self, recorded: RecordedCache, slot: int) -> None:
        """Write the current states into one MAMBA slot."""
        slots = np.array([slot], dtype=np.int64)
        for parts, layer in zip(self._layout.layers, recorded.cache.layers, strict=True):
            if parts.states is not None:
                self._write_rows(Pool.MAMBA, slots, parts.states.layer, parts.states.take(layer))

    def restore(self, slots: Slots, state: int | None) -> RecordedCache:
        """A cache with the tokens of these FULL slots and the state of that MAMBA slot."""
        cache, length = self._runner.new_cache(), len(slots)
        for parts, layer in zip(self._layout.layers if length else (), cache.layers, strict=bool(length)):
            if parts.attention is not None:
                part = parts.attention
                own_slots = self._slots_in(part.pool, slots[part.first_read(length) :])
                part.restore(layer, self._pools.read(part.pool, own_slots, part.layer), length, self._runner.device)
            if parts.index is not None:
                parts.index.restore(
                    layer, self._pools.read(Pool.INDEXER, slots, parts.index.layer), self._runner.device
                )
            if parts.states is not None:
                assert state is not None, "expected the slot of a state for a model with states, got None"
                rows = self._pools.read(Pool.MAMBA, np.array([state], dtype=np.int64), parts.states.layer)
                parts.states.restore(layer, rows, self._runner.device)
        return RecordedCache(cache)

    def _slots_in(self, pool: Pool, slots: Slots) -> Slots:
        if pool is not Pool.SWA:
            return slots
        partners = self._pools.partners(slots)
        if not partners.all():
            missing = int((partners == 0).sum())
            raise violation("MATCH-3", "the window of a hit", f"{len(slots)} SWA slots", f"{missing} without one")
        return partners

    def _write_rows(self, pool: Pool, slots: Slots, layer: int, tensors: Sequence[torch.Tensor]) -> None:
        rows = to_rows(tensors, self._pools.slot_bytes(pool))
        self._pools.write(pool, slots, layer, rows)
