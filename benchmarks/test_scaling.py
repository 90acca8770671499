"""What a verb costs does not grow with the tree: work counted, and time measured, in trees of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.testing.adapter import CacheAdapter, Capability

from .conftest import ReportRatio
from .grove import Grove
from .prompts import insert, offer
from .scale import FULL, SWA, Scale
from .turns import Turns
from .work import counts, functions_entered

SMALL_NODES, LARGE_NODES = 1_000, 100_000

SMOKE_NODES = 100
"""In the large tree when nothing is measured."""

PAGE_SIZE, KEY_TOKENS = 16, 2_048

ROUNDS = 40
BATCH = 16

VERBS = ("evict", "match", "insert")

COMPONENTS = pytest.mark.parametrize("components", [(FULL,), (FULL, SWA)], ids="+".join)

OpenCache = Callable[..., CacheAdapter]


def planted(open_cache: OpenCache, components: tuple[str, ...], nodes: int, prompts: int, *needs: Capability) -> Grove:
    """A tree of so many nodes with so many prompts, and room for one batch more."""
    scale = Scale(components, PAGE_SIZE, nodes, KEY_TOKENS)
    return Grove(open_cache(scale.config(prompts + BATCH), *needs), scale, prompts)


def work_of(cache: CacheAdapter, call: Callable[[], object]) -> Mapping[str, int]:
    """What one call adds to the counters, and how many functions it enters."""
    entered = list[int]()
    found = counts(cache, lambda: entered.append(functions_entered(call)))
    return {**found, "functions_entered": entered[0]}


def work_by_verb(grove: Grove) -> dict[str, list[Mapping[str, int]]]:
    """The work of each call: evict the oldest prompts, match as many new ones, and insert those."""
    cache, scale = grove.cache, grove.scale
    wanted = scale.key_tokens - scale.page_size
    # What a tree of any size does the first time alone is left out.
    cache.evict(FULL, wanted)
    found: dict[str, list[Mapping[str, int]]] = {verb: [] for verb in VERBS}
    for _ in range(BATCH):
        found["evict"].append(work_of(cache, lambda: cache.evict(FULL, wanted)))
    for key in grove.fresh_prompts(BATCH):
        found["match"].append(work_of(cache, lambda key=key: cache.match(key, chunked=False)))  # type: ignore[misc]
        offered = offer(cache, key)
        found["insert"].append(work_of(cache, lambda offered=offered: insert(cache, offered)))  # type: ignore[misc]
    return found


@COMPONENTS
def test_no_verb_does_more_in_a_larger_tree(components: tuple[str, ...], open_cache: OpenCache) -> None:
    small, large = (
        work_by_verb(planted(open_cache, components, nodes, BATCH + 1, Capability.COUNTERS))
        for nodes in (SMALL_NODES, LARGE_NODES)
    )
    for verb in VERBS:
        assert large[verb] == small[verb], (
            f"{BATCH} calls of {verb}: in a tree of {SMALL_NODES} nodes {small[verb]}, "
            f"expected the same in one of {LARGE_NODES}, got {large[verb]}"
        )


def take_turn(grove: Grove, turns: Turns, tree: str) -> None:
    """Evict the oldest prompts; match as many new ones, which begin where nobody has been for long, and insert them."""
    cache, scale = grove.cache, grove.scale
    turns.take(f"evict, {tree}", lambda wanted: cache.evict(FULL, wanted), [scale.key_tokens - PAGE_SIZE] * BATCH)
    prompts = grove.fresh_prompts(BATCH)
    turns.take(f"match, {tree}", lambda key: cache.match(key, chunked=False), prompts)
    turns.take(f"insert, {tree}", lambda offered: insert(cache, offered), [offer(cache, key) for key in prompts])


@COMPONENTS
@pytest.mark.benchmark(group="evict, match and insert in a large tree")
def test_verbs_in_a_larger_tree(
    components: tuple[str, ...], open_cache: OpenCache, benchmark: BenchmarkFixture, report_ratio: ReportRatio
) -> None:
    rounds, nodes = (ROUNDS, LARGE_NODES) if benchmark.enabled else (1, SMOKE_NODES)
    small = planted(open_cache, components, min(SMALL_NODES, nodes), rounds * BATCH)
    large = planted(open_cache, components, nodes, rounds * BATCH)
    turns = Turns()
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: take_turn(large, turns, "large"), setup=lambda: take_turn(small, turns, "small"), rounds=rounds
    )
    if benchmark.enabled:
        for verb in VERBS:
            report_ratio(
                f"{verb}, {LARGE_NODES} nodes to {SMALL_NODES}", turns.ratio(f"{verb}, large", f"{verb}, small")
            )
