"""Stored objects with wrong bytes: their tokens are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import SHARED, Key, Pool, Tokens

from .answers import MORE_SEED, MORE_TOKENS, ask, check_close, prompt
from .cache_setup import CHUNK, ONE_CHUNK_TOKENS, CacheSetup, OpenCache, in_storage, served

DAMAGED: Mapping[str, Pool] = {
    "qwen3": Pool.KV,
    "gemma3": Pool.SWA,
    "qwen3_next": Pool.MAMBA,
    "deepseek_v32": Pool.INDEXER,
}
"""By family, the pool of which an object is damaged."""

CACHED = 3 * CHUNK


def damage(setup: CacheSetup, folder: Path, pool: Pool, tokens: Tokens) -> None:
    """Replace the bytes of a prompt's last page in a pool by those of another object of the pool."""
    files = {path.name.rpartition("+")[2]: path for path in folder.rglob(f"{pool.value}.*")}
    kept = [
        files[name] for key in setup.adapter.storage_keys(pool, Key(tokens, SHARED)) if (name := _hash(key)) in files
    ]
    if len(kept) < 2:
        pytest.skip(f"fewer than two files are named after keys of {pool.value}: no object can be damaged")
    kept[-1].write_bytes(kept[0].read_bytes())


def _hash(key: str) -> str:
    return key.rpartition("/")[2]


@clause("STORE-3", "REQ-3", needs=(Capability.STORAGE,))
@pytest.mark.parametrize(("family", "pool"), DAMAGED.items(), ids=DAMAGED)
def test_a_page_that_comes_back_with_other_bytes_is_computed_again(
    family: str, pool: Pool, open_cache: OpenCache, tmp_path: Path
) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, in_storage(model, tmp_path), open_cache)
    first = prompt(1, CACHED)
    ask(setup.engine(CHUNK), first)
    setup.adapter.drain()
    damage(setup, tmp_path, pool, first)
    setup.restart()
    tokens = np.concatenate((first, prompt(MORE_SEED, MORE_TOKENS)))
    answer = ask(setup.engine(ONE_CHUNK_TOKENS), tokens)
    whole = model.runner.forward(tokens, 0, None)[answer.hits.total :]
    check_close(
        f"{CACHED} tokens, the last page of {pool.value} damaged, {answer.hits}", torch.float32, whole, answer.logits
    )
    assert answer.hits.total < CACHED, (
        f"STORE-3: expected fewer hits than {CACHED}, as one page is damaged, got {answer.hits}"
    )
