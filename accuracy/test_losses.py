"""The negative control: answers without the data of one component exceed the gates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability, PageBytes
from hicache.testing.contract import clause
from hicache.types import Pool, Slots

from .answers import GATES, ask, prompt
from .cache_setup import CHUNK, CacheSetup, OpenCache, on_host, served
from .engine.model_runner import divergence

LOSSES: Mapping[str, Pool] = {
    "llama": Pool.KV,
    "deepseek_v3": Pool.KV,
    "gemma3": Pool.SWA,
    "mistral": Pool.SWA,
    "qwen3_next": Pool.MAMBA,
    "bamba": Pool.MAMBA,
    "lfm2": Pool.MAMBA,
    "deepseek_v32": Pool.INDEXER,
    "zaya": Pool.SWA,
    "lfm3": Pool.MAMBA,
}
"""By family, one for each kind of layer (attention of each sort, states, an index), the pool whose bytes are lost."""

CACHED, MORE = 96, 45


@pytest.mark.parametrize("dtype", GATES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "pool"), LOSSES.items(), ids=LOSSES)
@clause("REQ-3", needs=(Capability.HOST,))
def test_lost_bytes_exceed_the_gates(
    family: str, pool: Pool, dtype: torch.dtype, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served(family, dtype, "cpu")
    setup = CacheSetup(model, on_host(model), open_cache)
    tokens = prompt(1, CACHED + MORE)
    ask(setup.engine(CHUNK), tokens[:CACHED])
    setup.clear_device()
    read = setup.adapter.read

    def read_zeros(read_pool: Pool, slots: Slots, layer: int) -> PageBytes:
        rows = read(read_pool, slots, layer)
        return np.zeros_like(rows) if read_pool is pool else rows

    monkeypatch.setattr(setup.adapter, "read", read_zeros)
    answer = ask(setup.engine(CHUNK), tokens)
    assert answer.hits.host == CACHED, f"FLOW-10: expected {CACHED} tokens from the host, got {answer.hits}"
    nats = divergence(model.runner.forward(tokens, 0, None)[CACHED:], answer.logits)
    mean, worst = float(nats.mean()), float(nats.max())
    gate = GATES[dtype]
    assert mean > gate.mean, f"without {pool.value}: expected more than {gate}, got {mean:.1e} nats a token"
    assert worst > gate.worst, (
        f"without {pool.value}: expected more than {gate}, got {worst:.1e} nats at the worst token"
    )
