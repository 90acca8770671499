"""Proof: a model goes on from the bytes of its slots as if it had never stopped, or it is refused."""

from __future__ import annotations

import numpy as np
import torch

from hicache.testing.adapter import PageBytes
from hicache.types import Pool, Slots

from .divergence import divergence
from .model_layout import ModelLayout
from .model_pools import ModelPools
from .model_runner import ModelRunner
from .recorded_cache import RecordedCache
from .refusal import RefusedFamily

PROOF_TOKENS = 48
STOP_TOKENS = 32

WRONG = 1e-6
"""Nats: in float32 far above what the order of additions makes, and far below what a lost state does."""


class ProofPools:
    """Pools without a cache: a row of bytes for each slot, and each slot its own partner."""

    def __init__(self, layout: ModelLayout) -> None:
        self._bytes = {
            Pool.KV: max((part.size_bytes for part in layout.attention), default=0),
            Pool.SWA: max((part.size_bytes for part in layout.attention), default=0),
            Pool.INDEXER: max((part.keys.size_bytes for part in layout.index), default=0),
            Pool.MAMBA: max(
                (part.size_bytes("conv") + part.size_bytes("recurrent") for part in layout.states), default=0
            ),
        }
        self._rows: dict[tuple[Pool, int], PageBytes] = {}

    def partners(self, slots: Slots) -> Slots:
        return slots

    def slot_bytes(self, pool: Pool) -> int:
        return self._bytes[pool]

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        empty = np.zeros((PROOF_TOKENS + 1, self._bytes[pool]), dtype=np.uint8)
        self._rows.setdefault((pool, layer), empty)[slots] = data

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        rows: PageBytes = self._rows[pool, layer][slots]
        return rows


def prove(runner: ModelRunner, layout: ModelLayout) -> None:
    """Stop a prompt in its middle and go on: from the cache itself, from the bytes, and without having stopped.

    Raises RefusedFamily, saying which of them differ. Only in float32 can the last be told from rounding.
    """
    vocabulary = runner.model.config.get_text_config(decoder=True).vocab_size
    tokens = np.random.default_rng(0).integers(vocabulary, size=PROOF_TOKENS).astype(np.int32)
    live, pools = RecordedCache(runner.new_cache()), ModelPools(runner, layout, ProofPools(layout))
    runner.forward(tokens[:STOP_TOKENS], 0, live.cache)
    slots = np.arange(1, STOP_TOKENS + 1, dtype=np.int64)
    pools.write(live, slots)
    pools.write_state(live, 0)
    restored = pools.restore(slots, 0)
    answers = [runner.forward(tokens[STOP_TOKENS:], STOP_TOKENS, one.cache) for one in (live, restored)]
    if not torch.equal(*answers):
        raise RefusedFamily(runner.model_type, "what its layers keep is not all that it goes on from")
    if layout.dtype is torch.float32:
        apart = float(divergence(runner.forward(tokens, 0, None)[STOP_TOKENS:], answers[0]).max())
        if not apart <= WRONG:
            raise RefusedFamily(runner.model_type, f"it goes on from its own cache wrongly, by {apart:.1e} nats")
