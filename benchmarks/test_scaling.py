"""What a verb costs grows with the key and the depth, not with the tree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.adapter import CacheAdapter

from .grove import Grove
from .prompts import insert, offer
from .scale import FULL, SWA, Scale
from .turns import Turns

SMALL_NODES, LARGE_NODES = 1_000, 100_000
LIMIT = 1.5

ROUNDS = 40
BATCH = 16


def take_turn(grove: Grove, turns: Turns) -> None:
    """Evict the oldest prompts; match as many new ones, which begin where nobody has been for long, and insert them."""
    cache, scale = grove.cache, grove.scale
    turns.take("evict", lambda wanted: cache.evict(FULL, wanted), [scale.key_tokens - scale.page_size] * BATCH)
    prompts = grove.fresh_prompts(BATCH)
    turns.take("match", lambda key: cache.match(key, chunked=False), prompts)
    turns.take("insert", lambda offered: insert(cache, offered), [offer(cache, key) for key in prompts])


@pytest.mark.parametrize("components", [(FULL,), (FULL, SWA)], ids="+".join)
def test_no_verb_costs_more_in_a_larger_tree(
    components: tuple[str, ...], open_cache: Callable[..., CacheAdapter]
) -> None:
    prompts = ROUNDS * BATCH
    runs: list[tuple[Grove, Turns]] = []
    for nodes in (SMALL_NODES, LARGE_NODES):
        scale = Scale(components, 16, nodes, 2_048)
        runs.append((Grove(open_cache(scale.config(prompts + BATCH)), scale, prompts), Turns()))
    for _ in range(ROUNDS):
        for grove, turns in runs:
            take_turn(grove, turns)
    small, large = (turns.least_us for _, turns in runs)
    for verb, least_us in large.items():
        assert least_us <= LIMIT * small[verb], (
            f"{BATCH} calls of {verb} took at least {least_us:.0f} us in a tree of {LARGE_NODES} nodes, "
            f"{small[verb]:.0f} us in one of {SMALL_NODES}: expected at most {LIMIT} times as long"
        )
