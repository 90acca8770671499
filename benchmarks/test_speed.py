"""The time of each verb by key, page, components and tree, and that it does not grow with the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.testing.adapter import CacheAdapter, Capability

from .conftest import ReportRatio
from .measurement import AlternatingTimes, counts, functions_entered
from .synthetic_tree import FULL, SWA, Scale, SyntheticTree, insert, offer

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


# The cost of a verb does not grow with the tree: work is counted, and time measured, in trees of two sizes.

SMALL_NODES, LARGE_NODES = 1_000, 100_000


PAGE_SIZE, KEY_TOKENS = 16, 2_048

ALTERNATING_ROUNDS = 40
BATCH = 16

VERBS = ("evict", "match", "insert")

COMPONENTS = pytest.mark.parametrize("components", [(FULL,), (FULL, SWA)], ids="+".join)

OpenCache = Callable[..., CacheAdapter]


def open_tree(
    open_cache: OpenCache, components: tuple[str, ...], nodes: int, prompts: int, *needs: Capability
) -> SyntheticTree:
    """A tree of `nodes` nodes with `prompts` prompts, and room for one more batch."""
    scale = Scale(components, PAGE_SIZE, nodes, KEY_TOKENS)
    return SyntheticTree(open_cache(scale.config(prompts + BATCH), *needs), scale, prompts)


def work_of(cache: CacheAdapter, call: Callable[[], object]) -> Mapping[str, int]:
    """What one call adds to the counters, and how many functions it enters."""
    entered = list[int]()
    found = counts(cache, lambda: entered.append(functions_entered(call)))
    return {**found, "functions_entered": entered[0]}


def work_by_verb(tree: SyntheticTree) -> dict[str, list[Mapping[str, int]]]:
    """The work of each call: evict the oldest prompts, match as many new ones, and insert those."""
    cache, scale = tree.cache, tree.scale
    wanted = scale.key_tokens - scale.page_size
    # The first eviction does extra work, for a tree of any size: it is not counted.
    cache.evict(FULL, wanted)
    found: dict[str, list[Mapping[str, int]]] = {verb: [] for verb in VERBS}
    for _ in range(BATCH):
        found["evict"].append(work_of(cache, lambda: cache.evict(FULL, wanted)))
    for key in tree.new_prompts(BATCH):
        found["match"].append(work_of(cache, lambda key=key: cache.match(key, chunked=False)))  # type: ignore[misc]
        offered = offer(cache, key)
        found["insert"].append(work_of(cache, lambda offered=offered: insert(cache, offered)))  # type: ignore[misc]
    return found


@COMPONENTS
def test_no_verb_does_more_in_a_larger_tree(components: tuple[str, ...], open_cache: OpenCache) -> None:
    small, large = (
        work_by_verb(open_tree(open_cache, components, nodes, BATCH + 1, Capability.COUNTERS))
        for nodes in (SMALL_NODES, LARGE_NODES)
    )
    for verb in VERBS:
        assert large[verb] == small[verb], (
            f"{BATCH} calls of {verb}: in a tree of {SMALL_NODES} nodes {small[verb]}, "
            f"expected the same in one of {LARGE_NODES}, got {large[verb]}"
        )


def measure_round(tree: SyntheticTree, times: AlternatingTimes, size: str) -> None:
    """Evict the oldest prompts, match as many new ones, which begin with least recently used pages, and insert them."""
    cache, scale = tree.cache, tree.scale
    times.measure(f"evict, {size}", lambda wanted: cache.evict(FULL, wanted), [scale.key_tokens - PAGE_SIZE] * BATCH)
    prompts = tree.new_prompts(BATCH)
    times.measure(f"match, {size}", lambda key: cache.match(key, chunked=False), prompts)
    times.measure(f"insert, {size}", lambda offered: insert(cache, offered), [offer(cache, key) for key in prompts])


@COMPONENTS
@pytest.mark.benchmark(group="evict, match and insert in a large tree")
def test_verbs_in_a_larger_tree(
    components: tuple[str, ...], open_cache: OpenCache, benchmark: BenchmarkFixture, report_ratio: ReportRatio
) -> None:
    rounds, nodes = (ALTERNATING_ROUNDS, LARGE_NODES) if benchmark.enabled else (1, SMOKE_NODES)
    small = open_tree(open_cache, components, min(SMALL_NODES, nodes), rounds * BATCH)
    large = open_tree(open_cache, components, nodes, rounds * BATCH)
    times = AlternatingTimes()
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: measure_round(large, times, "large"), setup=lambda: measure_round(small, times, "small"), rounds=rounds
    )
    if benchmark.enabled:
        for verb in VERBS:
            report_ratio(
                f"{verb}, {LARGE_NODES} nodes to {SMALL_NODES}", times.ratio(f"{verb}, large", f"{verb}, small")
            )
