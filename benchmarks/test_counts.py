"""How much work each verb does, counted: the same on every machine, and no more than the key asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hicache.config import EvictionPolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.types import SHARED, Handle, InsertResult, Key, MatchResult

from .prompts import insert, offer, random_tokens
from .scale import FULL, MAMBA, SWA, spacious
from .work import counts

PAGE_SIZE = 16
NODE_TOKENS = 2 * PAGE_SIZE
TOKEN_BYTES = 4

OpenCache = Callable[..., CacheAdapter]

PAGED = pytest.mark.parametrize("components", [(FULL,), (FULL, SWA)], ids="+".join)
DEPTHS = pytest.mark.parametrize("depth", [1, 8, 64])
CROWDS = pytest.mark.parametrize("crowd", [0, 500], ids=["alone", "in a crowd"])
"""Prompts that have nothing in common with those that are counted."""


def keys_of(prompts: int, nodes: int, seed: int = 0) -> list[Key]:
    tokens = random_tokens(np.random.default_rng(seed), prompts, nodes * NODE_TOKENS)
    return [Key(own, SHARED) for own in tokens]


def cut(key: Key, nodes: int) -> Key:
    return Key(key.tokens[: nodes * NODE_TOKENS], key.namespace)


def put(cache: CacheAdapter, key: Key) -> InsertResult:
    return insert(cache, offer(cache, key))


def put_with_state(cache: CacheAdapter, key: Key) -> InsertResult:
    offered, state = offer(cache, key), cache.allocate_state()
    result = cache.insert(offered.key, offered.slots, shared=offered.shared, window_start=0, state=state, priority=0)
    assert result.state_adopted, f"the tree takes the first state of a prompt, got {result}"
    return result


def put_chain(cache: CacheAdapter, key: Key) -> MatchResult:
    """Cache a prompt as a chain of nodes, each of `NODE_TOKENS`."""
    for nodes in range(1, len(key.tokens) // NODE_TOKENS + 1):
        put(cache, cut(key, nodes))
    return cache.match(key, chunked=False)


def opened(open_cache: OpenCache, components: tuple[str, ...], crowd: int) -> CacheAdapter:
    cache = open_cache(spacious(components, PAGE_SIZE, 1_000 * NODE_TOKENS), Capability.COUNTERS)
    for key in keys_of(crowd, nodes=1, seed=1):
        put(cache, key)
    return cache


@PAGED
@DEPTHS
@CROWDS
def test_a_match_visits_its_path_and_compares_its_key(
    open_cache: OpenCache, components: tuple[str, ...], depth: int, crowd: int
) -> None:
    cache, (key,) = opened(open_cache, components, crowd), keys_of(1, depth)
    put_chain(cache, key)
    found = counts(cache, lambda: cache.match(key, chunked=False))
    expected = {"nodes_visited": depth, "bytes_compared": depth * NODE_TOKENS * TOKEN_BYTES}
    assert found == expected, f"a match of {depth} cached nodes: expected {expected}, got {found}"


@PAGED
@DEPTHS
@CROWDS
def test_an_insert_visits_what_is_cached_and_no_more(
    open_cache: OpenCache, components: tuple[str, ...], depth: int, crowd: int
) -> None:
    cache, (key,) = opened(open_cache, components, crowd), keys_of(1, depth + 1)
    put_chain(cache, cut(key, depth))
    offered = offer(cache, key)
    expected = {"nodes_visited": depth, "bytes_compared": depth * NODE_TOKENS * TOKEN_BYTES}
    found = counts(cache, lambda: insert(cache, offered))
    assert found == expected, f"an insert of one node behind {depth} cached ones: expected {expected}, got {found}"


@PAGED
def test_an_unknown_prompt_costs_no_comparison(open_cache: OpenCache, components: tuple[str, ...]) -> None:
    cache = opened(open_cache, components, crowd=500)
    found = counts(cache, lambda: cache.match(keys_of(1, nodes=8)[0], chunked=False))
    assert found == {}, f"no child begins with the prompt's first page, so none is looked at; got {found}"


@DEPTHS
@CROWDS
def test_a_lock_climbs_to_the_first_locked_node(open_cache: OpenCache, depth: int, crowd: int) -> None:
    cache, (key,) = opened(open_cache, (FULL,), crowd), keys_of(1, depth)
    leaf = put_chain(cache, key).device_anchor
    receipts: list[Handle] = []
    first = counts(cache, lambda: receipts.append(cache.lock(leaf)))
    second = counts(cache, lambda: receipts.append(cache.lock(leaf)))
    assert first == {"nodes_locked": depth}, f"the first lock of a path of {depth} nodes takes each, got {first}"
    assert second == {"nodes_locked": 1}, f"the second lock finds the leaf locked and climbs no further, got {second}"
    releases = [counts(cache, partial(cache.unlock, receipt)) for receipt in receipts]
    assert releases == [second, first], f"each unlock gives back what a lock took: {second}, {first}, got {releases}"


@DEPTHS
def test_a_lock_below_a_locked_parent_stops_there(open_cache: OpenCache, depth: int) -> None:
    cache, (key,) = opened(open_cache, (FULL,), crowd=0), keys_of(1, depth + 1)
    cache.lock(put_chain(cache, cut(key, depth)).device_anchor)
    leaf = put_chain(cache, key).device_anchor
    found = counts(cache, lambda: cache.lock(leaf))
    assert found == {"nodes_locked": 2}, f"the leaf, and its parent that counts it; got {found}"


@pytest.mark.parametrize(
    ("components", "component"),
    [((FULL,), FULL), ((FULL, SWA), FULL), ((FULL, SWA), SWA), ((FULL, MAMBA), FULL), ((FULL, MAMBA), MAMBA)],
    ids=["full", "full of full+swa", "swa", "full of full+mamba", "mamba"],
)
@CROWDS
@pytest.mark.parametrize("touched", [0, 7])
def test_an_eviction_looks_at_its_victims_and_at_what_was_used(
    open_cache: OpenCache, components: tuple[str, ...], component: str, crowd: int, touched: int
) -> None:
    cache, keys = open_cache(spacious(components, PAGE_SIZE, 1_000 * NODE_TOKENS), Capability.COUNTERS), keys_of(20, 1)
    for key in [*keys, *keys_of(crowd, nodes=1, seed=1)]:
        (put_with_state if MAMBA in components else put)(cache, key)
    for key in keys[:touched]:
        cache.match(key, chunked=False)
    victims = 10
    found = counts(cache, lambda: cache.evict(component, victims * (1 if component == MAMBA else NODE_TOKENS)))
    gone = [key for key in keys if not len(cache.match(key, chunked=False).device_indices)]
    assert gone == keys[touched : touched + victims], f"expected the {victims} oldest to go, {len(gone)} went"
    expected = {"candidates_popped": victims + touched}
    assert found == expected, f"{victims} victims behind {touched} used nodes: expected {expected}, got {found}"


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_no_policy_looks_at_more_than_its_victims(open_cache: OpenCache, policy: EvictionPolicy) -> None:
    config = replace(spacious((FULL,), PAGE_SIZE, 1_000 * NODE_TOKENS), policy=policy)
    cache = open_cache(config, Capability.COUNTERS)
    for key in keys_of(200, nodes=1):
        offered = offer(cache, key)
        cache.insert(key, offered.slots, shared=0, window_start=0, state=None, priority=1)
    found = counts(cache, lambda: cache.evict(FULL, 10 * NODE_TOKENS))
    assert found == {"candidates_popped": 10}, f"10 of 200 nodes go, of which none was used since; got {found}"


@PAGED
def test_nothing_is_hashed_when_nobody_asks(open_cache: OpenCache, components: tuple[str, ...]) -> None:
    cache = opened(open_cache, components, crowd=10)
    for key in keys_of(5, nodes=4):
        put_chain(cache, key)
    cache.evict(FULL, 20 * NODE_TOKENS)
    hashed = cache.counters()["pages_hashed"]
    assert hashed == 0, f"without events no page needs its hash, {hashed} were hashed"


@PAGED
def test_a_page_is_hashed_once(open_cache: OpenCache, components: tuple[str, ...]) -> None:
    config = replace(spacious(components, PAGE_SIZE, 100 * NODE_TOKENS), events=True)
    cache, keys = open_cache(config, Capability.COUNTERS, Capability.EVENTS), keys_of(5, nodes=4)
    for key in [*keys, *keys]:
        put(cache, key)
    for key in keys:
        cache.match(cut(key, nodes=2), chunked=False)
    cache.evict(FULL, 10 * NODE_TOKENS)
    hashed, pages = cache.counters()["pages_hashed"], 5 * 4 * NODE_TOKENS // PAGE_SIZE
    assert hashed == pages, f"{pages} pages were inserted, again, split and evicted: {hashed} were hashed"


def test_only_a_fork_copies_a_state(open_cache: OpenCache) -> None:
    cache, (key,) = opened(open_cache, (FULL, MAMBA), crowd=0), keys_of(1, nodes=4)
    put_with_state(cache, key)
    found = cache.match(key, chunked=False)
    assert len(found.device_indices) == len(key.tokens), f"a prompt with a state is found whole, got {found}"
    assert cache.counters()["states_copied"] == 0, "neither an insert nor a match copies a state"
    forked = counts(cache, lambda: cache.fork_state(found.device_anchor))
    assert forked["states_copied"] == 1, f"a fork copies one state, got {forked}"
