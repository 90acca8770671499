"""The work of each verb, counted: it is the same on every machine, and depends on the key alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hicache.config import EvictionPolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.types import SHARED, Handle, InsertResult, Key, MatchResult

from .measurement import counts
from .synthetic_tree import FULL, MAMBA, SWA, insert, offer, random_tokens, spacious

PAGE_SIZE = 16
NODE_TOKENS = 2 * PAGE_SIZE
TOKEN_BYTES = 4

OpenCache = Callable[..., CacheAdapter]

PAGED = pytest.mark.parametrize("components", [(FULL,), (FULL, SWA)], ids="+".join)
DEPTHS = pytest.mark.parametrize("depth", [1, 8, 64])
OTHER_PROMPTS = pytest.mark.parametrize("others", [0, 500], ids=["alone", "with other prompts"])
"""How many other prompts are cached, which share no page with the counted ones."""


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
    assert result.state_adopted, f"expected the tree to adopt the state of a new prompt, got {result}"
    return result


def put_chain(cache: CacheAdapter, key: Key) -> MatchResult:
    """Cache a prompt as a chain of nodes, each of `NODE_TOKENS`."""
    for nodes in range(1, len(key.tokens) // NODE_TOKENS + 1):
        put(cache, cut(key, nodes))
    return cache.match(key, chunked=False)


def opened(open_cache: OpenCache, components: tuple[str, ...], others: int) -> CacheAdapter:
    cache = open_cache(spacious(components, PAGE_SIZE, 1_000 * NODE_TOKENS), Capability.COUNTERS)
    for key in keys_of(others, nodes=1, seed=1):
        put(cache, key)
    return cache


@PAGED
@DEPTHS
@OTHER_PROMPTS
def test_a_match_visits_its_path_and_compares_its_key(
    open_cache: OpenCache, components: tuple[str, ...], depth: int, others: int
) -> None:
    cache, (key,) = opened(open_cache, components, others), keys_of(1, depth)
    put_chain(cache, key)
    found = counts(cache, lambda: cache.match(key, chunked=False))
    expected = {"nodes_visited": depth, "bytes_compared": depth * NODE_TOKENS * TOKEN_BYTES}
    assert found == expected, f"a match of {depth} cached nodes: expected {expected}, got {found}"


@PAGED
@DEPTHS
@OTHER_PROMPTS
def test_an_insert_visits_the_cached_nodes_only(
    open_cache: OpenCache, components: tuple[str, ...], depth: int, others: int
) -> None:
    cache, (key,) = opened(open_cache, components, others), keys_of(1, depth + 1)
    put_chain(cache, cut(key, depth))
    offered = offer(cache, key)
    expected = {"nodes_visited": depth, "bytes_compared": depth * NODE_TOKENS * TOKEN_BYTES}
    found = counts(cache, lambda: insert(cache, offered))
    assert found == expected, f"an insert of one node below {depth} cached ones: expected {expected}, got {found}"


@PAGED
def test_an_unknown_prompt_is_compared_with_nothing(open_cache: OpenCache, components: tuple[str, ...]) -> None:
    cache = opened(open_cache, components, others=500)
    found = counts(cache, lambda: cache.match(keys_of(1, nodes=8)[0], chunked=False))
    assert found == {}, f"expected no work, as no child begins with the prompt's first page, got {found}"


@DEPTHS
@OTHER_PROMPTS
def test_a_lock_climbs_to_the_first_locked_node(open_cache: OpenCache, depth: int, others: int) -> None:
    cache, (key,) = opened(open_cache, (FULL,), others), keys_of(1, depth)
    leaf = put_chain(cache, key).device_anchor
    receipts: list[Handle] = []
    first = counts(cache, lambda: receipts.append(cache.lock(leaf)))
    second = counts(cache, lambda: receipts.append(cache.lock(leaf)))
    assert first == {"nodes_locked": depth}, (
        f"expected the first lock to lock all {depth} nodes of the path, got {first}"
    )
    assert second == {"nodes_locked": 1}, f"expected the second lock to stop at the locked leaf, got {second}"
    releases = [counts(cache, partial(cache.unlock, receipt)) for receipt in receipts]
    assert releases == [second, first], (
        f"expected each unlock to visit the nodes of its lock: {second}, {first}, got {releases}"
    )


@DEPTHS
def test_a_lock_below_a_locked_parent_stops_there(open_cache: OpenCache, depth: int) -> None:
    cache, (key,) = opened(open_cache, (FULL,), others=0), keys_of(1, depth + 1)
    cache.lock(put_chain(cache, cut(key, depth)).device_anchor)
    leaf = put_chain(cache, key).device_anchor
    found = counts(cache, lambda: cache.lock(leaf))
    assert found == {"nodes_locked": 2}, f"expected two nodes, the leaf and its locked parent, got {found}"


@pytest.mark.parametrize(
    ("components", "component"),
    [((FULL,), FULL), ((FULL, SWA), FULL), ((FULL, SWA), SWA), ((FULL, MAMBA), FULL), ((FULL, MAMBA), MAMBA)],
    ids=["full", "full of full+swa", "swa", "full of full+mamba", "mamba"],
)
@OTHER_PROMPTS
@pytest.mark.parametrize("touched", [0, 7])
def test_an_eviction_pops_its_victims_and_the_nodes_used_since(
    open_cache: OpenCache, components: tuple[str, ...], component: str, others: int, touched: int
) -> None:
    cache, keys = open_cache(spacious(components, PAGE_SIZE, 1_000 * NODE_TOKENS), Capability.COUNTERS), keys_of(20, 1)
    for key in [*keys, *keys_of(others, nodes=1, seed=1)]:
        (put_with_state if MAMBA in components else put)(cache, key)
    for key in keys[:touched]:
        cache.match(key, chunked=False)
    victims = 10
    found = counts(cache, lambda: cache.evict(component, victims * (1 if component == MAMBA else NODE_TOKENS)))
    gone = [key for key in keys if not len(cache.match(key, chunked=False).device_indices)]
    assert gone == keys[touched : touched + victims], (
        f"expected the {victims} oldest prompts to be evicted, got {len(gone)}"
    )
    expected = {"candidates_popped": victims + touched}
    assert found == expected, f"{victims} victims after {touched} nodes used since: expected {expected}, got {found}"


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_no_policy_looks_at_more_than_its_victims(open_cache: OpenCache, policy: EvictionPolicy) -> None:
    config = replace(spacious((FULL,), PAGE_SIZE, 1_000 * NODE_TOKENS), policy=policy)
    cache = open_cache(config, Capability.COUNTERS)
    for key in keys_of(200, nodes=1):
        offered = offer(cache, key)
        cache.insert(key, offered.slots, shared=0, window_start=0, state=None, priority=1)
    found = counts(cache, lambda: cache.evict(FULL, 10 * NODE_TOKENS))
    assert found == {"candidates_popped": 10}, (
        f"expected 10 candidates for 10 victims, none of which was used since, got {found}"
    )


@PAGED
def test_without_events_no_page_is_hashed(open_cache: OpenCache, components: tuple[str, ...]) -> None:
    cache = opened(open_cache, components, others=10)
    for key in keys_of(5, nodes=4):
        put_chain(cache, key)
    cache.evict(FULL, 20 * NODE_TOKENS)
    hashed = cache.counters()["pages_hashed"]
    assert hashed == 0, f"expected no hashed pages without events, got {hashed}"


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
    assert hashed == pages, f"expected {pages} hashed pages after two inserts, splits and evictions, got {hashed}"


def test_only_a_fork_copies_a_state(open_cache: OpenCache) -> None:
    cache, (key,) = opened(open_cache, (FULL, MAMBA), others=0), keys_of(1, nodes=4)
    put_with_state(cache, key)
    found = cache.match(key, chunked=False)
    assert len(found.device_indices) == len(key.tokens), f"expected a hit of the whole prompt with a state, got {found}"
    assert cache.counters()["states_copied"] == 0, "expected no copied state after an insert and a match"
    forked = counts(cache, lambda: cache.fork_state(found.device_anchor))
    assert forked["states_copied"] == 1, f"expected one copied state from a fork, got {forked}"
