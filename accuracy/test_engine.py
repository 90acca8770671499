"""The engine itself: what it refuses, what it gives back, and what it takes as cached."""

from __future__ import annotations

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause

from .answer import ask
from .engine.engine import Engine
from .families.table import REPRESENTATIVES
from .prompts import prompt
from .stage import CHUNK, PAGE, OpenCache, Stage, on_device, served

each_kind = pytest.mark.parametrize("family", REPRESENTATIVES)


@clause()
def test_chunks_are_whole_pages(open_cache: OpenCache) -> None:
    model = served("qwen3", torch.float32, "cpu")
    config = on_device(model, PAGE, CHUNK)
    with pytest.raises(ValueError, match="chunks of 24 tokens are no whole pages of 16"):
        Engine(model, open_cache(config), config, chunk_tokens=24, rereads=False)


@clause()
def test_something_of_a_prompt_is_computed(open_cache: OpenCache) -> None:
    model = served("qwen3", torch.float32, "cpu")
    engine = Stage(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK)
    for tokens, reusable in ((prompt(1, 8), 8), (prompt(1, 8), -1), (prompt(1, 0), None)):
        with pytest.raises(ValueError, match=f"of {len(tokens)} tokens"):
            engine.begin(tokens, reusable_tokens=reusable)


@clause("REQ-3")
@each_kind
def test_no_more_is_reused_than_was_asked(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    engine = Stage(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK)
    tokens = prompt(1, 4 * PAGE)
    whole = ask(engine, tokens)
    generation = engine.begin(tokens, reusable_tokens=2 * PAGE + 1)
    assert generation is not None, "one request fits"
    assert generation.hits.device == 2 * PAGE, f"REQ-3: {2 * PAGE + 1} tokens may be reused, got {generation.hits}"
    logits = engine.compute(generation)
    assert torch.equal(whole.logits[2 * PAGE :], logits), "REQ-3: the same prompt, another answer"
    engine.finish(generation)


@clause("REQ-3")
@each_kind
def test_the_last_token_is_always_computed(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    engine = Stage(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK)
    tokens = prompt(1, 4 * PAGE)
    first, second = ask(engine, tokens), ask(engine, tokens)
    assert first.hits.total == 0, f"REQ-3: nothing was cached, got {first.hits}"
    assert 0 < second.hits.device < len(tokens), f"REQ-3: of {len(tokens)} cached tokens one is computed: {second.hits}"
    assert torch.equal(first.logits[second.hits.device :], second.logits), "REQ-3: the same prompt, another answer"


# The life of a request is the engine's own here: no adapter needs REQUESTS for it.
@clause(needs=(Capability.SIZES,))
@each_kind
def test_a_request_that_ends_at_any_point_gives_everything_back(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_device(model, PAGE, CHUNK), open_cache)
    engine = stage.engine(CHUNK)
    for chunks in range(4):
        generation = engine.begin(prompt(chunks, 3 * CHUNK))
        assert generation is not None, "one request fits"
        for _ in range(chunks):
            engine.compute_chunk(generation)
        engine.finish(generation)
    for component, capacity in stage.config.capacity_tokens.items():
        sizes = stage.adapter.sizes()[component]
        assert sizes.protected == 0, f"REQ-2: {component}: no request runs, {sizes}"
        assert sizes.evictable + sizes.free == capacity, f"REQ-2: {component}: of {capacity} some are held, {sizes}"


@clause(needs=(Capability.SIZES,))
@each_kind
def test_a_request_that_does_not_fit_takes_nothing(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    stage = Stage(model, on_device(model, PAGE, CHUNK, tokens=8 * PAGE), open_cache)
    engine = stage.engine(CHUNK)
    running = engine.begin(prompt(1, 6 * PAGE))
    assert running is not None, "REQ-5: a request that fits an empty cache is admitted"
    before = stage.adapter.sizes()
    assert engine.begin(prompt(2, 6 * PAGE)) is None, "REQ-2: two requests of six pages in a cache of eight"
    assert stage.adapter.sizes() == before, f"REQ-2: expected {before} as before, got {stage.adapter.sizes()}"
    engine.finish(running)
    assert engine.begin(prompt(2, 6 * PAGE)) is not None, "REQ-5: there is room again"
