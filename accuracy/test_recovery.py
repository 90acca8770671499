"""A component evicted alone is loaded back; tokens whose copy failed or whose page is damaged are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import SHARED, Component, Key, Pool, Tokens

from .answers import MORE_SEED, MORE_TOKENS, ask, check_close, prompt
from .cache_setup import CHUNK, ONE_CHUNK_TOKENS, CacheSetup, OpenCache, in_storage, on_host, served
from .engine.engine import Hits
from .engine.served_model import ServedModel
from .families import REPRESENTATIVES

CHUNKS = 3
CACHED = CHUNKS * CHUNK
"""Tokens of the prompt that is cached first."""

EVICTED = {
    "gemma3": Component.SWA,
    "deepseek_v4": Component.SWA,
    "qwen3_next": Component.MAMBA,
    "lfm3": Component.SWA,
    "zaya": Component.MAMBA,
}
"""By family, the component that is evicted alone."""

WITHOUT_KV = {name: EVICTED[name] for name in ("gemma3", "qwen3_next")}
"""By family, all of the component is evicted from the device while the KV stays there."""

DAMAGED: Mapping[str, str] = {
    "qwen3": Pool.KV,
    "gemma3": Pool.SWA,
    "qwen3_next": Pool.MAMBA,
    "deepseek_v32": Pool.INDEXER,
    "deepseek_v4": "compressor_4",
}
"""By family, the pool of which an object is damaged."""

ALL_WAITS = 1 << 10
"""More than the copies that a test waits for."""

each_without_kv = pytest.mark.parametrize(("family", "lost"), WITHOUT_KV.items(), ids=WITHOUT_KV)


def ask_more(setup: CacheSetup, place: str) -> Hits:
    """Ask for the first prompt with more tokens after it, and check the answer. Returns its hits."""
    tokens = np.concatenate((prompt(1, CACHED), prompt(MORE_SEED, MORE_TOKENS)))
    answer = ask(setup.engine(ONE_CHUNK_TOKENS), tokens)
    whole = setup.model.runner.forward(tokens, 0, None)[answer.hits.total :]
    check_close(f"{place}, {answer.hits}", torch.float32, whole, answer.logits)
    return answer.hits


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
    place = f"{CACHED} tokens, {component.value} of them on the host alone"
    hits = ask_more(setup, place)
    assert hits.total == CACHED, f"HOST-4: {place}, {hits}: expected {CACHED} hits, got {hits.total}"


def cache_prompts(setup: CacheSetup) -> Tokens:
    """Cache a prompt and a longer one after it, so that a component can be evicted alone. Returns the longer one."""
    engine, longer = setup.engine(CHUNK), np.concatenate((prompt(1, CACHED), prompt(2, MORE_TOKENS)))
    ask(engine, prompt(1, CACHED))
    ask(engine, longer)
    setup.adapter.drain()
    return longer


def check_hits(setup: CacheSetup, expected: Hits) -> None:
    """Ask for the first prompt with other tokens after it, and check hits and answer."""
    tokens = np.concatenate((prompt(1, CACHED), prompt(3, MORE_TOKENS)))
    answer = ask(setup.engine(CHUNK), tokens)
    assert answer.hits == expected, f"MATCH-12: expected {expected}, got {answer.hits}"
    whole = setup.model.runner.forward(tokens, 0, None)[CACHED:]
    check_close(f"{CACHED} tokens, {answer.hits}", torch.float32, whole, answer.logits)


@clause("MATCH-12", "HOST-4", needs=(Capability.HOST,))
@each_without_kv
def test_kv_that_stayed_on_the_device_is_no_host_hit(family: str, lost: Component, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_host(model), open_cache)
    cache_prompts(setup)
    setup.adapter.evict(lost.value, setup.config.capacity_tokens[lost.value])
    check_hits(setup, Hits(CACHED, 0, 0))


@clause("MATCH-12", "FETCH-6", needs=(Capability.STORAGE,))
@each_without_kv
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


def by_steps(model: ServedModel) -> CacheConfig:
    """A host tier whose copies run, or fail, when a call waits for them."""
    config = on_host(model)
    assert config.host is not None, "expected a configuration with a host tier"
    return replace(config, host=replace(config.host, executor=ExecutorKind.STEPPED))


@clause("FLOW-3", "REQ-3", needs=(Capability.HOST, Capability.STEPPED))
@pytest.mark.parametrize("family", REPRESENTATIVES)
@pytest.mark.parametrize("fails", ["backup", "load"])
def test_tokens_whose_copy_failed_are_computed_again(family: str, fails: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, by_steps(model), open_cache)
    ask(setup.engine(CHUNK), prompt(1, CACHED))
    setup.adapter.fail_waits(ALL_WAITS if fails == "backup" else 0)
    setup.clear_device()
    setup.adapter.fail_waits(1 if fails == "load" else 0)
    hits = ask_more(setup, f"after a {fails} that failed")
    assert not hits.total, f"FLOW-3: expected no hits after the failed copy of {CACHED} tokens, got {hits}"


def damage(setup: CacheSetup, folder: Path, pool: str, tokens: Tokens) -> None:
    """Replace the bytes of a prompt's last page in a pool by those of another object of the pool."""
    files = {path.name.rpartition("+")[2]: path for path in folder.rglob(f"{pool}.*")}
    kept = [
        files[name] for key in setup.adapter.storage_keys(pool, Key(tokens, SHARED)) if (name := _hash(key)) in files
    ]
    if len(kept) < 2:
        pytest.skip(f"fewer than two files are named after keys of {pool}: no object can be damaged")
    kept[-1].write_bytes(kept[0].read_bytes())


def _hash(key: str) -> str:
    return key.rpartition("/")[2]


@clause("STORE-3", "REQ-3", needs=(Capability.STORAGE,))
@pytest.mark.parametrize(("family", "pool"), DAMAGED.items(), ids=DAMAGED)
def test_a_page_that_comes_back_with_other_bytes_is_computed_again(
    family: str, pool: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, in_storage(model, tmp_path), open_cache)
    first = prompt(1, CACHED)
    ask(setup.engine(CHUNK), first)
    setup.adapter.drain()
    damage(setup, tmp_path, pool, first)
    setup.restart()
    hits = ask_more(setup, f"{CACHED} tokens, the last page of {pool} damaged")
    assert hits.total < CACHED, f"STORE-3: expected fewer hits than {CACHED}, as one page is damaged, got {hits}"
