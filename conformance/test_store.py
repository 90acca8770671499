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
from hicache.testing.driving.pools import is_shared
from hicache.testing.hybrid_model import reshaped
from hicache.types import SHARED, Namespace, Pool, StorageKind, Tier, TransferKind

from .scenario import FULL, MAMBA, Scenario, open_standard
from .snapshot_values import prefixes
from .stored_prompts import LONG, OTHER, PAIR, PREFIXES, PROMPT

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
def test_a_cache_that_differs_in_one_thing_reads_nothing(driver: Scenario, other: str) -> None:
    with driver.storage_variant(model=reshaped(driver.config.model, **DIVISIBLE)) as writer:
        writer.put_in_storage(PROMPT)
        mine = {key for pool in writer.pools() for key in writer.object_keys(pool, PROMPT)}
    model = reshaped(driver.config.model, **OTHERS[other].get("model", DIVISIBLE))
    with driver.storage_variant(**{**OTHERS[other], "model": model}) as other_cache:
        theirs = {key for pool in other_cache.pools() for key in other_cache.object_keys(pool, PROMPT)}
        shared = mine & theirs
        assert not shared, f"STORE-1: caches that differ in their {other} share the objects {shared}"
        came = other_cache.prefetch_pages(PROMPT)
        assert came == 0, f"STORE-1: a cache that differs in its {other} read {came} pages of this one"


ALIKE = ("org/m", "org-m", "org_m", "org.m", "org//m", "Org/m", "org/m ", "org/m-", f"{'m' * 300}1", f"{'m' * 300}2")
"""Names of models that are equal where a name is cut, where letters lose their case, or signs become one."""


@clause("STORE-1", components=(FULL,), alone=True, page_sizes=[16])
def test_models_with_similar_names_read_nothing_of_each_other(driver: Scenario) -> None:
    owners: dict[str, str] = {}
    for name in ALIKE:
        with driver.storage_variant(storage={"model": name}) as cache:
            keys = cache.object_keys(Pool.KV, PROMPT)
            shared = {owners[key] for key in keys if key in owners}
            assert not shared, f"STORE-1: model {name!r} has the object keys of {shared}"
            came = cache.prefetch_pages(PROMPT)
            assert came == 0, f"STORE-1: model {name!r} read {came} pages of one of {ALIKE[: ALIKE.index(name)]}"
            owners.update(dict.fromkeys(keys, name))
            cache.put_in_storage(PROMPT)


FINGERPRINTS = (None, "unidentified", "None", "rope_theta 10000", "rope_theta 1000000", "a", "A", "a ", "a" * 300 + "1")
"""What identifies models that have one name and one shape."""


@clause("STORE-1", components=(FULL,), alone=True, page_sizes=[16])
def test_models_of_one_name_and_shape_read_nothing_of_each_other(driver: Scenario) -> None:
    owners: dict[str, str | None] = {}
    for fingerprint in FINGERPRINTS:
        with driver.storage_variant(storage={"model_fingerprint": fingerprint}) as cache:
            keys = cache.object_keys(Pool.KV, PROMPT)
            shared = {owners[key] for key in keys if key in owners}
            assert not shared, f"STORE-1: the model {fingerprint!r} has the object keys of {shared}"
            came = cache.prefetch_pages(PROMPT)
            assert came == 0, f"STORE-1: the model {fingerprint!r} read {came} pages of one of {owners.values()}"
            owners.update(dict.fromkeys(keys, fingerprint))
            cache.put_in_storage(PROMPT)
            cache.reset()
            came = cache.prefetch_pages(PROMPT)
            assert came == len(PROMPT), f"STORE-1: the model {fingerprint!r} stored {len(PROMPT)} pages, read {came}"


