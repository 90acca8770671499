"""STORE-1 to STORE-3, FETCH-9: under which keys nodes are stored, in which order, and which objects are usable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import SINGLE_RANK, Layout, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import standard_configurations
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.pools import is_shared
from hicache.testing.hybrid_model import reshaped
from hicache.types import SHARED, Namespace, Pool, StorageKind, Tier, TransferKind

from .scenario import FULL, MAMBA, evict_all, evict_host, key_of, open_standard, put
from .storage_scenes import (
    LONG,
    OTHER,
    PAIR,
    PREFIXES,
    PROMPT,
    complete_job,
    expected_pages,
    in_storage,
    long_prompt_variant,
    object_keys,
    pending_job,
    pools,
    prefetch,
    put_in_storage,
    put_in_storage_alone,
    shows_marks,
    storage_variant,
    store,
    stored_components,
)
from .transfers import pending_transfer
from .tree_view import host_slots, nodes, pins, prefixes

THROUGH = [WritePolicy.WRITE_THROUGH]
STEPPED_STORAGE = [Capability.STEPPED_STORAGE]


# STORE-1: a cache reads stored pages only if they mean the same: same model, layout, rank and namespace.


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


ALIKE = ("org/m", "org-m", "org_m", "org.m", "org//m", "Org/m", "org/m ", "org/m-", f"{'m' * 300}1", f"{'m' * 300}2")
"""Names of models that are equal where a name is cut, where letters lose their case, or signs become one."""


@clause("STORE-1", components=(FULL,), alone=True, page_sizes=[16])
def test_models_with_similar_names_read_nothing_of_each_other(driver: Driver) -> None:
    owners: dict[str, str] = {}
    for name in ALIKE:
        with storage_variant(driver, storage={"model": name}) as cache:
            keys = object_keys(cache, Pool.KV, PROMPT)
            shared = {owners[key] for key in keys if key in owners}
            assert not shared, f"STORE-1: model {name!r} has the object keys of {shared}"
            came = prefetch(cache, PROMPT)
            assert came == 0, f"STORE-1: model {name!r} read {came} pages of one of {ALIKE[: ALIKE.index(name)]}"
            owners.update(dict.fromkeys(keys, name))
            put_in_storage(cache, PROMPT)


FINGERPRINTS = (None, "unidentified", "None", "rope_theta 10000", "rope_theta 1000000", "a", "A", "a ", "a" * 300 + "1")
"""What identifies models that have one name and one shape."""


@clause("STORE-1", components=(FULL,), alone=True, page_sizes=[16])
def test_models_of_one_name_and_shape_read_nothing_of_each_other(driver: Driver) -> None:
    owners: dict[str, str | None] = {}
    for fingerprint in FINGERPRINTS:
        with storage_variant(driver, storage={"model_fingerprint": fingerprint}) as cache:
            keys = object_keys(cache, Pool.KV, PROMPT)
            shared = {owners[key] for key in keys if key in owners}
            assert not shared, f"STORE-1: the model {fingerprint!r} has the object keys of {shared}"
            came = prefetch(cache, PROMPT)
            assert came == 0, f"STORE-1: the model {fingerprint!r} read {came} pages of one of {owners.values()}"
            owners.update(dict.fromkeys(keys, fingerprint))
            put_in_storage(cache, PROMPT)
            cache.reset()
            came = prefetch(cache, PROMPT)
            assert came == len(PROMPT), f"STORE-1: the model {fingerprint!r} stored {len(PROMPT)} pages, read {came}"


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
                are_shared = axis == "tp" and is_shared(one.config, pool)
                is_same = object_keys(one, pool, PROMPT) == object_keys(other, pool, PROMPT)
                assert is_same == are_shared, (
                    f"STORE-1: {axis} ranks, MLA {is_mla}: objects of {pool} are "
                    f"{'shared' if are_shared else 'each rank its own'}: expected {are_shared}, got "
                    f"{object_keys(one, pool, PROMPT)[0]}"
                )


@clause("STORE-1", page_sizes=[16])
def test_a_rank_of_an_mla_model_reads_what_another_rank_wrote(driver: Driver) -> None:
    mla: dict[str, Any] = {"model": reshaped(driver.config.model, kv_heads=1, is_mla=True)}
    with storage_variant(driver, **mla, topology=replace(SINGLE_RANK, tp_size=2)) as writer:
        put_in_storage(writer, PROMPT)
    with storage_variant(driver, **mla, topology=replace(SINGLE_RANK, tp_size=2, tp_rank=1)) as reader:
        apart = [pool for pool in pools(reader) if not is_shared(reader.config, pool)]
        came, expected = prefetch(reader, PROMPT), 0 if apart else len(PROMPT)
        assert came == expected, f"STORE-1: ranks hold the same KV, and each its own {apart}: {expected}, got {came}"


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
        assert prefetch(paired, PROMPT) == 0, "STORE-1: pages of pairs are not pages of tokens"
        put_in_storage_alone(paired, PROMPT[:2])
        assert prefetch(paired, PROMPT[:2]) == 2, "STORE-1: a prompt of pairs must be found again by its pairs"
        paired.load(paired.key(paired.prompt(PROMPT[:2])))
        paired.put(paired.key(paired.prompt(PROMPT)))


@clause("KEY-3", needs=[Capability.STORAGE])
def test_each_whole_page_of_pairs_is_one_object(adapter_type: type[CacheAdapter]) -> None:
    stored = (one for one in standard_configurations(adapter_type.capabilities) if one.storage is not None)
    name = next(one.name for one in stored if one.page_size == 16)
    driver = open_standard(adapter_type, name, bigram=True)
    store(driver).empty()
    # The last of the tokens has no successor: two pages of tokens are one page of pairs.
    for tokens, pages in ((32, 1), (33, 2)):
        key = driver.key(range(1, tokens + 1))
        driver.put(key)
        driver.evict(FULL, driver.config.capacity_tokens[FULL])
        driver.drain()
        kept = [one for one in driver.storage_keys(Pool.KV, key) if one in store(driver).objects]
        assert len(kept) == pages, f"KEY-3: {tokens} tokens are {tokens - 1} pairs: expected {pages} pages, got {kept}"
    driver.restart()
    ticket = driver.prefetch(key)
    driver.drain()
    came = None if ticket is None else driver.check_prefetch(ticket)
    assert came == 32, f"KEY-3: two pages of pairs are in storage: expected a prefetch of 32 elements, got {came}"
    driver.check()
    driver.adapter.close()


@clause("STORE-1", "KEY-4")
def test_a_page_has_one_key_wherever_a_match_ends(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT[:2], PROMPT)
    assert prefetch(driver, PROMPT[:2]) == 2, "FETCH-4: the beginning comes first"
    expected = expected_pages(driver, PROMPT, anchor=2)
    came = prefetch(driver, PROMPT)
    assert came == expected == 2, f"STORE-1: past a match of two pages storage has {expected} more, {came} came"


@clause("KEY-5", "FETCH-9", components=(FULL,), alone=True, write_policies=THROUGH, page_sizes=[16])
def test_without_events_a_node_that_is_split_before_it_is_stored_has_the_keys_of_its_pages(driver: Driver) -> None:
    with storage_variant(driver, events=False) as silent:
        store(silent).empty()
        put(silent, PROMPT)
        silent.match(key_of(silent, PROMPT[:2]))
        silent.drain()
        missing = [page for page, is_there in enumerate(in_storage(silent, PROMPT)[Pool.KV]) if not is_there]
        assert not missing, f"KEY-5: the parts of a split node are stored by their own hashes, {missing} are missing"


@clause("KEY-6", "FETCH-4", components=(FULL,), alone=True, write_policies=THROUGH, page_sizes=[16])
def test_without_events_a_prefetch_past_new_nodes_asks_for_the_keys_of_its_pages(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    with storage_variant(driver, events=False) as silent:
        # Nothing has asked for the hashes of these two nodes yet.
        for pages in (PROMPT[:1], PROMPT[:2]):
            put(silent, pages)
        came = prefetch(silent, PROMPT)
        assert came == 2, f"KEY-6: the last two pages of the prompt are in storage: expected 2, got {came}"


# STORE-2, STORE-3: missing or damaged objects are not prefetched, and all other usable pages are.


SEVEN_PAGES = (1, 2, 3, 4, 5, 6, 7)
"""A prompt so long that retrying with one page less each time would exceed the limit."""


def queries(driver: Driver) -> int:
    """The number of queries to storage."""
    return sum(call.verb == "exists" for call in store(driver).calls)


@clause("STORE-2", page_sizes=[16])
def test_without_any_one_object_the_longest_usable_prefix_is_prefetched(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    for pool in pools(driver):
        for page in range(len(PROMPT)):
            key = object_keys(driver, pool, PROMPT)[page]
            content = store(driver).objects.pop(key)
            expected, came = expected_pages(driver, PROMPT), prefetch(driver, PROMPT)
            assert came == expected, f"STORE-2: without page {page} of {pool} {expected} pages, {came} came"
            store(driver).objects[key] = content
            driver.reset()


@clause("STORE-2", page_sizes=[16])
def test_without_any_two_objects_the_longest_usable_prefix_is_prefetched(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    names = [(pool, page) for pool in pools(driver) for page in range(1, len(PROMPT))]
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    for pair in pairs:
        keys = [object_keys(driver, pool, PROMPT)[page] for pool, page in pair]
        contents = {key: store(driver).objects.pop(key) for key in keys}
        expected, came = expected_pages(driver, PROMPT), prefetch(driver, PROMPT)
        assert came == expected, f"STORE-2: without {pair} {expected} pages can be used, {came} came"
        store(driver).restore(contents)
        driver.reset()


@clause("STORE-2", page_sizes=[16])
def test_one_query_asks_all_pools_for_the_usable_prefix(driver: Driver) -> None:
    put_in_storage_alone(driver, SEVEN_PAGES[:1], SEVEN_PAGES)
    kept = dict(store(driver).objects)
    for pool in pools(driver)[1:]:
        driver.reset()
        for key in object_keys(driver, pool, SEVEN_PAGES)[1:]:
            store(driver).objects.pop(key, None)
        asked = queries(driver)
        came = prefetch(driver, SEVEN_PAGES)
        assert came == 1, f"STORE-2: {pool} has the first page of {len(LONG)} alone, {came} pages came"
        assert queries(driver) == asked + 1, f"STORE-2: storage says so at once, it was asked {queries(driver) - asked}"
        store(driver).restore(kept)


@clause("STORE-3", "FETCH-4", page_sizes=[16])
def test_a_damaged_object_is_a_miss(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    contents = dict(store(driver).objects)
    for pool in pools(driver):
        for page in range(len(PROMPT)):
            store(driver).corrupt([object_keys(driver, pool, PROMPT)[page]], "corrupt")
            expected, came = expected_pages(driver, PROMPT), prefetch(driver, PROMPT)
            assert came == expected, (
                f"STORE-3: page {page} of {pool} is damaged, {expected} pages can be used, {came} came"
            )
            store(driver).restore(contents)
            driver.reset()


@clause("STORE-3", page_sizes=[16])
def test_an_object_of_another_length_is_a_miss(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    key = object_keys(driver, Pool.KV, PROMPT)[2]
    content = store(driver).objects[key]
    for damaged in (content[:-1], content + b"\0", b""):
        store(driver).objects[key] = damaged
        came = prefetch(driver, PROMPT)
        assert came == 2, f"STORE-3: the third page has {len(damaged)} of {len(content)} bytes, {came} pages came"
        driver.reset()


@clause("STORE-3", "FETCH-9", page_sizes=[16])
def test_a_damaged_object_is_written_again_after_recomputation(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    whole = {pool: object_keys(driver, pool, PROMPT) for pool in pools(driver)}
    for pool, keys in whole.items():
        there = [key for key in keys if key in store(driver).objects]
        store(driver).corrupt(there[-1:])
        came = prefetch(driver, PROMPT)
        assert came < len(PROMPT), f"STORE-3: the last page of {pool} is gone, and {came} pages came"
        put(driver, PROMPT)
        driver.evict("full", driver.config.capacity_tokens["full"])
        driver.drain()
        driver.restart()
        came = prefetch(driver, PROMPT)
        assert came == len(PROMPT), (
            f"STORE-3: {pool} was computed again, {in_storage(driver, PROMPT)} is there, {came} pages came"
        )
        driver.restart()


@clause("STORE-3", "FETCH-9", page_sizes=[16])
def test_an_object_that_a_prefetch_found_missing_is_written_again(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
    for pool in pools(driver):
        driver.reset()
        kept = [key for key in object_keys(driver, pool, PROMPT) if key in store(driver).objects]
        store(driver).corrupt(kept[-1:])
        came = prefetch(driver, PROMPT)
        assert came < len(PROMPT), f"STORE-3: the last page of {pool} is gone, and {came} pages came"
        put(driver, PROMPT)
        driver.evict("full", driver.config.capacity_tokens["full"])
        driver.drain()
        lost = [key for key in kept if key not in store(driver).objects]
        assert not lost, f"STORE-3: a prefetch missed it, and it was computed again: expected {lost} to be stored"


@clause("STORE-3", page_sizes=[16])
def test_a_backend_that_raises_counts_as_a_miss_or_a_refusal(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    for verb in ("exists", "get"):
        store(driver).faults.raising = {verb}
        came = prefetch(driver, PROMPT)
        assert came == 0, f"STORE-3: {verb} raises, so that nothing is there, yet {came} pages came"
    store(driver).faults.raising = {"set"}
    other = (7, 8)
    put(driver, other)
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    assert not any(in_storage(driver, other)[Pool.KV]), "STORE-3: set raises, so that nothing was kept"
    store(driver).faults.raising = set()
    came = prefetch(driver, PROMPT)
    assert came == len(PROMPT), f"STORE-3: nothing raises any more, {len(PROMPT)} pages are there, {came} came"


@clause("STORE-5", page_sizes=[16])
def test_objects_in_storage_are_not_written_again(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    before = dict(store(driver).objects)
    put(driver, PROMPT)
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    after = store(driver).objects
    changed = [key for key, content in before.items() if after.get(key) is not content]
    assert not changed, f"STORE-5: the objects are in storage: expected none to be written again, got {changed}"


# FETCH-9, FLOW-9: when a node is stored, and after which other nodes.


STEPPED = [Capability.STEPPED]
BACK = [WritePolicy.WRITE_BACK]


@clause("FETCH-9", needs=[*STEPPED, Capability.MARKS], write_policies=THROUGH)
def test_a_node_is_stored_when_its_backup_is_acknowledged(driver: Driver) -> None:
    put(driver, PAIR)
    driver.step()
    driver.complete(pending_transfer(driver, TransferKind.BACKUP).ticket)
    assert not driver.pending(*StorageKind), "FETCH-9: the copy was not taken over, and storage is asked already"
    driver.step()
    pending_job(driver, StorageKind.STORE)
    assert not store(driver).objects, "FLOW-2: storage has not answered, and has objects"
    assert not any(stored_components(driver).values()), (
        f"FETCH-9: storage has not answered, yet {stored_components(driver)}"
    )
    complete_job(driver, StorageKind.STORE)
    assert stored_components(driver) == {PAIR: frozenset(driver.config.components)}, (
        f"FETCH-9: storage has taken all components on the host for {PAIR}, got {stored_components(driver)}"
    )


@clause("FETCH-9", needs=STEPPED, write_policies=THROUGH)
def test_a_node_whose_backup_failed_is_not_stored(driver: Driver) -> None:
    put(driver, PROMPT)
    driver.step()
    driver.fail(pending_transfer(driver, TransferKind.BACKUP).ticket, parts_done=0)
    driver.step()
    driver.step()
    assert not driver.pending(*StorageKind), f"FETCH-9: nothing was backed up, yet {driver.pending(*StorageKind)}"
    assert not store(driver).offered, "FETCH-9: nothing was backed up, and storage was given objects"


@clause("FETCH-9", "LOCK-7", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_a_node_stays_on_the_host_while_it_is_being_stored(driver: Driver) -> None:
    start_storing(driver)
    evict_all(driver)
    evict_host(driver)
    assert host_slots(driver, FULL).keys() == prefixes(*PAIR), "FETCH-9: storage is reading what was to be evicted"
    complete_job(driver, StorageKind.STORE)
    assert not pins(driver, Tier.HOST), f"FETCH-9: storage has it all, yet pinned is {pins(driver, Tier.HOST)}"
    evict_host(driver)
    assert not nodes(driver), f"FETCH-9: nothing is read any more, yet {nodes(driver).keys()} stays"
    assert prefetch(driver, PAIR) == len(PAIR), "FETCH-9: storage has all of it"


@clause("FETCH-9", "INS-8", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_both_parts_of_a_node_that_was_split_while_being_stored_are_in_storage(driver: Driver) -> None:
    start_storing(driver)
    put(driver, (PAIR[0], 9))
    complete_job(driver, StorageKind.STORE)
    marks = stored_components(driver) if shows_marks(driver) else {}
    for pages in (PAIR[:1], PAIR) if marks else ():
        expected = set(driver.config.components) - ({MAMBA} if pages != PAIR else set())
        assert marks[pages] == expected, (
            f"FETCH-9: {pages} is a part of a stored node: expected {expected} to be stored, got {marks}"
        )
    driver.drain()
    driver.restart()
    assert prefetch(driver, PAIR) == len(PAIR), "FETCH-9: both parts are in storage"


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_a_child_is_stored_after_its_parent(driver: Driver) -> None:
    put(driver, PROMPT[:2])
    put(driver, PROMPT)
    driver.step()
    driver.complete_all()
    first = pending_job(driver, StorageKind.STORE)
    driver.complete(first.ticket)
    there = in_storage(driver, PROMPT)[Pool.KV]
    assert there == [True, True, False, False], f"FLOW-9: the parent goes first, in storage are {there}"
    driver.step()
    pending_job(driver, StorageKind.STORE)
    complete_job(driver, StorageKind.STORE)
    assert all(in_storage(driver, PROMPT)[Pool.KV]), "FLOW-9: the child comes after its parent"


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=BACK)
def test_with_write_back_a_leaf_is_stored_after_its_parent_left_the_device(driver: Driver) -> None:
    put(driver, PROMPT[:2])
    put(driver, PROMPT)
    driver.evict(FULL, 1)
    driver.drain()
    assert host_slots(driver, FULL).keys() == prefixes(*PROMPT) - prefixes(*PROMPT[:2]), "EVICT-7: the leaf left"
    assert not store(driver).offered, "FLOW-9: its parent is not in storage, and nothing that is below may be"
    evict_all(driver)
    driver.drain()
    assert all(in_storage(driver, PROMPT)[Pool.KV]), "FLOW-9: the parent left the device too: expected both in storage"
    driver.restart()
    assert prefetch(driver, PROMPT) == len(PROMPT), "FLOW-9: the whole prompt is in storage"


@clause("FETCH-9", write_policies=THROUGH)
def test_a_stored_node_is_not_stored_again(driver: Driver) -> None:
    put(driver, PROMPT)
    driver.drain()
    before = calls(driver, "set")
    put(driver, PROMPT)
    driver.drain()
    assert calls(driver, "set") == before, "FETCH-9: all of it is in storage, and was given to it again"


@clause("FETCH-9")
def test_a_prefetched_node_is_not_stored_again(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    before = calls(driver, "set")
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    driver.load(driver.key(driver.prompt(PROMPT)))
    driver.drain()
    assert calls(driver, "set") == before, "FETCH-9: it came from storage, and was given to it again"


@clause("FETCH-9", components=(MAMBA,), write_policies=THROUGH)
def test_a_state_that_is_inserted_later_is_stored_alone(driver: Driver) -> None:
    put(driver, PROMPT)
    driver.drain()
    before = len(store(driver).calls)
    put(driver, PROMPT[:2])
    driver.drain()
    given = [key for call in store(driver).calls[before:] if call.verb == "set" for key in call.keys]
    assert given == object_keys(driver, Pool.MAMBA, PROMPT)[1:2], (
        f"FETCH-9: storage lacks one state, given were {given}"
    )


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=THROUGH, page_sizes=[16])
def test_closing_a_cache_while_it_stores_leaves_no_incomplete_prefix(driver: Driver) -> None:
    start_storing(driver)
    batches = pending_job(driver, StorageKind.STORE).units
    for done in range(1, batches):
        driver.advance(pending_job(driver, StorageKind.STORE).ticket)
        there = in_storage(driver, PAIR)
        assert not any(there[Pool.KV]), f"FLOW-9: KV comes last, after {done} of {batches} batches there is {there}"
    with storage_variant(driver) as other:
        assert prefetch(other, PAIR) == 0, "FLOW-9: of a prompt without KV nothing can be used"


@clause("FETCH-9", page_sizes=[16])
def test_prefix_keys_are_passed_only_if_the_option_is_set(driver: Driver) -> None:
    for is_asked in (False, True):
        with storage_variant(driver, extra={"hicache_storage_pass_prefix_keys": is_asked}) as other:
            store(other).empty()
            put_in_storage_alone(other, PROMPT[:2], PROMPT)
            prefetch(other, PROMPT[:2])
            prefetch(other, PROMPT)
            scope = object_keys(other, Pool.KV, PROMPT)[0].partition("/")[0]
            own = [key.removeprefix(f"{scope}/") for key in object_keys(other, Pool.KV, PROMPT)]
            expected = {(), tuple(own[:2])} if is_asked else {()}
            for verb in ("set", "get"):
                given = {call.prefix_keys for call in store(other).calls if call.verb == verb}
                assert given == expected, (
                    f"FETCH-9: asked for: {is_asked}, expected the prefix keys {expected} in {verb}, got {given}"
                )


def start_storing(driver: Driver) -> None:
    """Cache the pair, and start to store it."""
    put(driver, PAIR)
    driver.step()
    driver.complete_all()
    pending_job(driver, StorageKind.STORE)


def calls(driver: Driver, verb: str) -> int:
    """How often the cache called a verb of its backend."""
    return sum(call.verb == verb for call in store(driver).calls)


# FETCH-9, FLOW-4: a node that storage refuses does not count as stored, and is offered again a few times.

MARKED = [*STEPPED_STORAGE, Capability.MARKS]
USES = 10


@clause("FETCH-9", "FLOW-4", needs=MARKED, write_policies=THROUGH, page_sizes=[16])
def test_a_node_with_a_refused_page_does_not_count_as_stored(driver: Driver) -> None:
    for pool in pools(driver):
        driver.reset()
        store(driver).empty()
        kept = object_keys(driver, pool, PAIR)
        store(driver).faults.refused = set(kept[-1:])
        put(driver, PAIR)
        driver.drain()
        marks = stored_components(driver)
        assert marks == {PAIR: frozenset()}, f"FETCH-9: a page of {pool} was refused, got {marks}"
        store(driver).faults.refused = set()
        put(driver, PAIR)
        driver.drain()
        marks = stored_components(driver)
        assert marks == {PAIR: frozenset(driver.config.components)}, (
            f"FLOW-4: nothing is refused any more, and it was used again, got {marks}"
        )
        assert expected_pages(driver, PAIR) == len(PAIR), f"FETCH-9: in storage is {in_storage(driver, PAIR)}"


@clause("FETCH-9", "FLOW-4", needs=MARKED, write_policies=THROUGH, page_sizes=[16])
def test_a_refused_node_is_offered_again_after_a_match(driver: Driver) -> None:
    store(driver).faults.failing_sets = 1
    put(driver, PAIR)
    driver.drain()
    driver.match(driver.key(driver.prompt(PAIR)))
    driver.drain()
    assert stored_components(driver)[PAIR], "FLOW-4: it was refused once, and a request used it since"


@clause("FLOW-9", "FETCH-9", write_policies=THROUGH, page_sizes=[16])
def test_the_child_of_a_refused_node_is_not_offered(driver: Driver) -> None:
    store(driver).faults.refused = set(object_keys(driver, Pool.KV, PROMPT)[1:2])
    put(driver, PROMPT[:2])
    put(driver, PROMPT)
    driver.drain()
    below = set(object_keys(driver, Pool.KV, PROMPT)[2:])
    assert not below & store(driver).offered, "FLOW-9: its parent was refused, and it was given to storage"
    store(driver).faults.refused = set()
    put(driver, PROMPT)
    driver.drain()
    assert below <= store(driver).written, "FLOW-4: nothing is refused any more, both are offered with the next use"


@clause("FLOW-4", "FETCH-9", needs=STEPPED_STORAGE, write_policies=THROUGH, page_sizes=[16])
def test_a_node_that_is_always_refused_is_offered_three_times(driver: Driver) -> None:
    key = object_keys(driver, Pool.KV, PROMPT)[0]
    store(driver).faults.refused = {key}
    for _ in range(USES):
        put(driver, PROMPT)
        driver.drain()
    tries = sum(key in call.keys for call in store(driver).calls if call.verb == "set")
    assert 1 < tries < USES, (
        f"FLOW-4: {USES} uses, each time refused: expected more than 1 and less than {USES} offers, got {tries}"
    )
    put(driver, OTHER)
    driver.drain()
    assert all(in_storage(driver, OTHER)[Pool.KV]), "FLOW-4: another prompt is not refused: expected it in storage"


@clause("FETCH-9", "FLOW-9", write_policies=THROUGH, page_sizes=[1], needs=MARKED)
def test_a_node_with_one_failed_batch_is_stored_with_the_next_use(driver: Driver) -> None:
    for lost in (0, 130, 299):
        with long_prompt_variant(driver) as long:
            key = object_keys(long, Pool.KV, LONG)[lost]
            store(long).empty()
            store(long).faults.refused = {key}
            put(long, LONG)
            long.drain()
            assert not any(stored_components(long).values()), f"FETCH-9: page {lost} of {len(LONG)} was refused"
            store(long).faults.refused = set()
            put(long, LONG)
            long.drain()
            missing = [page for page, there in enumerate(in_storage(long, LONG)[Pool.KV]) if not there]
            assert not missing, f"FLOW-4: page {lost} was refused once, of the second offer lack {missing}"
            evict_all(long)
            long.restart()
            came = prefetch(long, LONG)
            assert came == len(LONG), f"FLOW-9: {len(LONG)} pages are in storage, {came} came"


@clause("EVENT-1", "EVENT-2", needs=[Capability.EVENTS, Capability.STORAGE, Capability.COUNTERS], page_sizes=[16])
def test_a_refused_node_is_not_reported(driver: Driver) -> None:
    store(driver).faults.refused = set(object_keys(driver, Pool.KV, PAIR)[-1:])
    put(driver, PAIR)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    driver.drain()
    events = [event for event in driver.adapter.events() if event.tier == "storage"]
    assert not events, f"EVENT-1: storage has only a part of the node: expected no events, got {events}"
    counters = driver.adapter.counters()
    assert counters["bytes_stored"] == 0, f"EVENT-2: nothing was stored: expected 0 bytes, got {counters}"
    assert counters["stores_failed"] == 1, f"EVENT-2: expected one failed store to be counted, got {counters}"
