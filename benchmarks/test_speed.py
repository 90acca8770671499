"""What each verb costs, over the length of the key, the page size, the components and the size of the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.testing.adapter import CacheAdapter

from .grove import Grove
from .prompts import insert, offer
from .scale import FULL, SWA, Scale

SCALES = [
    Scale(*choice) for choice in product([(FULL,), (FULL, SWA)], [16, 64], [1_000, 100_000], [2_048, 32_768, 131_072])
]

ROUNDS = 20

SMOKE_NODES = 100
"""In the tree when nothing is measured and a run only shows that the benchmarks work."""

Measure = Callable[[Callable[[Any], Any], Sequence[Any]], Any]


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Measure:
    """Calls a verb once with each argument, and returns the last answer; without measuring, the first."""

    def measure_each(verb: Callable[[Any], Any], arguments: Sequence[Any]) -> Any:
        rounds = iter(arguments)
        return benchmark.pedantic(  # type: ignore[no-untyped-call]
            verb, setup=lambda: ((next(rounds),), {}), rounds=len(arguments)
        )

    return measure_each


@pytest.fixture(params=SCALES, ids=str)
def scale(request: pytest.FixtureRequest, require: Callable[..., None]) -> Scale:
    """Each scale that the adapter can be opened with."""
    scale: Scale = request.param
    require(scale.config(prompts=1))
    return scale


@pytest.fixture
def grove(scale: Scale, benchmark: BenchmarkFixture, open_cache: Callable[..., CacheAdapter]) -> Grove:
    """A grove with a prompt for each round, and room for as many again."""
    planted = scale if benchmark.enabled else replace(scale, nodes=SMOKE_NODES)
    rounds = ROUNDS if benchmark.enabled else 1
    return Grove(open_cache(planted.config(prompts=2 * rounds)), planted, prompts=rounds)


@pytest.mark.benchmark(group="match")
def test_match_what_is_cached(grove: Grove, measure: Measure) -> None:
    found = measure(lambda key: grove.cache.match(key, chunked=False), grove.prompts)
    tokens = grove.scale.key_tokens
    assert len(found.device_indices) == tokens, f"a cached prompt of {tokens} tokens: {len(found.device_indices)} found"


@pytest.mark.benchmark(group="insert")
def test_insert_what_is_new(grove: Grove, measure: Measure) -> None:
    offers = [offer(grove.cache, key) for key in grove.fresh_prompts(len(grove.prompts))]
    result = measure(lambda offered: insert(grove.cache, offered), offers)
    assert result.prefix_length == 2 * grove.scale.page_size, f"a trunk and a leaf of one page are cached, got {result}"
    assert result.accepted_length == grove.scale.key_tokens, f"the whole prompt is cached from now on, got {result}"


@pytest.mark.benchmark(group="lock and unlock")
def test_lock_and_unlock(grove: Grove, measure: Measure) -> None:
    nodes = [grove.cache.match(key, chunked=False).device_anchor for key in grove.prompts]
    measure(lambda node: grove.cache.unlock(grove.cache.lock(node)), nodes)


@pytest.mark.benchmark(group="evict")
def test_evict_a_prompt(grove: Grove, measure: Measure) -> None:
    tokens = grove.scale.key_tokens - grove.scale.page_size
    result = measure(lambda wanted: grove.cache.evict(FULL, wanted), [tokens] * len(grove.prompts))
    assert result.freed[FULL] == tokens, f"the oldest prompt has {tokens} tokens behind its trunk, got {result}"
