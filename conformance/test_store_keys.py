"""STORE-1: a cache reads stored pages only if they mean the same: same model, layout, rank and namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import SINGLE_RANK, Layout
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import reshaped
from hicache.types import SHARED, Namespace, Pool

from .scenario import MAMBA, has
from .storage_scenes import (
    expected_pages,
    object_keys,
    pools,
    prefetch,
    put_in_storage,
    put_in_storage_alone,
    storage_variant,
)

PROMPT = (1, 2, 3, 4)

DIVISIBLE: Mapping[str, Any] = {"kv_heads": 2}
"""What makes a model one that two ranks can share."""

OTHERS: Mapping[str, Mapping[str, Any]] = {
    "model": {"storage": {"model": "another"}},
    "dtype": {"model": {**DIVISIBLE, "dtype": "float16"}},
    "layers": {"model": {**DIVISIBLE, "full_layers": 3}},
    "heads": {"model": {"kv_heads": 4}},
    "layout": {"host": {"layout": Layout.LAYER_FIRST}},
    "tensor-parallel rank": {"topology": replace(SINGLE_RANK, tp_size=2, tp_rank=1)},
    "tensor-parallel size": {"topology": replace(SINGLE_RANK, tp_size=2)},
    "context-parallel rank": {"topology": replace(SINGLE_RANK, cp_size=2, cp_rank=1)},
    "context-parallel size": {"topology": replace(SINGLE_RANK, cp_size=2)},
    "pipeline rank": {"topology": replace(SINGLE_RANK, pp_size=2, pp_rank=1)},
    "pipeline size": {"topology": replace(SINGLE_RANK, pp_size=2)},
}
"""Changes of one thing; each must give other object keys. Of a model, the parameters that change."""

RANKS = [
    ("tp", {"tp_rank": 0, "tp_size": 2}, {"tp_rank": 1, "tp_size": 2}),
    ("cp", {"cp_rank": 0, "cp_size": 2}, {"cp_rank": 1, "cp_size": 2}),
    ("pp", {"pp_rank": 0, "pp_size": 2}, {"pp_rank": 1, "pp_size": 2}),
]

NAMESPACES = [
    SHARED,
    Namespace(lora="a", salt=None, tenant=None),
    Namespace(lora=None, salt="a", tenant=None),
    Namespace(lora=None, salt=None, tenant="a"),
    Namespace(lora="a", salt="a", tenant=None),
]


@pytest.mark.parametrize("other", OTHERS)
@clause("STORE-1", page_sizes=[16])
def test_a_cache_that_differs_in_one_thing_reads_nothing(driver: Driver, other: str) -> None:
    with storage_variant(driver, model=reshaped(driver.config.model, **DIVISIBLE)) as writer:
        put_in_storage(writer, PROMPT)
        mine = {key for pool in pools(writer) for key in object_keys(writer, pool, PROMPT)}
    model = reshaped(driver.config.model, **OTHERS[other].get("model", DIVISIBLE))
    with storage_variant(driver, **{**OTHERS[other], "model": model}) as other_cache:
        theirs = {key for pool in pools(other_cache) for key in object_keys(other_cache, pool, PROMPT)}
        shared = mine & theirs
        assert not shared, f"STORE-1: caches that differ in their {other} share the objects {shared}"
        came = prefetch(other_cache, PROMPT)
        assert came == 0, f"STORE-1: a cache that differs in its {other} read {came} pages of this one"


@clause("STORE-1", page_sizes=[16])
def test_pages_of_another_size_are_not_read(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
    tokens = driver.prompt(PROMPT)
    mine = {key for pool in pools(driver) for key in object_keys(driver, pool, PROMPT)}
    with storage_variant(driver, page_size=8) as other_cache:
        key = other_cache.key(tokens)
        theirs = {name for pool in pools(other_cache) for name in other_cache.storage_keys(pool, key)}
        assert not mine & theirs, (
            f"STORE-1: expected no common object keys for pages of 16 and of 8 tokens, got {mine & theirs}"
        )
        ticket = other_cache.prefetch(key)
        assert ticket is not None, "FETCH-1: the prompt is neither too short nor too long"
        other_cache.drain()
        assert other_cache.check_prefetch(ticket) == 0, "STORE-1: a cache with pages of 8 tokens read pages of 16"


@clause("STORE-1", page_sizes=[16])
def test_a_cache_that_differs_in_nothing_reads_all(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
    with storage_variant(driver) as twin:
        came = prefetch(twin, PROMPT)
        assert came == len(PROMPT), f"STORE-1: {len(PROMPT)} pages are in storage, a twin read {came}"


@clause("STORE-1")
def test_each_pool_has_objects_of_its_own(driver: Driver) -> None:
    by_pool = {pool: set(object_keys(driver, pool, PROMPT)) for pool in pools(driver)}
    several = [key for keys in by_pool.values() for key in keys]
    assert len(several) == len(set(several)) == len(PROMPT) * len(by_pool), (
        f"STORE-1: {len(by_pool)} pools of {len(PROMPT)} pages have objects of their own, got {by_pool}"
    )


@pytest.mark.parametrize(("axis", "first", "second"), RANKS, ids=[axis for axis, _, _ in RANKS])
@clause("STORE-1", page_sizes=[16])
def test_ranks_that_share_a_page_share_its_object(
    driver: Driver, axis: str, first: dict[str, int], second: dict[str, int]
) -> None:
    for is_mla in (False, True):
        changes: dict[str, Any] = {"model": reshaped(driver.config.model, kv_heads=2, is_mla=is_mla)}
        with (
            storage_variant(driver, **changes, topology=replace(SINGLE_RANK, **first)) as one,
            storage_variant(driver, **changes, topology=replace(SINGLE_RANK, **second)) as other,
        ):
            for pool in pools(driver):
                are_shared = is_mla and axis == "tp" and pool is not Pool.MAMBA
                is_same = object_keys(one, pool, PROMPT) == object_keys(other, pool, PROMPT)
                assert is_same == are_shared, (
                    f"STORE-1: {axis} ranks, MLA {is_mla}: objects of {pool.value} are "
                    f"{'shared' if are_shared else 'each rank its own'}: expected {are_shared}, got "
                    f"{object_keys(one, pool, PROMPT)[0]}"
                )


@clause("STORE-1", page_sizes=[16])
def test_a_rank_of_an_mla_model_reads_what_another_rank_wrote(driver: Driver) -> None:
    mla: dict[str, Any] = {"model": reshaped(driver.config.model, kv_heads=1, is_mla=True)}
    with storage_variant(driver, **mla, topology=replace(SINGLE_RANK, tp_size=2)) as writer:
        put_in_storage(writer, PROMPT)
    with storage_variant(driver, **mla, topology=replace(SINGLE_RANK, tp_size=2, tp_rank=1)) as reader:
        came, expected = prefetch(reader, PROMPT), 0 if has(driver, MAMBA) else len(PROMPT)
        assert came == expected, f"STORE-1: all ranks hold the same KV, but a state each: {expected}, got {came}"


@clause("STORE-1", "KEY-2", "SEC-1", needs=[Capability.NAMESPACES])
def test_another_namespace_reads_nothing(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    for number, namespace in enumerate(NAMESPACES):
        keys = [set(object_keys(driver, Pool.KV, PROMPT, other)) for other in NAMESPACES[:number]]
        own = set(object_keys(driver, Pool.KV, PROMPT, namespace))
        assert not own.intersection(*keys) or not keys, f"SEC-1: {namespace} shares objects with another"
        came, expected = prefetch(driver, PROMPT, namespace), len(PROMPT) if namespace == SHARED else 0
        assert came == expected, f"SEC-3: {SHARED} wrote the prompt, {namespace} read {came} pages"


@clause("SEC-3", "STORE-1", needs=[Capability.NAMESPACES, Capability.STORAGE])
def test_the_same_salt_reads_what_it_wrote(driver: Driver) -> None:
    salted = Namespace(lora=None, salt="s", tenant=None)
    driver.put(driver.key(driver.prompt(PROMPT), salted))
    driver.drain()
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    driver.restart()
    assert prefetch(driver, PROMPT) == 0, "SEC-3: without the salt nothing of the prompt may be found"
    came = prefetch(driver, PROMPT, salted)
    assert came == len(PROMPT), f"SEC-3: with the same salt {len(PROMPT)} pages are there, {came} came"


@clause("STORE-1", page_sizes=[16])
def test_bigram_pages_are_written_and_read_under_the_same_keys(driver: Driver) -> None:
    if Capability.BIGRAM not in driver.adapter.capabilities:
        pytest.skip(f"{type(driver.adapter).__name__} has no keys of pairs")
    put_in_storage(driver, PROMPT)
    with storage_variant(driver, bigram=True) as paired:
        assert prefetch(paired, PROMPT) == 0, "STORE-1: pages of pairs are no pages of tokens"
        put_in_storage_alone(paired, PROMPT[:2])
        assert prefetch(paired, PROMPT[:2]) == 2, "STORE-1: a prompt of pairs must be found again by its pairs"
        paired.load(paired.key(paired.prompt(PROMPT[:2])))
        paired.put(paired.key(paired.prompt(PROMPT)))


@clause("STORE-1", "KEY-4")
def test_a_page_has_one_key_wherever_a_match_ends(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT[:2], PROMPT)
    assert prefetch(driver, PROMPT[:2]) == 2, "FETCH-4: the beginning comes first"
    expected = expected_pages(driver, PROMPT, anchor=2)
    came = prefetch(driver, PROMPT)
    assert came == expected == 2, f"STORE-1: past a match of two pages storage has {expected} more, {came} came"
