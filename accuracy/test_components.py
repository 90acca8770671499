"""One component alone is evicted from the device: it is loaded back, and the answer is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Component

from .answers import MORE_SEED, MORE_TOKENS, ask, check_close, prompt
from .cache_setup import CHUNK, ONE_CHUNK_TOKENS, CacheSetup, OpenCache, on_host, served

CHUNKS = 3
CACHED = CHUNKS * CHUNK
EVICTED = {"gemma3": Component.SWA, "qwen3_next": Component.MAMBA, "lfm3": Component.SWA, "zaya": Component.MAMBA}
"""By family, the component that is evicted."""


@clause("HOST-4", "REQ-3", needs=(Capability.HOST,))
@pytest.mark.parametrize(("family", "component"), EVICTED.items(), ids=EVICTED)
def test_a_component_that_was_evicted_alone_is_loaded_back(
    family: str, component: Component, open_cache: OpenCache
) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_host(model), open_cache)
    first = prompt(1, CACHED)
    # Only inside a longer prompt can one component be evicted alone: a leaf is evicted as a whole.
    for tokens in (first, np.concatenate((first, prompt(2, CHUNK)))):
        ask(setup.engine(CHUNK), tokens)
    setup.adapter.drain()
    freed = setup.adapter.evict(component, CHUNKS if component is Component.MAMBA else CACHED).freed
    assert freed[component], f"HOST-4: expected the eviction to free {component.value} of {CACHED} tokens, got {freed}"
    assert not freed[Component.FULL], f"HOST-4: expected the eviction to free {component.value} alone, got {freed}"
    tokens = np.concatenate((first, prompt(MORE_SEED, MORE_TOKENS)))
    answer = ask(setup.engine(ONE_CHUNK_TOKENS), tokens)
    place = f"{CACHED} tokens, {component.value} of them on the host alone, {answer.hits}"
    assert answer.hits.total == CACHED, f"HOST-4: {place}: expected {CACHED} hits, got {answer.hits.total}"
    check_close(place, torch.float32, model.runner.forward(tokens, 0, None)[CACHED:], answer.logits)
