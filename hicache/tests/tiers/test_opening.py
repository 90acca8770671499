"""open_cache: over files, on threads and on real time, a prompt is there when the cache is opened again."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from hicache.cache import UnifiedRadixCache, open_cache
from hicache.config import CacheConfig
from hicache.tests.tiers.stored_cache import stored_config
from hicache.types import SHARED

TIMEOUT_S = 30
"""How long the test waits for the prefetch before it fails."""

PROMPT = np.arange(9, dtype=np.int32)


def filed(root: Path) -> CacheConfig:
    """The tiny configuration over files, on threads."""
    config = stored_config(root=str(root))
    assert config.storage is not None, "the configuration has a storage tier"
    return replace(config, storage=replace(config.storage, backend="file"))


def insert_prompt(cache: UnifiedRadixCache) -> None:
    slots, state = cache.allocate(len(PROMPT)), cache.allocate_state()
    assert slots is not None, "the cache is empty"
    cache.insert(cache.key(PROMPT, SHARED), slots, state, priority=0)


def test_a_prompt_outlives_its_cache(tmp_path: Path) -> None:
    first = open_cache(filed(tmp_path))
    insert_prompt(first)
    first.drain()
    assert first.counters.bytes_stored > 0, "FETCH-9: what is on the host is written to storage"
    first.close()
    second = open_cache(filed(tmp_path))
    operation = second.prefetch(second.key(PROMPT, SHARED))
    assert operation is not None, "the prompt is long enough for a prefetch"
    deadline = time.monotonic() + TIMEOUT_S
    while (came := second.check_prefetch(operation)) is None and time.monotonic() < deadline:
        second.step()
    assert came == len(PROMPT), f"FLOW-9: all of it comes back after a restart, got {came}"
    found = second.match(second.key(PROMPT, SHARED), chunked=False)
    assert found.host_hit_length == len(PROMPT), "and the next match finds it on the host"
    second.close()
