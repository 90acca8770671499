"""Requests side by side: they share, wait, and take each other's slots, and none sees what is not its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Component, Tokens

from .crowd import Crowd
from .engine.cache_room import device_config, with_host
from .engine.engine import Engine
from .families.table import REPRESENTATIVES
from .gates import close
from .prompts import prompt
from .stage import CHUNK, PAGE, OpenCache, served

SHARED, OWN = 48, 37
PROMPTS, RUNNING, ROUNDS = 6, 4, 3
TOKENS, STATES = 256, 12
"""Room for the requests that run, and hardly more: each round takes the last one's slots."""


def prompts() -> list[Tokens]:
    """Some begin with the same tokens, and go on with others, of other lengths."""
    return [
        np.concatenate((prompt(number % 2, SHARED), prompt(10 + number, OWN + number))) for number in range(PROMPTS)
    ]


@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK], ids=lambda one: one.value)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", REPRESENTATIVES)
@clause("REQ-3", "HOST-7", needs=(Capability.HOST,))
def test_requests_that_run_together_answer_as_each_would_alone(
    family: str, dtype: torch.dtype, policy: WritePolicy, open_cache: OpenCache
) -> None:
    model = served(family, dtype, "cpu")
    config = device_config(model.layout, page_size=PAGE, chunk_tokens=CHUNK, tokens=TOKENS, states=STATES, device="cpu")
    if Component.SWA in config.components:
        # The slots of the window run out first, so that it alone is what a cached prompt loses.
        config = replace(config, capacity_tokens={**config.capacity_tokens, Component.FULL.value: 2 * TOKENS})
    config = with_host(config, tokens=2 * TOKENS, states=2 * STATES, policy=policy)
    engine = Engine(model, open_cache(config), config, chunk_tokens=CHUNK, rereads=True)
    crowd, asked = Crowd(engine, RUNNING), prompts()
    expected = [model.runner.forward(tokens, 0, None) for tokens in asked]
    hits = []
    for number in range(ROUNDS):
        for answer, whole in zip(crowd.serve(asked), expected, strict=True):
            hits.append(answer.hits)
            place = f"round {number}, {answer.hits}"
            close(place, dtype, whole[answer.hits.total :], answer.logits)
    assert crowd.waited, f"REQ-5: {RUNNING} requests do not fit into {TOKENS} slots, and none had to wait"
    assert any(one.device for one in hits), f"REQ-3: prompts share {SHARED} tokens, and none was hit: {hits}"
    assert any(one.host for one in hits), (
        f"HOST-7: {TOKENS} slots do not hold {PROMPTS} prompts, none was loaded: {hits}"
    )
