"""Prompts that diverge from a cached one in its middle, and pages that are wider than a window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Component, Tier

from .answer import ask
from .cache_setup import CHUNK, PAGE, CacheSetup, OpenCache, on_device, on_host, served
from .continuations import MORE_TOKENS, ONE_CHUNK_TOKENS, compute_each, continue_each
from .engine.prefix_finder import Hits
from .families import REPRESENTATIVES
from .gates import check_close
from .prompts import prompt

CACHED = 105
BRANCHES = (5, 20, 40, 70, 90, 100)
"""Where prompts diverge: in the first page, inside a chunk, past a chunk's end, and in the last pages."""

WIDE_PAGE = 64
WIDE_EDGES = (63, 64, 65, 130)

each_kind = pytest.mark.parametrize("family", REPRESENTATIVES)


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
