"""One component alone leaves the device: what is left of the others there answers nothing by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Component

from .answer import ask
from .continuations import AT_ONCE, MORE_SEED, MORE_TOKENS
from .gates import close
from .prompts import prompt
from .stage import CHUNK, OpenCache, Stage, on_host, served

CHUNKS = 3
CACHED = CHUNKS * CHUNK
LEAVES = {"gemma3": Component.SWA, "qwen3_next": Component.MAMBA, "lfm3": Component.SWA, "zaya": Component.MAMBA}
"""A family, and the component that leaves."""


@clause("HOST-4", "REQ-3", needs=(Capability.HOST,))
@pytest.mark.parametrize(("family", "component"), LEAVES.items(), ids=LEAVES)
def test_a_component_that_left_alone_comes_back(family: str, component: Component, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_host(model), open_cache)
    first = prompt(1, CACHED)
    # Only before a later prompt's end does one component go alone: a leaf goes whole.
    for tokens in (first, np.concatenate((first, prompt(2, CHUNK)))):
        ask(stage.engine(CHUNK), tokens)
    stage.adapter.drain()
    freed = stage.adapter.evict(component, CHUNKS if component is Component.MAMBA else CACHED).freed
    assert freed[component], f"HOST-4: {component.value} of {CACHED} tokens was to leave, got {freed}"
    assert not freed[Component.FULL], f"HOST-4: {component.value} alone was to leave, got {freed}"
    tokens = np.concatenate((first, prompt(MORE_SEED, MORE_TOKENS)))
    answer = ask(stage.engine(AT_ONCE), tokens)
    place = f"{CACHED} tokens, {component.value} of them on the host alone, {answer.hits}"
    assert answer.hits.total == CACHED, f"HOST-4: {place}: expected all of them"
    close(place, torch.float32, model.runner.forward(tokens, 0, None)[CACHED:], answer.logits)
