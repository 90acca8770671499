"""ServedModel: a model that was checked to continue correctly from what the pools of a cache hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from transformers import PreTrainedModel

from hicache.config import BufferShape
from hicache.testing.adapter import PageBytes
from hicache.types import Slots

from .cache_config import model_shape
from .model_layout import ModelLayout, ModelPools, RefusedFamily
from .model_runner import ModelRunner, RecordedCache, divergence


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """`runner`: computes its forwards. `layout`: what each of its layers caches, and in which pool."""

    runner: ModelRunner
    layout: ModelLayout

    @classmethod
    def of(cls, model: PreTrainedModel) -> ServedModel:
        """Inspect and check a model. Raises RefusedFamily, with the reason, for one that the engine cannot serve."""
        runner = ModelRunner(model)
        layout = ModelLayout.of(runner)
        check_continuation(runner, layout)
        return cls(runner, layout)


STOP_TOKENS, MORE_TOKENS = 29, 19
"""The first is odd: of several tokens that have one entry, some are computed before the stop and some after it."""

MAX_NATS = 1e-6
"""In float32, far above the effect of another order of additions, and far below that of a lost state."""


def check_continuation(runner: ModelRunner, layout: ModelLayout) -> None:
    """Compute a prompt in two forwards, the second from the cache itself or from restored bytes, and in one forward.

    Raises RefusedFamily, with what differs. The comparison with one forward is made in float32 only: in other dtypes
    rounding hides the difference.
    """
    vocabulary = runner.model.config.get_text_config(decoder=True).vocab_size
    first_slot = layout.tokens_per_entry
    stop = STOP_TOKENS + 2 * first_slot
    tokens = np.random.default_rng(0).integers(vocabulary, size=stop + MORE_TOKENS).astype(np.int32)
    live, pools = RecordedCache(runner.new_cache()), ModelPools(runner, layout, ArrayPools(layout, first_slot + stop))
    runner.forward(tokens[:stop], 0, live.cache)
    slots = np.arange(first_slot, first_slot + stop, dtype=np.int64)
    pools.write(live, slots)
    pools.write_state(live, 0)
    restored = pools.restore(slots, 0)
    answers = [runner.forward(tokens[stop:], stop, one.cache) for one in (live, restored)]
    if not torch.equal(*answers):
        raise RefusedFamily(runner.model_type, "its layers do not cache everything that it needs to continue")
    if layout.dtype is torch.float32:
        nats = float(divergence(runner.forward(tokens, 0, None)[stop:], answers[0]).max())
        if not nats <= MAX_NATS:
            raise RefusedFamily(runner.model_type, f"it continues wrongly from its own cache, by {nats:.1e} nats")


class ArrayPools:
    """Pools without a cache: a row of bytes for each slot, and each slot its own partner."""

    def __init__(self, layout: ModelLayout, slots: int) -> None:
        self._slots = slots
        self._bytes = {pool.name: sum(map(_size_bytes, pool.buffers)) for pool in model_shape(layout).pools}
        self._rows: dict[tuple[str, int], PageBytes] = {}

    def partners(self, slots: Slots) -> Slots:
        return slots

    def slot_bytes(self, pool: str) -> int:
        return self._bytes[pool]

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        empty = np.zeros((self._slots, self._bytes[pool]), dtype=np.uint8)
        self._rows.setdefault((pool, layer), empty)[slots] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        rows: PageBytes = self._rows[pool, layer][slots]
        return rows


def _size_bytes(buffer: BufferShape) -> int:
    dtype: torch.dtype = getattr(torch, buffer.dtype)
    return prod(buffer.shape) * dtype.itemsize
