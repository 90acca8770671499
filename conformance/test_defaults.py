"""Caches that are opened without some keys of a configuration: each key has its default, as its clause says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import CacheConfig, ExecutorKind, Layout, Recency, StorageConfig, Topology, WritePolicy
from hicache.config_mapping import config_to_mapping, read_config
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.storage.misbehaving import BACKEND, GUARD_S, script
from hicache.types import Handle, Pool, StopPolicy

from .scenario import FULL, MAMBA, SWA, Scenario
from .snapshot_values import prefixes
from .stored_prompts import PROMPT

LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "all but the capacity": (
        *("page_size", "components", "sliding_window_size", "mamba_chunk_size", "policy", "bigram", "events", "model"),
        *("device", "layout", "topology", "host", "storage"),
    ),
    "ranks": tuple(f"topology.{axis}_{what}" for axis in ("tp", "cp", "pp", "dp") for what in ("rank", "size")),
    "pools": ("model.is_mla", "model.pools[].tokens_per_entry", "model.pools[].buffers[].tp_axis"),
    "write policy": ("page_size", "host.write_policy", "host.layout", "host.executor", "host.io_backend"),
    "selective": ("host.selective_hits",),
    "load-back": ("page_size", "host.load_back_threshold_tokens"),
    "layout": ("host.layout",),
    "recency": ("recency",),
    "states": ("mamba_checkpoint_interval", "mamba_max_states_per_path"),
    "threshold": ("page_size", "storage.prefetch_threshold", "storage.extra_config"),
    "limit": ("storage.limit_tokens",),
    "stop policy": ("storage.stop_policy",),
    "timeout": ("storage.prefetch_timeout_base", "storage.prefetch_timeout_per_ki_token", "storage.limit_tokens"),
    "longest": ("storage.prefetch_timeout_per_ki_token", "storage.timeout_cap_s", "storage.limit_tokens"),
    "prefix keys": ("storage.hicache_storage_pass_prefix_keys",),
    "options": ("storage.options", "storage.executor"),
    "answers": ("storage.answer_timeout_s",),
    "fingerprint": ("storage.model_fingerprint",),
}
"""The keys that a configuration lacks, by the name of what is tested."""


@contextmanager
def opened_without(driver: Scenario, name: str, **changes: Any) -> Iterator[Scenario]:
    """A driver of an empty cache that differs in these fields of CacheConfig, and was given no key of LEFT_OUT[name].

    A cache that reads configurations reads this one itself.
    """
    adapter, config = type(driver.adapter), replace(driver.config, **changes)
    if adapter.configurations() is not None:
        pytest.skip(f"{adapter.__name__} lists its configurations, and takes no others")
    reads = Capability.CONFIG_FILES in adapter.capabilities
    table = deepcopy(dict(adapter.config_table(config) if reads else config_to_mapping(config)))
    for key in LEFT_OUT[name]:
        _leave_out(table, key)
    read: CacheConfig = adapter.read_config(json.dumps(table)) if reads else read_config(table)
    opened = Scenario(adapter(read), read)
    try:
        yield opened
        opened.check()
    finally:
        opened.adapter.close()


def _leave_out(table: dict[str, Any], key: str) -> None:
    name, _, rest = key.partition(".")
    if not rest:
        table.pop(name, None)
        return
    inner = table.get(name.removesuffix("[]"), {})
    for one in inner if isinstance(inner, list) else [inner]:
        _leave_out(one, rest)


ALONE: Mapping[str, Any] = {"components": (FULL,), "alone": True, "page_sizes": [16]}
WITH_HOST: Mapping[str, Any] = {**ALONE, "write_policies": [WritePolicy.WRITE_BACK]}
WITH_STORAGE: Mapping[str, Any] = {
    "stop_policies": [StopPolicy.WAIT_COMPLETE],
    "write_policies": [WritePolicy.WRITE_THROUGH],
}
STORED: Mapping[str, Any] = {**ALONE, **WITH_STORAGE}
"""The configurations of a test."""

STEPPED_STORAGE = [Capability.STEPPED_STORAGE]
READ_BY_THE_CACHE = [Capability.CONFIG_FILES, Capability.SNAPSHOT]


def reach(driver: Scenario, is_reached: Callable[[], bool], expected: str) -> None:
    """Step until something is so; nothing but the threads of the cache moves its transfers."""
    deadline_s = time.monotonic() + GUARD_S
    while not is_reached():
        assert time.monotonic() < deadline_s, f"{expected} within {GUARD_S:g} s"
        driver.step()
        time.sleep(0.001)


# The device.


@clause("KEY-1", "EVICT-2", needs=READ_BY_THE_CACHE, **ALONE)
def test_a_cache_of_which_only_the_capacity_is_given(driver: Scenario) -> None:
    with opened_without(driver, "all but the capacity") as cache:
        key = cache.key([7, 8, 9])
        cache.put(key)
        found = len(cache.match(key).device_indices)
        assert found == 3, f"KEY-1: a page is one token, which is one element: expected 3 tokens, found {found}"
        cache.evict_all()
        assert not cache.nodes(), f"EVICT-1: there is no other tier: expected nothing left, got {cache.nodes().keys()}"
        for page in (1, 2, 3):
            cache.put_pages([page], priority=page)
        for page in (2, 2, 1):
            cache.use([page])
        cache.unlock(cache.lock(cache.match(cache.key_of([3]), chunked=True).device_anchor))
        order = [victim(cache) for _ in range(3)]
        assert order == [2, 1, 3], f"EVICT-2: used were 2, 2, 1, 3, LRU evicts 2, 1, 3, but evicted were {order}"


@clause("MATCH-18", needs=[Capability.CONFIG_FILES], components=(MAMBA,), page_sizes=[16])
def test_a_use_refreshes_one_state_by_default(driver: Scenario) -> None:
    if Recency.USED not in driver.adapter.recencies:
        pytest.skip("the adapter does not declare the recency 'used'")
    with opened_without(driver, "recency", recency=Recency.PATH) as cache:
        for pages in ([1], [1, 2], [9]):
            cache.put_pages(pages)
        cache.use([1, 2])
        cache.evict(MAMBA, 1)
        left = cache.device_slots(MAMBA).keys()
        assert left == {(1, 2), (9,)}, f"MATCH-18: (1, 2) alone was used: expected (1,) to be evicted, left are {left}"


@clause("STATE-1", "STATE-2", components=(MAMBA,), page_sizes=[16])
def test_a_path_keeps_all_states_by_default(driver: Scenario) -> None:
    changes = {"mamba_checkpoint_interval": driver.config.mamba_state_unit, "mamba_max_states_per_path": 1}
    if not driver.adapter.state_options.issuperset(changes):
        pytest.skip("the adapter does not declare both options in its `state_options`")
    with opened_without(driver, "states", **changes) as cache:
        cache.put_prefixes([1, 2, 3])
        states = sorted(cache.device_slots(MAMBA))
        assert states == [(1,), (1, 2), (1, 2, 3)], f"STATE-1: expected no limit of states, got {states}"
        keep_at = cache.admit_pages(range(11, 19), tail=1).keep_at or ()
        assert len(keep_at) == 1, f"STATE-2: expected no interval, and a state for the same prompt alone, got {keep_at}"


def victim(driver: Scenario) -> int:
    """Evict a token; which prompt of one page is gone."""
    before = driver.nodes().keys()
    driver.evict(FULL, 1)
    ((page,),) = before - driver.nodes().keys()
    return page


# The host.


@clause("HOST-1", **WITH_HOST)
def test_a_cache_writes_through_with_threads_by_default(driver: Scenario) -> None:
    with opened_without(driver, "write policy") as cache:
        cache.put_pages([1, 2])
        reach(cache, lambda: (1, 2) in cache.host_slots(FULL), "HOST-1: expected a copy at the first use")


@clause("HOST-1", **WITH_HOST)
def test_selective_backs_up_at_the_second_request_by_default(driver: Scenario) -> None:
    selective = replace(driver.host_config, write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, selective_hits=9)
    with opened_without(driver, "selective", host=selective) as cache:
        for request, expected in ((1, set()), (2, prefixes(1, 2))):
            cache.put_pages([1, 2])
            cache.drain()
            found = cache.host_slots(FULL).keys()
            assert found == expected, f"HOST-1: after request {request}: expected copies {expected}, got {found}"


@clause("HOST-5", **WITH_HOST)
def test_ten_tokens_are_loaded_back_by_default(driver: Scenario) -> None:
    with opened_without(driver, "load-back") as cache:
        few, enough = range(1, 10), range(11, 21)
        cache.put_on_host(few, enough)
        for pages, is_loaded in ((few, False), (enough, True)):
            key = cache.key_of(pages)
            load = cache.load_back(key, cache.match(key, chunked=True))
            assert (load is not None) == is_loaded, f"HOST-5: {len(pages)} tokens: expected {is_loaded}, got {load}"
            if load is not None:
                cache.drain()
                cache.claim(load.ticket)


# Storage.


@clause("STORE-1", **STORED)
def test_pages_are_those_of_one_rank_by_default(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    with opened_without(driver, "ranks") as cache:
        came = cache.prefetch_pages(PROMPT)
        assert came == len(PROMPT), f"STORE-1: one rank is the default: expected {len(PROMPT)} pages, {came} came"


@clause("STORE-1", components=(SWA, MAMBA), page_sizes=[16], **WITH_STORAGE)
def test_each_rank_has_its_own_undivided_pages_by_default(driver: Scenario) -> None:
    keys = list[set[str]]()
    for rank in range(2):
        # The tiny model has one head, which two ranks cannot divide.
        with opened_without(driver, "pools", topology=Topology(tp_rank=rank, tp_size=2)) as cache:
            cache.put_in_storage(PROMPT[:2])
            keys.append({key for pool in cache.config.sidecars for key in cache.object_keys(pool, PROMPT)})
            keys[-1].update(cache.object_keys(Pool.KV, PROMPT))
    assert not keys[0] & keys[1], f"STORE-1: both ranks of a model without MLA have the objects {keys[0] & keys[1]}"


@clause("STORE-1", **STORED)
def test_pages_are_page_first_direct_by_default(driver: Scenario) -> None:
    with driver.storage_variant(host={"layout": Layout.PAGE_FIRST_DIRECT}) as cache:
        cache.put_in_storage(PROMPT)
    with opened_without(driver, "layout") as cache:
        came = cache.prefetch_pages(PROMPT)
        assert came == len(PROMPT), f"STORE-1: the layouts are equal: expected {len(PROMPT)} pages, {came} came"


@clause("STORE-1", **STORED)
def test_a_model_has_no_fingerprint_by_default(driver: Scenario) -> None:
    with driver.storage_variant(storage={"model_fingerprint": "a"}) as cache:
        cache.put_in_storage(PROMPT)
    with opened_without(driver, "fingerprint", storage=storage_of(driver, model_fingerprint="a")) as cache:
        came = cache.prefetch_pages(PROMPT)
        assert came == 0, f"STORE-1: a model without a fingerprint read {came} pages of one that has a fingerprint"
        cache.put_in_storage(PROMPT)
    with opened_without(driver, "fingerprint") as cache:
        came = cache.prefetch_pages(PROMPT)
        assert came == len(PROMPT), f"STORE-1: {len(PROMPT)} pages were stored without a fingerprint, {came} came"


def storage_of(driver: Scenario, **changes: Any) -> StorageConfig:
    """The storage tier of a configuration with other fields."""
    return replace(driver.storage_config(), **changes)


@clause("FETCH-1", **STORED)
def test_256_tokens_are_prefetched_by_default(driver: Scenario) -> None:
    capacity = driver.capacity_for(pages=32, states=8)
    changes = {"capacity_tokens": capacity, "host": replace(driver.host_config, capacity_tokens=capacity)}
    with opened_without(driver, "threshold", **changes, storage=storage_of(driver, limit_tokens=1000)) as cache:
        for tokens, is_begun in ((255, False), (256, True)):
            ticket = cache.prefetch(cache.key_of(range(tokens)))
            assert (ticket is not None) == is_begun, f"FETCH-1: {tokens} tokens: expected {is_begun}, got {ticket}"
            if ticket is not None:
                cache.abort_prefetch(ticket)


@clause("FETCH-1", **STORED)
def test_1048576_tokens_are_prefetched_at_a_time_by_default(driver: Scenario) -> None:
    with opened_without(driver, "limit") as cache:
        pages = (1 << 20) // cache.config.page_size
        tickets = [cache.begin_prefetch(range(pages - 1)), cache.begin_prefetch([pages])]
        assert cache.prefetch(cache.key_of([pages + 1])) is None, f"FETCH-1: the limit is {pages} pages at a time"
        for ticket in tickets:
            cache.abort_prefetch(ticket)


@clause("FETCH-3", needs=STEPPED_STORAGE, **STORED)
def test_a_prefetch_is_not_waited_for_by_default(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    with opened_without(driver, "stop policy") as cache:
        came = cache.check_prefetch(cache.begin_prefetch(PROMPT))
        assert came == 0, f"FETCH-3: best_effort does not wait: expected that 0 tokens have come, got {came}"


def require_wait(driver: Scenario, tokens: int, allowed_s: float) -> None:
    """A prefetch that storage does not answer is waited for so long and no longer."""
    ticket = driver.begin_prefetch(range(tokens // driver.config.page_size))
    for passed_s in (0.0, allowed_s * 0.99):
        driver.advance_clock(passed_s)
        assert driver.check_prefetch(ticket) is None, f"FETCH-3: {tokens} tokens are waited for {allowed_s} s"
    driver.advance_clock(allowed_s * 0.02)
    came = driver.check_prefetch(ticket)
    assert came == 0, f"FETCH-3: {allowed_s} s have passed for {tokens} tokens: expected 0 tokens, got {came}"
    driver.drain()


@clause("FETCH-3", needs=STEPPED_STORAGE, **STORED)
def test_the_timeout_is_a_second_and_a_quarter_of_one_for_1024_tokens_by_default(driver: Scenario) -> None:
    with opened_without(driver, "timeout", storage=storage_of(driver, stop_policy=StopPolicy.TIMEOUT)) as cache:
        for tokens, allowed_s in ((1024, 1.25), (4096, 2.0)):
            require_wait(cache, tokens, allowed_s)


@clause("FLOW-11", needs=STEPPED_STORAGE, **STORED)
def test_the_timeout_is_at_most_thirty_seconds_by_default(driver: Scenario) -> None:
    with opened_without(driver, "longest", storage=storage_of(driver, stop_policy=StopPolicy.TIMEOUT)) as cache:
        require_wait(cache, 1 << 18, 30.0)


@clause("FETCH-9", **STORED)
def test_a_backend_is_not_given_the_keys_before_by_default(driver: Scenario) -> None:
    asking = storage_of(driver, hicache_storage_pass_prefix_keys=True)
    with opened_without(driver, "prefix keys", storage=asking) as cache:
        cache.put_in_storage(PROMPT[:2], PROMPT)
        given = {call.prefix_keys for call in cache.store().calls if call.verb == "set"}
        assert given == {()}, f"FETCH-9: expected no keys of the pages before, which are off by default, got {given}"


@clause("FETCH-4", needs=[Capability.CONFIG_FILES], **STORED)
def test_storage_is_read_by_threads_and_without_options_by_default(driver: Scenario) -> None:
    with opened_without(driver, "options", storage=storage_of(driver, backend="memory")) as cache:
        cache.put_pages(PROMPT)
        cache.evict_all()
        cache.drain()
        cache.reset()
        came = list[int]()
        ticket = cache.begin_prefetch(PROMPT)
        reach(cache, lambda: has_ended(cache, ticket, came), "FETCH-4: expected the prefetch to end")
        expected = len(PROMPT) * cache.config.page_size
        assert came == [expected], f"FETCH-4: {expected} tokens are in storage, {came} came"


def has_ended(driver: Scenario, ticket: Handle, came: list[int]) -> bool:
    """Whether a prefetch has ended; the tokens that it brought are then appended."""
    tokens = driver.check_prefetch(ticket)
    came += [] if tokens is None else [tokens]
    return tokens is not None


@clause("FLOW-13", needs=[*STEPPED_STORAGE, Capability.SNAPSHOT], **STORED)
def test_a_backend_may_take_thirty_seconds_for_an_answer_by_default(driver: Scenario) -> None:
    tier = driver.storage_config()
    with script() as (name, told):
        options = {"inner": tier.backend, "inner_options": dict(tier.options), "script": name}
        hanging = storage_of(driver, backend=BACKEND, options=options, executor=ExecutorKind.THREADED)
        with opened_without(driver, "answers", storage=hanging) as cache:
            gate = told.hang("exists")
            cache.begin_prefetch(PROMPT)
            reach(cache, gate.entered.is_set, "FLOW-13: expected a call of the backend")
            cache.advance_clock(29.9)
            cache.step()
            assert cache.storage_view().abandoned is None, "FLOW-13: it has 30 s for an answer, and 29.9 s have passed"
            cache.advance_clock(0.2)
            cache.step()
            assert cache.storage_view().abandoned is not None, "FLOW-13: 30.1 s have passed without an answer"
            told.behave()
