"""Every family answers as without a cache: from every tier, for prompts that diverge, and while it generates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.devices import missing_device
from hicache.types import Component, Tier, Tokens

from .answers import MORE_SEED, MORE_TOKENS, Answer, ask, check_close, check_exact, compute_rest, library_logits, prompt
from .cache_setup import CHUNK, ONE_CHUNK_TOKENS, PAGE, CacheSetup, OpenCache, in_storage, on_device, on_host, served
from .engine.cache_config import with_storage
from .engine.engine import Engine, Hits
from .families import FAMILIES, REPRESENTATIVES

EDGES = {torch.float32: (15, 16, 17, 31, 32, 33, 49, 97), torch.bfloat16: (33, 97)}
"""Lengths of prompts around pages of 16 and chunks of 32 tokens."""

NARROW_CHUNK, NARROW_EDGES = 8, (1, 2, 7, 8, 9, 22, 23, 24, 25, 41)
"""Lengths of prompts around pages of one token, chunks of 8, and windows of 23 tokens before the next one."""

LOWER_EDGES = {torch.float32: (17, 33, 97), torch.bfloat16: (97,)}
"""Fewer lengths, for the host and storage."""

CACHED = 105
"""Tokens of the prompt from which others diverge."""

BRANCHES = (5, 20, 40, 70, 90, 100)
"""Where prompts diverge: in the first page, inside a chunk, past a chunk's end, and in the last pages."""

WIDE_PAGE = 64
"""Wider than the windows."""

WIDE_EDGES = (63, 64, 65, 130)
"""Lengths of prompts around wide pages."""

BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "slotfile": {"root": "pages", "capacity_slots": 256},
    "hf3fs": {"root": "pages", "metadata_file": "metadata", "capacity_pages": 64},
}
"""Backends other than `file`, with their options. Paths are relative to the folder of a test."""

PROMPT, SAID, MORE = 41, 24, 19
"""Tokens of a conversation: its first prompt, those generated in each turn, and those asked after each turn."""

NO_GPU = pytest.mark.skipif(bool(missing_device("cuda")), reason=missing_device("cuda"))
each_family = pytest.mark.parametrize("family", FAMILIES)
each_kind = pytest.mark.parametrize("family", REPRESENTATIVES)

each_place = pytest.mark.parametrize(
    ("dtype", "device"),
    [
        pytest.param(torch.float32, "cpu", id="float32"),
        pytest.param(torch.bfloat16, "cpu", id="bfloat16"),
        # On a GPU the host tier has pinned memory, and CUDA streams copy the bytes.
        pytest.param(torch.bfloat16, "cuda", id="bfloat16-cuda", marks=[pytest.mark.gpu, NO_GPU]),
    ],
)


def compute_each(setup: CacheSetup, lengths: Iterable[int], chunk_tokens: int) -> dict[int, Answer]:
    """Compute prompts of these lengths in chunks. No two of them share a prefix."""
    engine = setup.engine(chunk_tokens)
    return {length: ask(engine, prompt(length, length)) for length in lengths}


def continue_each(setup: CacheSetup, firsts: Mapping[int, Answer], tier: Tier) -> None:
    """Ask for each prompt with more tokens after it, and check that its whole pages are hits on this tier.

    The answer must equal, in every bit, that of a transformers cache whose forwards end at the same positions, and up
    to rounding that of one forward over all tokens.
    """
    engine, page, model = setup.engine(ONE_CHUNK_TOKENS), setup.config.page_size, setup.model
    for length, first in firsts.items():
        place = f"{length} tokens from {tier.value}, and {MORE_TOKENS} more"
        tokens = np.concatenate((prompt(length, length), prompt(MORE_SEED + length, MORE_TOKENS)))
        answer = ask(engine, tokens)
        by_tier = {one: getattr(answer.hits, one.value) for one in Tier}
        cached = length // page * page
        assert by_tier == dict.fromkeys(Tier, 0) | {tier: cached}, (
            f"REQ-3: {place}: expected {cached} tokens from {tier.value} and none from other tiers, got {answer.hits}"
        )
        ends = [end for end in first.ends if end <= cached] + list(answer.ends)
        check_exact(place, library_logits(model.runner, tokens, ends)[cached:], answer.logits)
        check_close(place, model.layout.dtype, model.runner.forward(tokens, 0, None)[cached:], answer.logits)


@clause("REQ-3")
@each_place
@each_family
def test_the_device_answers_as_no_cache_would(
    family: str, dtype: torch.dtype, device: str, open_cache: OpenCache
) -> None:
    model = served(family, dtype, device)
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    continue_each(setup, compute_each(setup, EDGES[dtype], CHUNK), Tier.DEVICE)


