"""Prompts that part from a cached one in its middle, and pages that are wider than a window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Component, Tier

from .answer import ask
from .continuations import AT_ONCE, MORE_TOKENS, compute_each, continue_each
from .engine.arrivals import Hits
from .families.table import REPRESENTATIVES
from .gates import close
from .prompts import prompt
from .stage import CHUNK, PAGE, OpenCache, Stage, on_device, on_host, served

CACHED = 105
BRANCHES = (5, 20, 40, 70, 90, 100)
"""Where prompts part: in the first page, inside a chunk, past a chunk's end, and in the last pages."""

WIDE_PAGE = 64
WIDE_EDGES = (63, 64, 65, 130)

each_kind = pytest.mark.parametrize("family", REPRESENTATIVES)


def part(stage: Stage) -> list[Hits]:
    """Ask for prompts that part from the cached one, each at another place, twice. Returns what each hit at first."""
    engine, cached, hits = stage.engine(AT_ONCE), prompt(1, CACHED), []
    has_states = Component.MAMBA in stage.config.components
    for branch in BRANCHES:
        place = f"a prompt that parts after {branch} of {CACHED} cached tokens"
        tokens = np.concatenate((cached[:branch], prompt(branch + 10, MORE_TOKENS)))
        whole = stage.model.runner.forward(tokens, 0, None)
        first = ask(engine, tokens)
        # A state is there where a chunk ended, or the last page of the prompt.
        kept = (*range(0, CACHED, CHUNK if has_states else PAGE), CACHED // PAGE * PAGE)
        expected = max(end for end in kept if end <= branch)
        assert first.hits.total >= expected, f"REQ-3: {place}: expected a hit of {expected}, got {first.hits}"
        assert first.hits.total <= branch, f"REQ-3: {place}: {first.hits} are of another prompt"
        close(place, torch.float32, whole[first.hits.total :], first.logits)
        second = ask(engine, tokens)
        again = len(tokens) // PAGE * PAGE
        assert second.hits.device == again, f"REQ-3: {place}, again: expected {again}, got {second.hits}"
        close(f"{place}, again", torch.float32, whole[again:], second.logits)
        hits.append(first.hits)
    return hits


@clause("REQ-3")
@each_kind
def test_a_prompt_that_parts_in_the_middle_answers_as_no_cache_would(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_device(model, PAGE, CHUNK), open_cache)
    ask(stage.engine(CHUNK), prompt(1, CACHED))
    part(stage)


@clause("REQ-3", "HOST-7", needs=(Capability.HOST,))
@each_kind
def test_a_prompt_that_parts_in_the_middle_of_the_host_s_answers_as_no_cache_would(
    family: str, open_cache: OpenCache
) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_host(model), open_cache)
    ask(stage.engine(CHUNK), prompt(1, CACHED))
    stage.leave_device()
    hits = part(stage)
    assert any(one.host for one in hits), f"HOST-7: all that is cached is on the host, and none was loaded: {hits}"


@clause("REQ-3")
@each_kind
def test_a_page_wider_than_the_window_is_answered_as_no_cache_would(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_device(model, WIDE_PAGE, WIDE_PAGE), open_cache)
    continue_each(stage, compute_each(stage, WIDE_EDGES, WIDE_PAGE), Tier.DEVICE)
