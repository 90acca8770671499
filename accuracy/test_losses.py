"""The negative control: without the data of one component the gates close, so that they would tell if it were lost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability, PageBytes
from hicache.testing.contract import clause
from hicache.types import Pool, Slots

from .answer import ask
from .engine.divergence import divergence
from .gates import GATES
from .prompts import prompt
from .stage import CHUNK, OpenCache, Stage, on_host, served

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
"""A family for each kind of layer, and the pool whose bytes are lost: attention of each sort, states, an index."""

CACHED, MORE = 96, 45


@pytest.mark.parametrize("dtype", GATES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "pool"), LOSSES.items(), ids=LOSSES)
@clause("REQ-3", needs=(Capability.HOST,))
def test_bytes_that_are_lost_on_the_way_are_seen(
    family: str, pool: Pool, dtype: torch.dtype, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served(family, dtype, "cpu")
    stage = Stage(model, on_host(model), open_cache)
    tokens = prompt(1, CACHED + MORE)
    ask(stage.engine(CHUNK), tokens[:CACHED])
    stage.leave_device()
    read = stage.adapter.read

    def lossy(asked: Pool, slots: Slots, layer: int) -> PageBytes:
        rows = read(asked, slots, layer)
        return np.zeros_like(rows) if asked is pool else rows

    monkeypatch.setattr(stage.adapter, "read", lossy)
    answer = ask(stage.engine(CHUNK), tokens)
    assert answer.hits.host == CACHED, f"FLOW-10: {CACHED} tokens are on the host, got {answer.hits}"
    apart = divergence(model.runner.forward(tokens, 0, None)[CACHED:], answer.logits)
    mean, most = float(apart.mean()), float(apart.max())
    gate = GATES[dtype]
    assert mean > gate.mean, f"without {pool.value} the gate of {gate} stays open: {mean:.1e} nats a token"
    assert most > gate.most, f"without {pool.value} the gate of {gate} stays open: {most:.1e} nats at the worst token"
