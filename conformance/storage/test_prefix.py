"""STORE-2: `exists` returns the longest prefix that all pools accept."""

from __future__ import annotations

import random

import pytest

from hicache.storage.base import PoolQuery
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.types import HitPolicy

from .names import page_keys

ALL, TRAILING = HitPolicy.ALL_PAGES, HitPolicy.TRAILING_PAGES
KV, INDEXER, STATES = page_keys(5), page_keys(5, "indexer"), page_keys(5, "mamba")


def keep(store: StorageDriver, keys: list[str], pages: tuple[int, ...]) -> None:
    """Store some of the pages of a pool."""
    store.set([keys[page] for page in pages])


@clause("STORE-2")
def test_a_prefix_ends_where_every_pool_accepts_it(store: StorageDriver) -> None:
    keep(store, KV, (0, 1, 2, 3, 4))
    keep(store, INDEXER, (0, 1, 2, 3))
    keep(store, STATES, (1, 2, 4))
    answer = store.exists(KV, [(INDEXER, ALL, 0), (STATES, TRAILING, 1)])
    assert answer == 3, f"STORE-2: the indexer accepts up to 4 pages, states accept 2, 3 and 5: got {answer}"


@clause("STORE-2")
@pytest.mark.parametrize(
    ("there", "trailing", "expected"),
    [((1, 2, 4), 1, 5), ((1, 2, 4), 2, 3), ((1, 2, 4), 3, 0), ((0, 1, 3), 3, 2), ((0, 1, 2), 9, 3), ((), 1, 0)],
)
def test_a_trailing_pool_needs_its_last_pages_or_all_of_a_shorter_prefix(
    store: StorageDriver, there: tuple[int, ...], trailing: int, expected: int
) -> None:
    keep(store, KV, (0, 1, 2, 3, 4))
    keep(store, STATES, there)
    answer = store.exists(KV, [(STATES, TRAILING, trailing)])
    assert answer == expected, f"STORE-2: window {trailing} over pages {there}: expected {expected}, got {answer}"


@clause("STORE-2")
@pytest.mark.parametrize(("there", "expected"), [((), 0), ((1, 2), 0), ((0, 2, 3), 1), ((0, 1, 2, 3, 4), 5)])
def test_pages_count_up_to_the_first_gap(store: StorageDriver, there: tuple[int, ...], expected: int) -> None:
    keep(store, KV, there)
    answer = store.exists(KV)
    assert answer == expected, f"STORE-2: pages {there} are there: expected {expected}, got {answer}"


@clause("STORE-2")
def test_an_empty_query_has_an_empty_prefix(store: StorageDriver) -> None:
    answer = store.exists([], [([], ALL, 0), ([], TRAILING, 1)])
    assert answer == 0, f"STORE-2: nothing was asked for: expected 0, got {answer}"


@clause("STORE-2")
def test_any_mix_of_pools_has_the_prefix_of_the_model(store: StorageDriver) -> None:
    dice = random.Random(2)
    for prompt in range(60):
        pools = [page_keys(dice.randint(0, 7), "kv", prompt)]
        pools += [page_keys(len(pools[0]), f"pool{number}", prompt) for number in range(dice.randint(0, 3))]
        for keys in pools:
            if kept := [key for key in keys if dice.random() < 0.8]:
                store.set(kept)
        store.exists(pools[0], [(keys, dice.choice([ALL, TRAILING]), dice.randint(1, 4)) for keys in pools[1:]])


@clause("STORE-2")
def test_a_pool_with_another_number_of_keys_is_refused(store: StorageDriver) -> None:
    backend = store.instances[0]
    with pytest.raises(ValueError, match=r"."):
        backend.exists(KV, [PoolQuery(INDEXER[:4], ALL, 0)], [])
