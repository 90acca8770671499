"""The time of each verb by length of the key, page size, components and size of the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.testing.adapter import CacheAdapter

from .prompts import insert, offer
from .scale import FULL, SWA, Scale
from .synthetic_tree import SyntheticTree

SCALES = [
    Scale(*choice) for choice in product([(FULL,), (FULL, SWA)], [16, 64], [1_000, 100_000], [2_048, 32_768, 131_072])
]

ROUNDS = 20

SMOKE_NODES = 100
"""Nodes of the tree with --benchmark-disable, when a run only shows that the benchmarks work."""

Measure = Callable[[Callable[[Any], Any], Sequence[Any]], Any]


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Measure:
    """Calls a verb once with each argument, and returns the last result; with --benchmark-disable, the first."""

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
def tree(scale: Scale, benchmark: BenchmarkFixture, open_cache: Callable[..., CacheAdapter]) -> SyntheticTree:
    """A tree with a prompt for each round, and room for as many more."""
    own = scale if benchmark.enabled else replace(scale, nodes=SMOKE_NODES)
    rounds = ROUNDS if benchmark.enabled else 1
    return SyntheticTree(open_cache(own.config(prompts=2 * rounds)), own, prompts=rounds)


@pytest.mark.benchmark(group="match")
def test_match_a_cached_prompt(tree: SyntheticTree, measure: Measure) -> None:
    found = measure(lambda key: tree.cache.match(key, chunked=False), tree.prompts)
    tokens = tree.scale.key_tokens
    assert len(found.device_indices) == tokens, (
        f"expected {tokens} tokens of a cached prompt, got {len(found.device_indices)}"
    )


@pytest.mark.benchmark(group="insert")
def test_insert_a_new_prompt(tree: SyntheticTree, measure: Measure) -> None:
    offers = [offer(tree.cache, key) for key in tree.new_prompts(len(tree.prompts))]
    result = measure(lambda offered: insert(tree.cache, offered), offers)
    assert result.prefix_length == 2 * tree.scale.page_size, f"expected a hit of two pages, got {result}"
    assert result.accepted_length == tree.scale.key_tokens, f"expected the whole prompt in the tree, got {result}"


@pytest.mark.benchmark(group="lock and unlock")
def test_lock_and_unlock(tree: SyntheticTree, measure: Measure) -> None:
    nodes = [tree.cache.match(key, chunked=False).device_anchor for key in tree.prompts]
    measure(lambda node: tree.cache.unlock(tree.cache.lock(node)), nodes)


@pytest.mark.benchmark(group="evict")
def test_evict_a_prompt(tree: SyntheticTree, measure: Measure) -> None:
    tokens = tree.scale.key_tokens - tree.scale.page_size
    result = measure(lambda wanted: tree.cache.evict(FULL, wanted), [tokens] * len(tree.prompts))
    assert result.freed[FULL] == tokens, (
        f"expected {tokens} tokens freed, those of the oldest prompt below its parent, got {result}"
    )
