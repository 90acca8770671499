"""FETCH-3, FLOW-11: how long check_prefetch waits by each stop policy, and what a cut prefetch brings."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import StopPolicy, StorageKind

from .scenario import MAMBA, SWA, tier_hits
from .storage_scenes import (
    LONG,
    PREFIXES,
    PROMPT,
    begin_prefetch,
    complete_job,
    long_prompt_variant,
    pending_job,
    prefetch,
    put_in_storage_alone,
    slots_held_by_prefetches,
    storage_config,
)

NOT_BEST_EFFORT = [StopPolicy.WAIT_COMPLETE, StopPolicy.TIMEOUT]
TIMEOUT = [StopPolicy.TIMEOUT]
WAITING = [StopPolicy.WAIT_COMPLETE]
BEST_EFFORT = [StopPolicy.BEST_EFFORT]
LONG_TIME_S = 1e9


@clause("FETCH-3", stop_policies=WAITING)
def test_wait_complete_waits_until_all_pages_are_read(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    moments = 0
    while (tokens := driver.check_prefetch(ticket)) is None:
        driver.advance_clock(LONG_TIME_S)
        driver.step()
        for one in driver.pending_storage():
            driver.advance_storage(one.ticket)
        moments += 1
        assert moments < 100, "FETCH-3: storage answers: expected the prefetch to end within 100 rounds"
    assert moments > 1, "FETCH-3: it answered before anything had come"
    assert tokens == len(PROMPT) * driver.config.page_size, f"FETCH-3: all of the prompt, got {tokens} tokens"


@clause("FETCH-3", stop_policies=BEST_EFFORT)
def test_best_effort_does_not_wait(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    for steps in range(4):
        driver.reset()
        ticket = begin_prefetch(driver, PROMPT)
        for _ in range(steps):
            driver.step()
            for one in driver.pending_storage():
                driver.complete_storage(one.ticket)
        tokens = driver.check_prefetch(ticket)
        is_whole = steps >= 2
        expected = len(PROMPT) * driver.config.page_size * is_whole
        assert tokens == expected, f"FETCH-3: after {steps} answers {expected} tokens have come, it says {tokens}"


@clause("FETCH-3", stop_policies=BEST_EFFORT, page_sizes=[16])
def test_a_cut_prefetch_keeps_the_pages_that_are_being_written(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    assert driver.check_prefetch(ticket) == 0, "FETCH-3: nothing has come yet"
    assert slots_held_by_prefetches(driver), "FLOW-1: a batch is being written: expected its slots to stay held"
    driver.advance_storage(pending_job(driver, StorageKind.PREFETCH).ticket)
    driver.step()
    assert not slots_held_by_prefetches(driver), (
        f"FETCH-8: the batch has ended, held are {slots_held_by_prefetches(driver)}"
    )
    assert not driver.pending_storage(), "FETCH-3: the prefetch was cut: expected no pending storage job"


@clause("FETCH-3", "FLOW-11", stop_policies=TIMEOUT)
def test_timeout_waits_for_its_time_and_no_longer(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    tier, page = storage_config(driver), driver.config.page_size
    for pages in range(1, len(PROMPT) + 1):
        allowed_s = tier.extra.prefetch_timeout_base + pages * page * tier.extra.prefetch_timeout_per_ki_token / 1024
        ticket = begin_prefetch(driver, PROMPT[:pages])
        driver.advance_clock(allowed_s * 0.99)
        assert driver.check_prefetch(ticket) is None, f"FETCH-3: {pages} pages are waited for {allowed_s} s"
        driver.advance_clock(allowed_s * 0.02)
        assert driver.check_prefetch(ticket) == 0, f"FETCH-3: {allowed_s} s have passed, and storage did not answer"
        driver.drain()


@clause("FLOW-11", "FETCH-3", stop_policies=TIMEOUT)
def test_the_wait_for_a_long_prompt_is_capped(driver: Driver) -> None:
    tier, page = storage_config(driver), driver.config.page_size
    pages = tier.limit_tokens // page
    linear_s = tier.extra.prefetch_timeout_base + pages * page * tier.extra.prefetch_timeout_per_ki_token / 1024
    assert linear_s > tier.timeout_cap_s, "the longest prompt that is allowed is past the cap"
    ticket = begin_prefetch(driver, range(20, 20 + pages))
    driver.advance_clock(tier.timeout_cap_s * 0.99)
    assert driver.check_prefetch(ticket) is None, f"FLOW-11: waited for {tier.timeout_cap_s} s, and no less"
    driver.advance_clock(tier.timeout_cap_s * 0.02)
    assert driver.check_prefetch(ticket) == 0, f"FLOW-11: {tier.timeout_cap_s} s have passed, and not {linear_s} s"
    driver.drain()


@clause("FETCH-3", stop_policies=TIMEOUT)
def test_timeout_does_not_wait_for_a_prefetch_that_has_ended(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    came = prefetch(driver, PROMPT)
    assert came == len(PROMPT), f"FETCH-3: all has come before its time, {came} pages are said"


@clause("FETCH-3", stop_policies=NOT_BEST_EFFORT, sidecars=("indexer",), page_sizes=[16])
def test_a_pending_sidecar_is_waited_for_as_long_as_kv(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    driver.advance_storage(pending_job(driver, StorageKind.PREFETCH).ticket)
    driver.step()
    assert driver.check_prefetch(ticket) is None, "FETCH-3: KV has come, and its sidecar is pending"
    driver.advance_clock(LONG_TIME_S)
    tokens, expected = driver.check_prefetch(ticket), None
    if storage_config(driver).stop_policy is StopPolicy.TIMEOUT:
        expected = 0
    assert tokens == expected, f"FETCH-3: a sidecar delays until the timeout and no longer: {expected}, got {tokens}"
    driver.drain()
    if tokens is None:
        expected = len(PROMPT) * driver.config.page_size
        assert driver.check_prefetch(ticket) == expected, "FETCH-3: all has come"


@clause(
    "FETCH-3", "FETCH-5", page_sizes=[1], write_policies=[WritePolicy.WRITE_THROUGH], needs=[Capability.STEPPED_STORAGE]
)
def test_a_cut_prefetch_keeps_the_batches_that_were_read(driver: Driver) -> None:
    with long_prompt_variant(driver, StopPolicy.BEST_EFFORT) as long:
        put_in_storage_alone(long, LONG)
        for batches in range(4):
            long.reset()
            ticket = begin_prefetch(long, LONG)
            long.step()
            complete_job(long, StorageKind.QUERY)
            for _ in range(min(batches, 2)):
                long.advance_storage(pending_job(long, StorageKind.PREFETCH).ticket)
            expected = min(128 * batches, 256)
            tokens = long.check_prefetch(ticket)
            assert tokens == expected, f"FETCH-3: {expected} pages of {len(LONG)} have come, it says {tokens}"
            assert tier_hits(long, LONG) == (0, expected), f"FETCH-4: a match gets {tier_hits(long, LONG)}"
            long.drain()


@clause("FETCH-3", "FETCH-6", stop_policies=BEST_EFFORT, components=(SWA, MAMBA), page_sizes=[16])
def test_a_cut_prefetch_with_a_window_or_a_state_keeps_all_or_nothing(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    batches = 4
    for done in range(batches + 1):
        driver.reset()
        ticket = begin_prefetch(driver, PROMPT)
        driver.step()
        complete_job(driver, StorageKind.QUERY)
        assert pending_job(driver, StorageKind.PREFETCH).batches == batches, (
            "FETCH-5: KV, its sidecar, a window and a state"
        )
        for _ in range(done):
            driver.advance_storage(pending_job(driver, StorageKind.PREFETCH).ticket)
        expected = len(PROMPT) * driver.config.page_size * (done == batches)
        tokens = driver.check_prefetch(ticket)
        assert tokens == expected, f"FETCH-6: after {done} of {batches} batches {expected} tokens, got {tokens}"
        driver.drain()
