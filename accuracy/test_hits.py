"""Hits by tier: each token of a prompt is counted once, on the tier that its KV came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import SHARED, Component, Key, Tokens

from .answers import ask, check_close, prompt
from .cache_setup import CHUNK, CacheSetup, OpenCache, in_storage, on_host, served
from .engine.prefix_finder import Hits

CACHED, MORE = 96, 45
EVICTED = {"gemma3": Component.SWA, "qwen3_next": Component.MAMBA}
"""By family, the component that is evicted from the device while the KV stays there."""

each_loss = pytest.mark.parametrize(("family", "lost"), EVICTED.items(), ids=EVICTED)


def cache_prompts(setup: CacheSetup) -> Tokens:
    """Cache a prompt and a longer one after it, so that a component can be evicted alone. Returns the longer one."""
    engine, longer = setup.engine(CHUNK), np.concatenate((prompt(1, CACHED), prompt(2, MORE)))
    ask(engine, prompt(1, CACHED))
    ask(engine, longer)
    setup.adapter.drain()
    return longer


def check_hits(setup: CacheSetup, expected: Hits) -> None:
    """Ask for the first prompt with other tokens after it, and check hits and answer."""
    tokens = np.concatenate((prompt(1, CACHED), prompt(3, MORE)))
    answer = ask(setup.engine(CHUNK), tokens)
    assert answer.hits == expected, f"MATCH-12: expected {expected}, got {answer.hits}"
    whole = setup.model.runner.forward(tokens, 0, None)[CACHED:]
    check_close(f"{CACHED} tokens, {answer.hits}", torch.float32, whole, answer.logits)


@clause("MATCH-12", "HOST-4", needs=(Capability.HOST,))
@each_loss
def test_kv_that_stayed_on_the_device_is_no_host_hit(family: str, lost: Component, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_host(model), open_cache)
    cache_prompts(setup)
    setup.adapter.evict(lost.value, setup.config.capacity_tokens[lost.value])
    check_hits(setup, Hits(CACHED, 0, 0))


@clause("MATCH-12", "FETCH-6", needs=(Capability.STORAGE,))
@each_loss
def test_kv_that_stayed_on_the_device_is_no_storage_hit(
    family: str, lost: Component, open_cache: OpenCache, tmp_path: Path
) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, in_storage(model, tmp_path), open_cache)
    longer, capacity = cache_prompts(setup), setup.config.capacity_tokens[lost.value]
    # Without a lock on the longer prompt, its leaf would be removed from the host, and the node before it then too.
    pinned = setup.adapter.lock_host(setup.adapter.match(Key(longer, SHARED), chunked=False).best_match)
    setup.adapter.evict(lost.value, capacity)
    setup.adapter.evict_host(lost.value, capacity)
    setup.adapter.unlock_host(pinned)
    check_hits(setup, Hits(CACHED, 0, 0))