@clause("STORE-1", page_sizes=[16])
def test_pages_of_another_size_are_not_read(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    tokens = driver.prompt(PROMPT)
    mine = {key for pool in driver.pools() for key in driver.object_keys(pool, PROMPT)}
    with driver.storage_variant(page_size=8) as other_cache:
        key = other_cache.key(tokens)
        theirs = {name for pool in other_cache.pools() for name in other_cache.storage_keys(pool, key)}
        assert not mine & theirs, (
            f"STORE-1: expected no common object keys for pages of 16 and of 8 tokens, got {mine & theirs}"
        )
        ticket = other_cache.prefetch(key)
        assert ticket is not None, "FETCH-1: the prompt is neither too short nor too long"
        other_cache.drain()
        assert other_cache.check_prefetch(ticket) == 0, "STORE-1: a cache with pages of 8 tokens read pages of 16"


@clause("STORE-1", page_sizes=[16])
def test_a_cache_that_differs_in_nothing_reads_all(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    with driver.storage_variant() as twin:
        came = twin.prefetch_pages(PROMPT)
        assert came == len(PROMPT), f"STORE-1: {len(PROMPT)} pages are in storage, a twin read {came}"


@clause("STORE-1")
def test_each_pool_has_objects_of_its_own(driver: Scenario) -> None:
    by_pool = {
        pool: [driver.object_keys(pool, PROMPT)[page] for page in driver.stored_pages(pool, PROMPT)]
        for pool in driver.pools()
    }
    several = [key for keys in by_pool.values() for key in keys]
    assert len(several) == len(set(several)), (
        f"STORE-1: {len(by_pool)} pools of {len(PROMPT)} pages have objects of their own, got {by_pool}"
    )


@pytest.mark.parametrize(("axis", "first", "second"), RANKS, ids=[axis for axis, _, _ in RANKS])
@clause("STORE-1", page_sizes=[16])
def test_ranks_that_share_a_page_share_its_object(
    driver: Scenario, axis: str, first: dict[str, int], second: dict[str, int]
) -> None:
    for is_mla in (False, True):
        changes: dict[str, Any] = {"model": reshaped(driver.config.model, kv_heads=2, is_mla=is_mla)}
        with (
            driver.storage_variant(**changes, topology=replace(SINGLE_RANK, **first)) as one,
            driver.storage_variant(**changes, topology=replace(SINGLE_RANK, **second)) as other,
        ):
            for pool in driver.pools():
                are_shared = axis == "tp" and is_shared(one.config, pool)
                is_same = one.object_keys(pool, PROMPT) == other.object_keys(pool, PROMPT)
                assert is_same == are_shared, (
                    f"STORE-1: {axis} ranks, MLA {is_mla}: objects of {pool} are "
                    f"{'shared' if are_shared else 'each rank its own'}: expected {are_shared}, got "
                    f"{one.object_keys(pool, PROMPT)[0]}"
                )


@clause("STORE-1", page_sizes=[16])
def test_a_rank_of_an_mla_model_reads_what_another_rank_wrote(driver: Scenario) -> None:
    mla: dict[str, Any] = {"model": reshaped(driver.config.model, kv_heads=1, is_mla=True)}
    with driver.storage_variant(**mla, topology=replace(SINGLE_RANK, tp_size=2)) as writer:
        writer.put_in_storage(PROMPT)
    with driver.storage_variant(**mla, topology=replace(SINGLE_RANK, tp_size=2, tp_rank=1)) as reader:
        apart = [pool for pool in reader.pools() if not is_shared(reader.config, pool)]
        came, expected = reader.prefetch_pages(PROMPT), 0 if apart else len(PROMPT)
        assert came == expected, f"STORE-1: ranks hold the same KV, and each its own {apart}: {expected}, got {came}"


@clause("STORE-1", "KEY-2", "SEC-1", needs=[Capability.NAMESPACES])
def test_another_namespace_reads_nothing(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    for number, namespace in enumerate(NAMESPACES):
        keys = [set(driver.object_keys(Pool.KV, PROMPT, other)) for other in NAMESPACES[:number]]
        own = set(driver.object_keys(Pool.KV, PROMPT, namespace))
        assert not own.intersection(*keys) or not keys, f"SEC-1: {namespace} shares objects with another"
        came, expected = driver.prefetch_pages(PROMPT, namespace), len(PROMPT) if namespace == SHARED else 0
        assert came == expected, f"SEC-3: {SHARED} wrote the prompt, {namespace} read {came} pages"


@clause("SEC-3", "STORE-1", needs=[Capability.NAMESPACES, Capability.STORAGE])
def test_the_same_salt_reads_what_it_wrote(driver: Scenario) -> None:
    salted = Namespace(lora=None, salt="s", tenant=None)
    driver.put(driver.key(driver.prompt(PROMPT), salted))
    driver.drain()
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    driver.restart()
    assert driver.prefetch_pages(PROMPT) == 0, "SEC-3: without the salt nothing of the prompt may be found"
    came = driver.prefetch_pages(PROMPT, salted)
    assert came == len(PROMPT), f"SEC-3: with the same salt {len(PROMPT)} pages are there, {came} came"


@clause("STORE-1", page_sizes=[16])
def test_bigram_pages_are_written_and_read_under_the_same_keys(driver: Scenario) -> None:
    if Capability.BIGRAM not in driver.adapter.capabilities:
        pytest.skip(f"{type(driver.adapter).__name__} has no keys of pairs")
    driver.put_in_storage(PROMPT)
    with driver.storage_variant(bigram=True) as paired:
        assert paired.prefetch_pages(PROMPT) == 0, "STORE-1: pages of pairs are not pages of tokens"
        paired.put_in_storage_alone(PROMPT[:2])
        assert paired.prefetch_pages(PROMPT[:2]) == 2, "STORE-1: a prompt of pairs must be found again by its pairs"
        paired.load(paired.key(paired.prompt(PROMPT[:2])))
        paired.put(paired.key(paired.prompt(PROMPT)))


@clause("KEY-3", needs=[Capability.STORAGE])
def test_each_whole_page_of_pairs_is_one_object(adapter_type: type[CacheAdapter]) -> None:
    stored = (one for one in standard_configurations(adapter_type.capabilities) if one.storage is not None)
    name = next(one.name for one in stored if one.page_size == 16)
    driver = open_standard(adapter_type, name, bigram=True)
    driver.store().empty()
    # The last of the tokens has no successor: two pages of tokens are one page of pairs.
    for tokens, pages in ((32, 1), (33, 2)):
        key = driver.key(range(1, tokens + 1))
        driver.put(key)
        driver.evict(FULL, driver.config.capacity_tokens[FULL])
        driver.drain()
        kept = [one for one in driver.storage_keys(Pool.KV, key) if one in driver.store().objects]
        assert len(kept) == pages, f"KEY-3: {tokens} tokens are {tokens - 1} pairs: expected {pages} pages, got {kept}"
    driver.restart()
    ticket = driver.prefetch(key)
    driver.drain()
    came = None if ticket is None else driver.check_prefetch(ticket)
    assert came == 32, f"KEY-3: two pages of pairs are in storage: expected a prefetch of 32 elements, got {came}"
    driver.check()
    driver.adapter.close()


@clause("STORE-1", "KEY-4")
def test_a_page_has_one_key_wherever_a_match_ends(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT[:2], PROMPT)
    assert driver.prefetch_pages(PROMPT[:2]) == 2, "FETCH-4: the beginning comes first"
    expected = driver.expected_pages(PROMPT, anchor=2)
    came = driver.prefetch_pages(PROMPT)
    assert came == expected == 2, f"STORE-1: past a match of two pages storage has {expected} more, {came} came"


@clause("KEY-5", "FETCH-9", components=(FULL,), alone=True, write_policies=THROUGH, page_sizes=[16])
def test_without_events_a_node_that_is_split_before_it_is_stored_has_the_keys_of_its_pages(driver: Scenario) -> None:
    with driver.storage_variant(events=False) as silent:
        silent.store().empty()
        silent.put_pages(PROMPT)
        silent.match(silent.key_of(PROMPT[:2]))
        silent.drain()
        missing = [page for page, is_there in enumerate(silent.in_storage(PROMPT)[Pool.KV]) if not is_there]
        assert not missing, f"KEY-5: the parts of a split node are stored by their own hashes, {missing} are missing"


@clause("KEY-6", "FETCH-4", components=(FULL,), alone=True, write_policies=THROUGH, page_sizes=[16])
def test_without_events_a_prefetch_past_new_nodes_asks_for_the_keys_of_its_pages(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with driver.storage_variant(events=False) as silent:
        # Nothing has asked for the hashes of these two nodes yet.
        for pages in (PROMPT[:1], PROMPT[:2]):
            silent.put_pages(pages)
        came = silent.prefetch_pages(PROMPT)
        assert came == 2, f"KEY-6: the last two pages of the prompt are in storage: expected 2, got {came}"


# STORE-2, STORE-3: missing or damaged objects are not prefetched, and all other usable pages are.


SEVEN_PAGES = (1, 2, 3, 4, 5, 6, 7)
"""A prompt so long that retrying with one page less each time would exceed the limit."""


def queries(driver: Scenario) -> int:
    """The number of queries to storage."""
    return sum(call.verb == "exists" for call in driver.store().calls)


@clause("STORE-2", page_sizes=[16])
def test_without_any_one_object_the_longest_usable_prefix_is_prefetched(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    for pool in driver.pools():
        for page in range(len(PROMPT)):
            key = driver.object_keys(pool, PROMPT)[page]
            content = driver.store().objects.pop(key)
            expected, came = driver.expected_pages(PROMPT), driver.prefetch_pages(PROMPT)
            assert came == expected, f"STORE-2: without page {page} of {pool} {expected} pages, {came} came"
            driver.store().objects[key] = content
            driver.reset()


@clause("STORE-2", page_sizes=[16])
def test_without_any_two_objects_the_longest_usable_prefix_is_prefetched(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    names = [(pool, page) for pool in driver.pools() for page in driver.stored_pages(pool, PROMPT) if page]
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    for pair in pairs:
        keys = [driver.object_keys(pool, PROMPT)[page] for pool, page in pair]
        contents = {key: driver.store().objects.pop(key) for key in keys}
        expected, came = driver.expected_pages(PROMPT), driver.prefetch_pages(PROMPT)
        assert came == expected, f"STORE-2: without {pair} {expected} pages can be used, {came} came"
        driver.store().restore(contents)
        driver.reset()


@clause("STORE-2", page_sizes=[16])
def test_one_query_asks_all_pools_for_the_usable_prefix(driver: Scenario) -> None:
    driver.put_in_storage_alone(SEVEN_PAGES[:1], SEVEN_PAGES)
    kept = dict(driver.store().objects)
    for pool in driver.pools()[1:]:
        driver.reset()
        for key in driver.object_keys(pool, SEVEN_PAGES)[1:]:
            driver.store().objects.pop(key, None)
        asked = queries(driver)
        came = driver.prefetch_pages(SEVEN_PAGES)
        assert came == 1, f"STORE-2: {pool} has the first page of {len(LONG)} alone, {came} pages came"
        assert queries(driver) == asked + 1, f"STORE-2: storage says so at once, it was asked {queries(driver) - asked}"
        driver.store().restore(kept)


@clause("STORE-3", "FETCH-4", page_sizes=[16])
def test_a_damaged_object_is_a_miss(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    contents = dict(driver.store().objects)
    for pool in driver.pools():
        for page in range(len(PROMPT)):
            driver.store().corrupt([driver.object_keys(pool, PROMPT)[page]], "corrupt")
            expected, came = driver.expected_pages(PROMPT), driver.prefetch_pages(PROMPT)
            assert came == expected, (
                f"STORE-3: page {page} of {pool} is damaged, {expected} pages can be used, {came} came"
            )
            driver.store().restore(contents)
            driver.reset()


@clause("STORE-3", page_sizes=[16])
def test_an_object_of_another_length_is_a_miss(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    key = driver.object_keys(Pool.KV, PROMPT)[2]
    content = driver.store().objects[key]
    for damaged in (content[:-1], content + b"\0", b""):
        driver.store().objects[key] = damaged
        came = driver.prefetch_pages(PROMPT)
        assert came == 2, f"STORE-3: the third page has {len(damaged)} of {len(content)} bytes, {came} pages came"
        driver.reset()


@clause("STORE-3", "FETCH-9", page_sizes=[16])
def test_a_damaged_object_is_written_again_after_recomputation(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    whole = {pool: driver.object_keys(pool, PROMPT) for pool in driver.pools()}
    for pool, keys in whole.items():
        there = [key for key in keys if key in driver.store().objects]
        driver.store().corrupt(there[-1:])
        came = driver.prefetch_pages(PROMPT)
        assert came < len(PROMPT), f"STORE-3: the last page of {pool} is gone, and {came} pages came"
        driver.put_pages(PROMPT)
        driver.evict("full", driver.config.capacity_tokens["full"])
        driver.drain()
        driver.restart()
        came = driver.prefetch_pages(PROMPT)
        assert came == len(PROMPT), (
            f"STORE-3: {pool} was computed again, {driver.in_storage(PROMPT)} is there, {came} pages came"
        )
        driver.restart()


@clause("STORE-3", "FETCH-9", page_sizes=[16])
def test_an_object_that_a_prefetch_found_missing_is_written_again(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    for pool in driver.pools():
        driver.reset()
        kept = [key for key in driver.object_keys(pool, PROMPT) if key in driver.store().objects]
        driver.store().corrupt(kept[-1:])
        came = driver.prefetch_pages(PROMPT)
        assert came < len(PROMPT), f"STORE-3: the last page of {pool} is gone, and {came} pages came"
        driver.put_pages(PROMPT)
        driver.evict("full", driver.config.capacity_tokens["full"])
        driver.drain()
        lost = [key for key in kept if key not in driver.store().objects]
        assert not lost, f"STORE-3: a prefetch missed it, and it was computed again: expected {lost} to be stored"


@clause("STORE-3", page_sizes=[16])
def test_a_backend_that_raises_counts_as_a_miss_or_a_refusal(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    for verb in ("exists", "get"):
        driver.store().faults.raising = {verb}
        came = driver.prefetch_pages(PROMPT)
        assert came == 0, f"STORE-3: {verb} raises, so that nothing is there, yet {came} pages came"
    driver.store().faults.raising = {"set"}
    other = (7, 8)
    driver.put_pages(other)
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    assert not any(driver.in_storage(other)[Pool.KV]), "STORE-3: set raises, so that nothing was kept"
    driver.store().faults.raising = set()
    came = driver.prefetch_pages(PROMPT)
    assert came == len(PROMPT), f"STORE-3: nothing raises any more, {len(PROMPT)} pages are there, {came} came"


@clause("STORE-5", page_sizes=[16])
def test_objects_in_storage_are_not_written_again(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    before = dict(driver.store().objects)
    driver.put_pages(PROMPT)
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    after = driver.store().objects
    changed = [key for key, content in before.items() if after.get(key) is not content]
    assert not changed, f"STORE-5: the objects are in storage: expected none to be written again, got {changed}"


# FETCH-9, FLOW-9: when a node is stored, and after which other nodes.


STEPPED = [Capability.STEPPED]
BACK = [WritePolicy.WRITE_BACK]


@clause("FETCH-9", needs=[*STEPPED, Capability.MARKS], write_policies=THROUGH)
def test_a_node_is_stored_when_its_backup_is_acknowledged(driver: Scenario) -> None:
    driver.put_pages(PAIR)
    driver.step()
    driver.complete(driver.pending_transfer(TransferKind.BACKUP).ticket)
    assert not driver.pending(*StorageKind), "FETCH-9: the copy was not taken over, and storage is asked already"
    driver.step()
    driver.pending_job(StorageKind.STORE)
    assert not driver.store().objects, "FLOW-2: storage has not answered, and has objects"
    assert not any(driver.stored_components().values()), (
        f"FETCH-9: storage has not answered, yet {driver.stored_components()}"
    )
    driver.complete_job(StorageKind.STORE)
    assert driver.stored_components() == {PAIR: frozenset(driver.config.components)}, (
        f"FETCH-9: storage has taken all components on the host for {PAIR}, got {driver.stored_components()}"
    )


@clause("FETCH-9", needs=STEPPED, write_policies=THROUGH)
def test_a_node_whose_backup_failed_is_not_stored(driver: Scenario) -> None:
    driver.put_pages(PROMPT)
    driver.step()
    driver.fail(driver.pending_transfer(TransferKind.BACKUP).ticket, parts_done=0)
    driver.step()
    driver.step()
    assert not driver.pending(*StorageKind), f"FETCH-9: nothing was backed up, yet {driver.pending(*StorageKind)}"
    assert not driver.store().offered, "FETCH-9: nothing was backed up, and storage was given objects"


@clause("FETCH-9", "LOCK-7", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_a_node_stays_on_the_host_while_it_is_being_stored(driver: Scenario) -> None:
    start_storing(driver)
    driver.evict_all()
    driver.evict_all_host()
    assert driver.host_slots(FULL).keys() == prefixes(*PAIR), "FETCH-9: storage is reading what was to be evicted"
    driver.complete_job(StorageKind.STORE)
    assert not driver.pins(Tier.HOST), f"FETCH-9: storage has it all, yet pinned is {driver.pins(Tier.HOST)}"
    driver.evict_all_host()
    assert not driver.nodes(), f"FETCH-9: nothing is read any more, yet {driver.nodes().keys()} stays"
    assert driver.prefetch_pages(PAIR) == len(PAIR), "FETCH-9: storage has all of it"


@clause("FETCH-9", "INS-8", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_both_parts_of_a_node_that_was_split_while_being_stored_are_in_storage(driver: Scenario) -> None:
    start_storing(driver)
    driver.put_pages((PAIR[0], 9))
    driver.complete_job(StorageKind.STORE)
    marks = driver.stored_components() if driver.shows_marks() else {}
    for pages in (PAIR[:1], PAIR) if marks else ():
        expected = set(driver.config.components) - ({MAMBA} if pages != PAIR else set())
        assert marks[pages] == expected, (
            f"FETCH-9: {pages} is a part of a stored node: expected {expected} to be stored, got {marks}"
        )
    driver.drain()
    driver.restart()
    assert driver.prefetch_pages(PAIR) == len(PAIR), "FETCH-9: both parts are in storage"


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=THROUGH)
def test_a_child_is_stored_after_its_parent(driver: Scenario) -> None:
    driver.put_pages(PROMPT[:2])
    driver.put_pages(PROMPT)
    driver.step()
    driver.complete_all()
    first = driver.pending_job(StorageKind.STORE)
    driver.complete(first.ticket)
    there = driver.in_storage(PROMPT)[Pool.KV]
    assert there == [True, True, False, False], f"FLOW-9: the parent goes first, in storage are {there}"
    driver.step()
    driver.pending_job(StorageKind.STORE)
    driver.complete_job(StorageKind.STORE)
    assert all(driver.in_storage(PROMPT)[Pool.KV]), "FLOW-9: the child comes after its parent"


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=BACK)
def test_with_write_back_a_leaf_is_stored_after_its_parent_left_the_device(driver: Scenario) -> None:
    driver.put_pages(PROMPT[:2])
    driver.put_pages(PROMPT)
    driver.evict(FULL, 1)
    driver.drain()
    assert driver.host_slots(FULL).keys() == prefixes(*PROMPT) - prefixes(*PROMPT[:2]), "EVICT-7: the leaf left"
    assert not driver.store().offered, "FLOW-9: its parent is not in storage, and nothing that is below may be"
    driver.evict_all()
    driver.drain()
    assert all(driver.in_storage(PROMPT)[Pool.KV]), "FLOW-9: the parent left the device too: expected both in storage"
    driver.restart()
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FLOW-9: the whole prompt is in storage"


@clause("FETCH-9", write_policies=THROUGH)
def test_a_stored_node_is_not_stored_again(driver: Scenario) -> None:
    driver.put_pages(PROMPT)
    driver.drain()
    before = calls(driver, "set")
    driver.put_pages(PROMPT)
    driver.drain()
    assert calls(driver, "set") == before, "FETCH-9: all of it is in storage, and was given to it again"


@clause("FETCH-9")
def test_a_prefetched_node_is_not_stored_again(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    before = calls(driver, "set")
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    driver.load(driver.key(driver.prompt(PROMPT)))
    driver.drain()
    assert calls(driver, "set") == before, "FETCH-9: it came from storage, and was given to it again"


@clause("FETCH-9", components=(MAMBA,), write_policies=THROUGH)
def test_a_state_that_is_inserted_later_is_stored_alone(driver: Scenario) -> None:
    driver.put_pages(PROMPT)
    driver.drain()
    before = len(driver.store().calls)
    driver.put_pages(PROMPT[:2])
    driver.drain()
    given = [key for call in driver.store().calls[before:] if call.verb == "set" for key in call.keys]
    assert given == driver.object_keys(Pool.MAMBA, PROMPT)[1:2], f"FETCH-9: storage lacks one state, given were {given}"


@clause("FETCH-9", "FLOW-9", needs=STEPPED_STORAGE, write_policies=THROUGH, page_sizes=[16])
def test_closing_a_cache_while_it_stores_leaves_no_incomplete_prefix(driver: Scenario) -> None:
    start_storing(driver)
    batches = driver.pending_job(StorageKind.STORE).units
    for done in range(1, batches):
        driver.advance(driver.pending_job(StorageKind.STORE).ticket)
        there = driver.in_storage(PAIR)
        assert not any(there[Pool.KV]), f"FLOW-9: KV comes last, after {done} of {batches} batches there is {there}"
    with driver.storage_variant() as other:
        assert other.prefetch_pages(PAIR) == 0, "FLOW-9: of a prompt without KV nothing can be used"


@clause("FETCH-9", page_sizes=[16])
def test_prefix_keys_are_passed_only_if_the_option_is_set(driver: Scenario) -> None:
    for is_asked in (False, True):
        with driver.storage_variant(extra={"hicache_storage_pass_prefix_keys": is_asked}) as other:
            other.store().empty()
            other.put_in_storage_alone(PROMPT[:2], PROMPT)
            other.prefetch_pages(PROMPT[:2])
            other.prefetch_pages(PROMPT)
            scope = other.object_keys(Pool.KV, PROMPT)[0].partition("/")[0]
            own = [key.removeprefix(f"{scope}/") for key in other.object_keys(Pool.KV, PROMPT)]
            expected = {(), tuple(own[:2])} if is_asked else {()}
            for verb in ("set", "get"):
                given = {call.prefix_keys for call in other.store().calls if call.verb == verb}
                assert given == expected, (
                    f"FETCH-9: asked for: {is_asked}, expected the prefix keys {expected} in {verb}, got {given}"
                )


def start_storing(driver: Scenario) -> None:
    """Cache the pair, and start to store it."""
    driver.put_pages(PAIR)
    driver.step()
    driver.complete_all()
    driver.pending_job(StorageKind.STORE)


def calls(driver: Scenario, verb: str) -> int:
    """How often the cache called a verb of its backend."""
    return sum(call.verb == verb for call in driver.store().calls)


# FETCH-9, FLOW-4: a node that storage refuses does not count as stored, and is offered again a few times.

MARKED = [*STEPPED_STORAGE, Capability.MARKS]
USES = 10


@clause("FETCH-9", "FLOW-4", needs=MARKED, write_policies=THROUGH, page_sizes=[16])
def test_a_node_with_a_refused_page_does_not_count_as_stored(driver: Scenario) -> None:
    for pool in driver.pools():
        driver.reset()
        driver.store().empty()
        kept = driver.object_keys(pool, PAIR)
        driver.store().faults.refused = set(kept[-1:])
        driver.put_pages(PAIR)
        driver.drain()
        marks = driver.stored_components()
        assert marks == {PAIR: frozenset()}, f"FETCH-9: a page of {pool} was refused, got {marks}"
        driver.store().faults.refused = set()
        driver.put_pages(PAIR)
        driver.drain()
        marks = driver.stored_components()
        assert marks == {PAIR: frozenset(driver.config.components)}, (
            f"FLOW-4: nothing is refused any more, and it was used again, got {marks}"
        )
        assert driver.expected_pages(PAIR) == len(PAIR), f"FETCH-9: in storage is {driver.in_storage(PAIR)}"


@clause("FETCH-9", "FLOW-4", needs=MARKED, write_policies=THROUGH, page_sizes=[16])
def test_a_refused_node_is_offered_again_after_a_match(driver: Scenario) -> None:
    driver.store().faults.failing_sets = 1
    driver.put_pages(PAIR)
    driver.drain()
    driver.match(driver.key(driver.prompt(PAIR)))
    driver.drain()
    assert driver.stored_components()[PAIR], "FLOW-4: it was refused once, and a request used it since"


@clause("FLOW-9", "FETCH-9", write_policies=THROUGH, page_sizes=[16])
def test_the_child_of_a_refused_node_is_not_offered(driver: Scenario) -> None:
    driver.store().faults.refused = set(driver.object_keys(Pool.KV, PROMPT)[1:2])
    driver.put_pages(PROMPT[:2])
    driver.put_pages(PROMPT)
    driver.drain()
    below = set(driver.object_keys(Pool.KV, PROMPT)[2:])
    assert not below & driver.store().offered, "FLOW-9: its parent was refused, and it was given to storage"
    driver.store().faults.refused = set()
    driver.put_pages(PROMPT)
    driver.drain()
    assert below <= driver.store().written, "FLOW-4: nothing is refused any more, both are offered with the next use"


@clause("FLOW-4", "FETCH-9", needs=STEPPED_STORAGE, write_policies=THROUGH, page_sizes=[16])
def test_a_node_that_is_always_refused_is_offered_three_times(driver: Scenario) -> None:
    key = driver.object_keys(Pool.KV, PROMPT)[0]
    driver.store().faults.refused = {key}
    for _ in range(USES):
        driver.put_pages(PROMPT)
        driver.drain()
    tries = sum(key in call.keys for call in driver.store().calls if call.verb == "set")
    assert 1 < tries < USES, (
        f"FLOW-4: {USES} uses, each time refused: expected more than 1 and less than {USES} offers, got {tries}"
    )
    driver.put_pages(OTHER)
    driver.drain()
    assert all(driver.in_storage(OTHER)[Pool.KV]), "FLOW-4: another prompt is not refused: expected it in storage"


@clause("FETCH-9", "FLOW-9", write_policies=THROUGH, page_sizes=[1], needs=MARKED)
def test_a_node_with_one_failed_batch_is_stored_with_the_next_use(driver: Scenario) -> None:
    for lost in (0, 130, 299):
        with driver.long_prompt_variant() as long:
            key = long.object_keys(Pool.KV, LONG)[lost]
            long.store().empty()
            long.store().faults.refused = {key}
            long.put_pages(LONG)
            long.drain()
            assert not any(long.stored_components().values()), f"FETCH-9: page {lost} of {len(LONG)} was refused"
            long.store().faults.refused = set()
            long.put_pages(LONG)
            long.drain()
            missing = [page for page, there in enumerate(long.in_storage(LONG)[Pool.KV]) if not there]
            assert not missing, f"FLOW-4: page {lost} was refused once, of the second offer lack {missing}"
            long.evict_all()
            long.restart()
            came = long.prefetch_pages(LONG)
            assert came == len(LONG), f"FLOW-9: {len(LONG)} pages are in storage, {came} came"


@clause("EVENT-1", "EVENT-2", needs=[Capability.EVENTS, Capability.STORAGE, Capability.COUNTERS], page_sizes=[16])
def test_a_refused_node_is_not_reported(driver: Scenario) -> None:
    driver.store().faults.refused = set(driver.object_keys(Pool.KV, PAIR)[-1:])
    driver.put_pages(PAIR)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    driver.drain()
    events = [event for event in driver.adapter.events() if event.tier == "storage"]
    assert not events, f"EVENT-1: storage has only a part of the node: expected no events, got {events}"
    counters = driver.adapter.counters()
    assert counters["bytes_stored"] == 0, f"EVENT-2: nothing was stored: expected 0 bytes, got {counters}"
    assert counters["stores_failed"] == 1, f"EVENT-2: expected one failed store to be counted, got {counters}"
