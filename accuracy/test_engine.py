"""The engine itself: the arguments that it refuses, what it frees, and which tokens it takes from the cache."""

from __future__ import annotations

import pytest
import torch

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import COMPONENT_POOL, Handle

from .answers import ask, prompt
from .cache_setup import CHUNK, PAGE, CacheSetup, OpenCache, on_device, on_host, served
from .engine.engine import Engine
from .families import REPRESENTATIVES

each_kind = pytest.mark.parametrize("family", REPRESENTATIVES)


@clause()
def test_chunks_must_be_whole_pages(open_cache: OpenCache) -> None:
    model = served("qwen3", torch.float32, "cpu")
    config = on_device(model, PAGE, CHUNK)
    with pytest.raises(ValueError, match="chunk_tokens must be a multiple of the page size 16, got 24"):
        Engine(model, open_cache(config), config, chunk_tokens=24, rereads=False)


@clause()
def test_a_prompt_without_a_token_to_compute_is_refused(open_cache: OpenCache) -> None:
    model = served("qwen3", torch.float32, "cpu")
    engine = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK)
    for tokens, reusable in ((prompt(1, 8), 8), (prompt(1, 8), -1), (prompt(1, 0), None)):
        with pytest.raises(ValueError, match=f"below the {len(tokens)} tokens"):
            engine.begin(tokens, reusable_tokens=reusable)


@clause("REQ-3")
@each_kind
def test_no_more_tokens_are_reused_than_allowed(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    engine = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK)
    tokens = prompt(1, 4 * PAGE)
    whole = ask(engine, tokens)
    generation = engine.begin(tokens, reusable_tokens=2 * PAGE + 1)
    assert generation is not None, "expected room for one request"
    assert generation.hits.device == 2 * PAGE, (
        f"REQ-3: expected {2 * PAGE} of {2 * PAGE + 1} tokens, got {generation.hits}"
    )
    logits = engine.compute(generation)
    assert torch.equal(whole.logits[2 * PAGE :], logits), "REQ-3: expected equal logits for the same prompt"
    engine.finish(generation)


@clause("REQ-3")
@each_kind
def test_the_last_token_is_always_computed(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    engine = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache).engine(CHUNK)
    tokens = prompt(1, 4 * PAGE)
    first, second = ask(engine, tokens), ask(engine, tokens)
    assert first.hits.total == 0, f"REQ-3: expected no hits in an empty cache, got {first.hits}"
    assert 0 < second.hits.device < len(tokens), f"REQ-3: expected fewer than {len(tokens)} hits: {second.hits}"
    assert torch.equal(first.logits[second.hits.device :], second.logits), (
        "REQ-3: expected equal logits for the same prompt"
    )


@clause("HOST-6", "REQ-3", needs=(Capability.HOST, Capability.LAYER_WAITS))
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "deepseek_v32", "deepseek_v4"])
def test_each_layer_of_a_load_is_waited_for_and_read_while_it_runs(
    family: str, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_host(model), open_cache)
    whole = ask(setup.engine(CHUNK), prompt(1, 3 * CHUNK))
    setup.clear_device()
    waited, wait_layer = list[tuple[str, int]](), setup.adapter.wait_layer

    def wait(ticket: Handle, pool: str, layer: int) -> None:
        waited.append((pool, layer))
        wait_layer(ticket, pool, layer)

    monkeypatch.setattr(setup.adapter, "wait_layer", wait)
    answer = ask(setup.engine(CHUNK), prompt(1, 3 * CHUNK))
    pools = [*setup.config.sidecars, *(COMPONENT_POOL[name] for name in setup.config.components)]
    expected = {(pool, layer) for pool in pools for layer in range(setup.adapter.layers(pool))}
    assert set(waited) == expected, f"HOST-6: each layer of each pool is waited for, got {sorted(set(waited))}"
    assert len(waited) == len(expected), f"HOST-6: each is waited for once, got {waited}"
    assert torch.equal(whole.logits[answer.hits.host :], answer.logits), "REQ-3: expected equal logits"


# The engine manages its requests itself, so no adapter needs REQUESTS for this test.
@clause(needs=(Capability.SIZES,))
@each_kind
def test_a_request_that_ends_at_any_point_frees_everything(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK), open_cache)
    engine = setup.engine(CHUNK)
    for chunks in range(4):
        generation = engine.begin(prompt(chunks, 3 * CHUNK))
        assert generation is not None, "expected room for one request"
        for _ in range(chunks):
            engine.compute_chunk(generation)
        engine.finish(generation)
    for component, capacity in setup.config.capacity_tokens.items():
        sizes = setup.adapter.sizes()[component]
        assert sizes.protected == 0, f"REQ-2: {component}: expected 0 protected slots, as no request runs, got {sizes}"
        assert sizes.evictable + sizes.free == capacity, (
            f"REQ-2: {component}: expected {capacity} evictable and free slots, got {sizes}"
        )


@clause(needs=(Capability.SIZES,))
@each_kind
def test_a_request_that_does_not_fit_allocates_nothing(family: str, open_cache: OpenCache) -> None:
    model = served(family, torch.float32, "cpu")
    setup = CacheSetup(model, on_device(model, PAGE, CHUNK, tokens=8 * PAGE), open_cache)
    engine = setup.engine(CHUNK)
    running = engine.begin(prompt(1, 6 * PAGE))
    assert running is not None, "REQ-5: expected an empty cache to admit a request that fits"
    before = setup.adapter.sizes()
    assert engine.begin(prompt(2, 6 * PAGE)) is None, (
        "REQ-2: expected None for a second request of six pages in a cache of eight"
    )
    assert setup.adapter.sizes() == before, f"REQ-2: expected the sizes before, {before}, got {setup.adapter.sizes()}"
    engine.finish(running)
    assert engine.begin(prompt(2, 6 * PAGE)) is not None, "REQ-5: expected room after the first request has ended"
