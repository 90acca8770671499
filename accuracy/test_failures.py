"""Copies that fail: what did not come, or was not kept, is computed again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause

from .answer import ask
from .continuations import AT_ONCE, MORE_SEED, MORE_TOKENS
from .engine.served_model import ServedModel
from .families.table import REPRESENTATIVES
from .gates import close
from .prompts import prompt
from .stage import CHUNK, OpenCache, Stage, on_host, served

CACHED = 3 * CHUNK
ALL = 1 << 10

each_kind = pytest.mark.parametrize("family", REPRESENTATIVES)


def by_steps(model: ServedModel) -> CacheConfig:
    """A host tier whose copies move, or fail, when somebody waits for them."""
    config = on_host(model)
    assert config.host is not None, "a cache with a host tier"
    return replace(config, host=replace(config.host, executor=ExecutorKind.STEPPED))


@clause("FLOW-3", "REQ-3", needs=(Capability.HOST, Capability.STEPPED))
@each_kind
@pytest.mark.parametrize("fails", ["backup", "load"])
def test_what_was_not_copied_is_computed_again(family: str, fails: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, by_steps(model), open_cache)
    first = prompt(1, CACHED)
    ask(stage.engine(CHUNK), first)
    stage.adapter.fail_waits(ALL if fails == "backup" else 0)
    stage.leave_device()
    stage.adapter.fail_waits(1 if fails == "load" else 0)
    tokens = np.concatenate((first, prompt(MORE_SEED, MORE_TOKENS)))
    answer = ask(stage.engine(AT_ONCE), tokens)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    close(f"after a {fails} that failed, {answer.hits}", torch.float32, whole, answer.logits)
    assert not answer.hits.total, f"FLOW-3: nothing came of {CACHED} tokens, got {answer.hits}"
