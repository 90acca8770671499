"""The cost of a verb does not grow with the tree: work is counted, and time measured, in trees of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.testing.adapter import CacheAdapter, Capability

from .alternating_times import AlternatingTimes
from .conftest import ReportRatio
from .prompts import insert, offer
from .scale import FULL, SWA, Scale
from .synthetic_tree import SyntheticTree
from .work import counts, functions_entered

SMALL_NODES, LARGE_NODES = 1_000, 100_000

SMOKE_NODES = 100
"""Nodes of the large tree with --benchmark-disable."""

PAGE_SIZE, KEY_TOKENS = 16, 2_048

ROUNDS = 40
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
    # The first eviction does work that later ones do not, whatever the size of the tree: it is not counted.
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
    rounds, nodes = (ROUNDS, LARGE_NODES) if benchmark.enabled else (1, SMOKE_NODES)
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