@clause("REQ-3")
@each_family
def test_the_narrowest_pages_are_answered_as_no_cache_would(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    page = model.layout.tokens_per_entry
    chunk = max(page, NARROW_CHUNK)
    setup = CacheSetup(model, on_device(model, page, chunk), open_cache)
    continue_each(setup, compute_each(setup, NARROW_EDGES, chunk), Tier.DEVICE)


@clause("HOST-7", "FLOW-10", needs=(Capability.HOST,))
@each_place
@each_family
def test_the_host_answers_as_no_cache_would(
    family: str, dtype: torch.dtype, device: str, open_cache: OpenCache
) -> None:
    model = served(family, dtype, device)
    setup = CacheSetup(model, on_host(model), open_cache)
    firsts = compute_each(setup, LOWER_EDGES[dtype], CHUNK)
    setup.clear_device()
    continue_each(setup, firsts, Tier.HOST)


@clause("HOST-7", "FLOW-9", needs=(Capability.STORAGE,))
@each_place
@each_family
def test_storage_answers_as_no_cache_would(
    family: str, dtype: torch.dtype, device: str, open_cache: OpenCache, tmp_path: Path
) -> None:
    model = served(family, dtype, device)
    setup = CacheSetup(model, in_storage(model, tmp_path), open_cache)
    firsts = compute_each(setup, LOWER_EDGES[dtype], CHUNK)
    setup.restart()
    continue_each(setup, firsts, Tier.STORAGE)


@clause("HOST-7", "FLOW-9", needs=(Capability.STORAGE, Capability.SIDECARS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_stores_pools_whose_pages_differ_in_size(
    backend: str, open_cache: OpenCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = served("deepseek_v4", torch.float32, "cpu")
    names = {"model": model.runner.model_type, "fingerprint": model.runner.fingerprint}
    config = with_storage(on_host(model), backend=backend, options=BACKENDS[backend], **names)
    setup = CacheSetup(model, config, open_cache)
    firsts = compute_each(setup, LOWER_EDGES[torch.float32], CHUNK)
    setup.restart()
    continue_each(setup, firsts, Tier.STORAGE)


def ask_diverging(setup: CacheSetup) -> list[Hits]:
    """Ask twice for prompts that diverge from the cached one at different positions. Returns the first hits of each."""
    engine, cached, hits = setup.engine(ONE_CHUNK_TOKENS), prompt(1, CACHED), []
    has_states = Component.MAMBA in setup.config.components
    for branch in BRANCHES:
        place = f"a prompt that diverges after {branch} of {CACHED} cached tokens"
        tokens = np.concatenate((cached[:branch], prompt(branch + 10, MORE_TOKENS)))
        whole = setup.model.runner.forward(tokens, 0, None)
        first = ask(engine, tokens)
        # A state is cached at the end of each chunk, and of the last page of the prompt.
        cached_ends = (*range(0, CACHED, CHUNK if has_states else PAGE), CACHED // PAGE * PAGE)
        expected = max(end for end in cached_ends if end <= branch)
        assert first.hits.total >= expected, f"REQ-3: {place}: expected a hit of {expected}, got {first.hits}"
        assert first.hits.total <= branch, f"REQ-3: {place}: expected at most {branch} hits, got {first.hits}"
        check_close(place, torch.float32, whole[first.hits.total :], first.logits)
        second = ask(engine, tokens)
        again = len(tokens) // PAGE * PAGE
        assert second.hits.device == again, f"REQ-3: {place}, again: expected {again}, got {second.hits}"
        check_close(f"{place}, again", torch.float32, whole[again:], second.logits)
        hits.append(first.hits)
    return hits


@clause("REQ-3")
@each_kind
def test_a_prompt_that_diverges_in_the_middle_answers_as_no_cache_would(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    ask(setup.engine(CHUNK), prompt(1, CACHED))
    ask_diverging(setup)


@clause("REQ-3", "HOST-7", needs=(Capability.HOST,))
@each_kind
def test_a_prompt_that_diverges_from_a_prefix_on_the_host_answers_as_no_cache_would(
    family: str, open_cache: OpenCache
) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_host(model), open_cache)
    ask(setup.engine(CHUNK), prompt(1, CACHED))
    setup.clear_device()
    hits = ask_diverging(setup)
    assert any(one.host for one in hits), (
        f"HOST-7: expected host hits, as the cached prompt is on the host alone, got {hits}"
    )


@clause("REQ-3")
@each_kind
def test_a_page_wider_than_the_window_is_answered_as_no_cache_would(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, WIDE_PAGE, WIDE_PAGE), open_cache)
    continue_each(setup, compute_each(setup, WIDE_EDGES, WIDE_PAGE), Tier.DEVICE)


def say(engine: Engine, tokens: Tokens, count: int) -> tuple[Tokens, torch.Tensor]:
    """Generate tokens one by one. Returns the prompt with the generated tokens, and the logits that chose each."""
    generation = engine.begin(tokens)
    assert generation is not None, "expected room for one conversation"
    chosen_by = [compute_rest(engine, generation).logits[-1:]]
    for _ in range(count):
        assert engine.append(generation, int(chosen_by[-1].argmax())), "expected room for one more token"
        chosen_by.append(engine.compute_chunk(generation))
    engine.finish(generation)
    return generation.tokens, torch.cat(chosen_by)


@pytest.mark.parametrize("rereads", [False, True], ids=["kept", "reread"])
@each_kind
@clause("REQ-3")
def test_a_conversation_goes_on_as_no_cache_would(family: str, rereads: bool, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    engine = setup.engine(CHUNK, rereads=rereads)
    cached = 0
    tokens = prompt(5, PROMPT)
    for turn in range(2):
        before = len(tokens)
        tokens, chosen_by = say(engine, tokens, SAID)
        whole = model.runner.forward(tokens, 0, None)
        check_close(f"turn {turn} of {family}", torch.float32, whole[before - 1 :], chosen_by)
        again = ask(engine, np.concatenate((tokens, prompt(6, MORE))))
        cached = len(tokens) // PAGE * PAGE
        assert again.hits.device == cached, (
            f"REQ-3: expected {cached} tokens of the turn from the device, got {again.hits}"
        )
        tokens = np.concatenate((tokens, prompt(7 + turn, MORE)))
