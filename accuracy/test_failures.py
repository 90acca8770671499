"""Failed backups and load-backs: the tokens are computed again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause

from .answers import MORE_SEED, MORE_TOKENS, ask, check_close, prompt
from .cache_setup import CHUNK, ONE_CHUNK_TOKENS, CacheSetup, OpenCache, on_host, served
from .engine.served_model import ServedModel
from .families import REPRESENTATIVES

CACHED = 3 * CHUNK
ALL = 1 << 10

each_kind = pytest.mark.parametrize("family", REPRESENTATIVES)


def by_steps(model: ServedModel) -> CacheConfig:
    """A host tier whose copies run, or fail, when a call waits for them."""
    config = on_host(model)
    assert config.host is not None, "expected a configuration with a host tier"
    return replace(config, host=replace(config.host, executor=ExecutorKind.STEPPED))


@clause("FLOW-3", "REQ-3", needs=(Capability.HOST, Capability.STEPPED))
@each_kind
@pytest.mark.parametrize("fails", ["backup", "load"])
def test_tokens_whose_copy_failed_are_computed_again(family: str, fails: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, by_steps(model), open_cache)
    first = prompt(1, CACHED)
    ask(setup.engine(CHUNK), first)
    setup.adapter.fail_waits(ALL if fails == "backup" else 0)
    setup.clear_device()
    setup.adapter.fail_waits(1 if fails == "load" else 0)
    tokens = np.concatenate((first, prompt(MORE_SEED, MORE_TOKENS)))
    answer = ask(setup.engine(ONE_CHUNK_TOKENS), tokens)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    check_close(f"after a {fails} that failed, {answer.hits}", torch.float32, whole, answer.logits)
    assert not answer.hits.total, (
        f"FLOW-3: expected no hits after the failed copy of {CACHED} tokens, got {answer.hits}"
    )
