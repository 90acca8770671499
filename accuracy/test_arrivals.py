"""Where the tokens of a prompt came from: each is counted once, where its KV was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import SHARED, Component, Key, Tokens

from .answer import ask
from .engine.arrivals import Hits
from .gates import close
from .prompts import prompt
from .stage import CHUNK, OpenCache, Stage, in_storage, on_host, served

CACHED, MORE = 96, 45
LACKING = {"gemma3": Component.SWA, "qwen3_next": Component.MAMBA}
"""A family, and what the device may lose of its prompts without their KV."""

each_loss = pytest.mark.parametrize(("family", "lost"), LACKING.items(), ids=LACKING)


def computed(stage: Stage) -> Tokens:
    """Cache a prompt and a longer one past it, so that the end of the first can lose a component alone."""
    engine, longer = stage.engine(CHUNK), np.concatenate((prompt(1, CACHED), prompt(2, MORE)))
    ask(engine, prompt(1, CACHED))
    ask(engine, longer)
    stage.adapter.drain()
    return longer


def continued(stage: Stage, expected: Hits) -> None:
    """Go on from the first prompt with other tokens."""
    tokens = np.concatenate((prompt(1, CACHED), prompt(3, MORE)))
    answer = ask(stage.engine(CHUNK), tokens)
    assert answer.hits == expected, f"MATCH-12: expected {expected}, got {answer.hits}"
    whole = stage.model.runner.forward(tokens, 0, None)[CACHED:]
    close(f"{CACHED} tokens, {answer.hits}", torch.float32, whole, answer.logits)


@clause("MATCH-12", "HOST-4", needs=(Capability.HOST,))
@each_loss
def test_kv_that_stayed_on_the_device_is_no_hit_on_the_host(
    family: str, lost: Component, open_cache: OpenCache
) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_host(model), open_cache)
    computed(stage)
    stage.adapter.evict(lost.value, stage.config.capacity_tokens[lost.value])
    continued(stage, Hits(CACHED, 0, 0))


@clause("MATCH-12", "FETCH-6", needs=(Capability.STORAGE,))
@each_loss
def test_kv_that_stayed_on_the_device_is_no_hit_in_storage(
    family: str, lost: Component, open_cache: OpenCache, tmp_path: Path
) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, in_storage(model, tmp_path), open_cache)
    longer, room = computed(stage), stage.config.capacity_tokens[lost.value]
    # Where nothing is left of what goes on from a node, a node that lacks something goes altogether.
    pinned = stage.adapter.lock_host(stage.adapter.match(Key(longer, SHARED), chunked=False).best_match)
    stage.adapter.evict(lost.value, room)
    stage.adapter.evict_host(lost.value, room)
    stage.adapter.unlock_host(pinned)
    continued(stage, Hits(CACHED, 0, 0))
