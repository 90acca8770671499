"""Storage whose objects hold other bytes than were kept: what they were of is computed again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import SHARED, Key, Pool, Tokens

from .answer import ask
from .continuations import AT_ONCE, MORE_SEED, MORE_TOKENS
from .gates import close
from .prompts import prompt
from .stage import CHUNK, OpenCache, Stage, in_storage, served

DAMAGED: Mapping[str, Pool] = {
    "qwen3": Pool.KV,
    "gemma3": Pool.SWA,
    "qwen3_next": Pool.MAMBA,
    "deepseek_v32": Pool.INDEXER,
}
"""A family, and the pool of which an object is damaged."""

CACHED = 3 * CHUNK


def damage(stage: Stage, folder: Path, pool: Pool, tokens: Tokens) -> None:
    """Put the bytes of another object of the pool where those of the last page of a prompt were."""
    files = {path.name.rpartition("+")[2]: path for path in folder.rglob(f"{pool.value}.*")}
    kept = [
        files[name] for key in stage.adapter.storage_keys(pool, Key(tokens, SHARED)) if (name := _hash(key)) in files
    ]
    if len(kept) < 2:
        pytest.skip(f"no files are named after the keys of {pool.value}: there is nothing to damage")
    kept[-1].write_bytes(kept[0].read_bytes())


def _hash(key: str) -> str:
    return key.rpartition("/")[2]


@clause("STORE-3", "REQ-3", needs=(Capability.STORAGE,))
@pytest.mark.parametrize(("family", "pool"), DAMAGED.items(), ids=DAMAGED)
def test_a_page_that_comes_back_with_other_bytes_is_computed_again(
    family: str, pool: Pool, open_cache: OpenCache, tmp_path: Path
) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, in_storage(model, tmp_path), open_cache)
    first = prompt(1, CACHED)
    ask(stage.engine(CHUNK), first)
    stage.adapter.drain()
    damage(stage, tmp_path, pool, first)
    stage.restart()
    tokens = np.concatenate((first, prompt(MORE_SEED, MORE_TOKENS)))
    answer = ask(stage.engine(AT_ONCE), tokens)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    close(f"{CACHED} tokens, the last page of {pool.value} damaged, {answer.hits}", torch.float32, whole, answer.logits)
    assert answer.hits.total < CACHED, f"STORE-3: one page of {CACHED} tokens is damaged, got {answer.hits}"
