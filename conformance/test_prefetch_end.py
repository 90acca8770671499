"""FETCH-2, FETCH-3, FETCH-8, FETCH-10, FETCH-11: what a prefetch pins, how long it may take, what its end releases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.pools import component_of
from hicache.testing.stored import restorable_pages
from hicache.types import Handle, Pool, StopPolicy, StorageKind, Tier, TransferKind

from .scenario import FULL, MAMBA, SWA, Scenario
from .snapshot_values import Pages, prefixes
from .stored_prompts import LONG, OTHER, PAIR, PREFETCH_PHASES, PREFIXES, PROMPT, PrefetchPhase

# FETCH-2: the anchor of a prefetch is pinned until the prefetch has ended.


STEPPED = [Capability.STEPPED]
STEPPED_STORAGE = [Capability.STEPPED_STORAGE]
BOTH_STEPPED = [*STEPPED, *STEPPED_STORAGE]


@PREFETCH_PHASES
@clause("FETCH-2", "LOCK-7", needs=STEPPED_STORAGE)
def test_the_anchor_stays_until_the_prefetch_has_ended(driver: Scenario, phase: PrefetchPhase) -> None:
    ticket = begun_past_an_anchor(driver)
    phase(driver)
    driver.evict_all()
    driver.evict_all_host()
    assert PAIR in driver.nodes(), (
        f"FETCH-2: {PAIR} is the anchor of a prefetch: expected it to stay, but it was evicted"
    )
    assert driver.pins(Tier.HOST)[FULL, PAIR] > 0, f"FETCH-2: {PAIR} is host-locked, got {driver.pins(Tier.HOST)}"
    driver.drain()
    assert driver.prefetched_pages(ticket) == len(PROMPT) - len(PAIR), "FETCH-4: the rest of the prompt is in storage"
    assert not driver.pins(Tier.HOST), (
        f"FETCH-2: the prefetch has ended: expected no pins, got {driver.pins(Tier.HOST)}"
    )
    driver.evict_all_host()
    assert not driver.nodes(), (
        f"FETCH-2: the prefetch has ended: expected an empty tree after eviction, got {driver.nodes().keys()}"
    )


@PREFETCH_PHASES
@clause("FETCH-2", "FETCH-8", needs=STEPPED_STORAGE)
def test_an_abort_unpins_the_anchor_at_once(driver: Scenario, phase: PrefetchPhase) -> None:
    ticket = begun_past_an_anchor(driver)
    phase(driver)
    driver.abort_prefetch(ticket)
    assert not driver.pins(Tier.HOST), (
        f"FETCH-8: the prefetch was aborted: expected no pins, got {driver.pins(Tier.HOST)}"
    )
    driver.evict_all_host()
    assert not driver.nodes(), (
        f"FETCH-8: the prefetch was aborted: expected an empty tree after eviction, got {driver.nodes().keys()}"
    )


@clause("FETCH-2", needs=STEPPED_STORAGE, write_policies=[WritePolicy.WRITE_BACK])
def test_an_anchor_that_is_on_the_device_alone_is_not_removed(driver: Scenario) -> None:
    ticket = begun_past_a_device_anchor(driver)
    driver.evict_all()
    driver.evict_all_host()
    assert PAIR in driver.nodes(), (
        f"FETCH-2: {PAIR} is the anchor of a prefetch: expected it to stay, but it was evicted"
    )
    driver.drain()
    assert driver.prefetched_pages(ticket) == len(PROMPT) - len(PAIR), "FETCH-4: the rest of the prompt is in storage"


@clause("FETCH-2", "FETCH-9", needs=STEPPED, write_policies=[WritePolicy.WRITE_THROUGH])
def test_prefetched_pages_are_inserted_after_the_backup_of_their_anchor(driver: Scenario) -> None:
    ticket = read_past_a_device_anchor(driver)
    driver.step()
    assert driver.tier_hits(PROMPT) == (len(PAIR), 0), "HOST-2: the anchor is not on the host, and nothing below may be"
    driver.complete(driver.pending_transfer(TransferKind.BACKUP).ticket)
    driver.step()
    driver.step()
    rest = len(PROMPT) - len(PAIR)
    assert driver.tier_hits(PROMPT) == (len(PAIR), rest), (
        f"FETCH-4: the anchor is there: expected {(len(PAIR), rest)}, got {driver.tier_hits(PROMPT)}"
    )
    assert driver.prefetched_pages(ticket) == rest, "FETCH-4: all of the prompt came"


@clause("FETCH-2", "LOCK-7", needs=STEPPED, write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_an_anchor_is_host_locked_from_the_end_of_its_backup(driver: Scenario) -> None:
    ticket = begun_past_a_device_anchor(driver)
    driver.complete(driver.pending_transfer(TransferKind.BACKUP).ticket)
    driver.step()
    driver.complete_job(StorageKind.STORE)
    driver.evict_all()
    driver.evict_all_host()
    there = driver.host_slots(FULL).keys()
    assert there == prefixes(*PAIR), f"FETCH-2: {PAIR} is an anchor: expected it to stay on the host, got {there}"
    driver.drain()
    came, rest = driver.prefetched_pages(ticket), len(PROMPT) - len(PAIR)
    assert came == rest, f"FETCH-4: the rest of the prompt is in storage: expected {rest} pages, got {came}"
    driver.evict_all()
    driver.evict_all_host()
    assert not driver.nodes(), (
        f"FETCH-2: the prefetch has ended: expected an empty tree after eviction, got {driver.nodes().keys()}"
    )


@clause("FETCH-2", "FLOW-3", needs=STEPPED, write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_prefetch_brings_nothing_if_the_backup_of_its_anchor_fails(driver: Scenario) -> None:
    ticket = read_past_a_device_anchor(driver)
    driver.fail(driver.pending_transfer(TransferKind.BACKUP).ticket, parts_done=0)
    driver.drain()
    assert driver.prefetched_pages(ticket) == 0, (
        "FLOW-3: the pages would be below a node that is not on the host: expected 0"
    )
    assert driver.tier_hits(PROMPT) == (len(PAIR), 0), f"FLOW-3: got {driver.tier_hits(PROMPT)}"


@clause(
    *("FETCH-3", "HOST-2"),
    needs=STEPPED,
    write_policies=[WritePolicy.WRITE_THROUGH],
    stop_policies=[StopPolicy.BEST_EFFORT],
)
def test_a_prefetch_that_is_cut_during_the_backup_of_its_anchor_brings_nothing(driver: Scenario) -> None:
    ticket = read_past_a_device_anchor(driver)
    came = driver.prefetched_pages(ticket)
    assert came == 0, f"HOST-2: all pages have come, and the anchor is not on the host: expected 0 pages, got {came}"
    held = driver.slots_held_by_prefetches()
    assert not held, f"FETCH-8: the prefetch was cut and nothing is read: expected no slots to be held, got {held}"
    driver.drain()
    found = driver.tier_hits(PROMPT)
    assert found == (len(PAIR), 0), f"HOST-2: expected a hit of {(len(PAIR), 0)}, got {found}"


def begun_past_an_anchor(driver: Scenario) -> Handle:
    """Start a prefetch of a prompt whose first pages are on the host."""
    driver.put_in_storage_alone(PAIR, PROMPT)
    assert driver.prefetch_pages(PAIR) == len(PAIR), "FETCH-4: the beginning is in storage"
    return driver.begin_prefetch(PROMPT)


def begun_past_a_device_anchor(driver: Scenario) -> Handle:
    """Start a prefetch of a prompt whose first pages are on the device and not yet on the host."""
    driver.put_in_storage_alone(PAIR, PROMPT)
    driver.put_pages(PAIR)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    return ticket


def read_past_a_device_anchor(driver: Scenario) -> Handle:
    """The same, and storage has read all pages."""
    ticket = begun_past_a_device_anchor(driver)
    driver.complete_job(StorageKind.QUERY)
    driver.complete_job(StorageKind.PREFETCH)
    return ticket


# FETCH-3, FLOW-11: how long check_prefetch waits by each stop policy, and what a cut prefetch brings.


NOT_BEST_EFFORT = [StopPolicy.WAIT_COMPLETE, StopPolicy.TIMEOUT]
TIMEOUT = [StopPolicy.TIMEOUT]
THROUGH = [WritePolicy.WRITE_THROUGH]
WAITING = [StopPolicy.WAIT_COMPLETE]
BEST_EFFORT = [StopPolicy.BEST_EFFORT]
LONG_TIME_S = 1e9

BATCH_PAGES = 128
"""The most pages that storage is asked for at a time."""

STATE_PAGES = 20
"""So many pages lie between two states of a long prompt."""

MAX_BATCHES = 40
"""More answers of storage than a long prompt needs."""


@clause("FETCH-3", stop_policies=WAITING)
def test_wait_complete_waits_until_all_pages_are_read(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    moments = 0
    while (tokens := driver.check_prefetch(ticket)) is None:
        driver.advance_clock(LONG_TIME_S)
        driver.step()
        for one in driver.pending(*StorageKind):
            driver.advance(one.ticket)
        moments += 1
        assert moments < 100, "FETCH-3: storage answers: expected the prefetch to end within 100 rounds"
    assert moments > 1, "FETCH-3: it answered before anything had come"
    assert tokens == len(PROMPT) * driver.config.page_size, f"FETCH-3: all of the prompt, got {tokens} tokens"


@clause("FETCH-3", stop_policies=BEST_EFFORT)
def test_best_effort_does_not_wait(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    for steps in range(4):
        driver.reset()
        ticket = driver.begin_prefetch(PROMPT)
        for _ in range(steps):
            driver.step()
            for one in driver.pending(*StorageKind):
                driver.complete(one.ticket)
        tokens = driver.check_prefetch(ticket)
        is_whole = steps >= 2
        expected = len(PROMPT) * driver.config.page_size * is_whole
        assert tokens == expected, f"FETCH-3: after {steps} answers {expected} tokens have come, it says {tokens}"


@clause("FETCH-3", stop_policies=BEST_EFFORT, page_sizes=[16])
def test_a_cut_prefetch_keeps_the_pages_that_are_being_written(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    driver.complete_job(StorageKind.QUERY)
    assert driver.check_prefetch(ticket) == 0, "FETCH-3: nothing has come yet"
    assert driver.slots_held_by_prefetches(), "FLOW-1: a batch is being written: expected its slots to stay held"
    driver.advance(driver.pending_job(StorageKind.PREFETCH).ticket)
    driver.step()
    assert not driver.slots_held_by_prefetches(), (
        f"FETCH-8: the batch has ended, held are {driver.slots_held_by_prefetches()}"
    )
    assert not driver.pending(*StorageKind), "FETCH-3: the prefetch was cut: expected no pending storage job"


@clause("FETCH-3", "FLOW-11", stop_policies=TIMEOUT)
def test_timeout_waits_for_its_time_and_no_longer(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    tier, page = driver.storage_config(), driver.config.page_size
    for pages in range(1, len(PROMPT) + 1):
        allowed_s = tier.extra.prefetch_timeout_base + pages * page * tier.extra.prefetch_timeout_per_ki_token / 1024
        ticket = driver.begin_prefetch(PROMPT[:pages])
        driver.advance_clock(allowed_s * 0.99)
        assert driver.check_prefetch(ticket) is None, f"FETCH-3: {pages} pages are waited for {allowed_s} s"
        driver.advance_clock(allowed_s * 0.02)
        assert driver.check_prefetch(ticket) == 0, f"FETCH-3: {allowed_s} s have passed, and storage did not answer"
        driver.drain()


@clause("FLOW-11", "FETCH-3", stop_policies=TIMEOUT)
def test_the_wait_for_a_long_prompt_is_capped(driver: Scenario) -> None:
    tier, page = driver.storage_config(), driver.config.page_size
    pages = tier.limit_tokens // page
    linear_s = tier.extra.prefetch_timeout_base + pages * page * tier.extra.prefetch_timeout_per_ki_token / 1024
    assert linear_s > tier.timeout_cap_s, "the longest prompt that is allowed is past the cap"
    ticket = driver.begin_prefetch(range(20, 20 + pages))
    driver.advance_clock(tier.timeout_cap_s * 0.99)
    assert driver.check_prefetch(ticket) is None, f"FLOW-11: waited for {tier.timeout_cap_s} s, and no less"
    driver.advance_clock(tier.timeout_cap_s * 0.02)
    assert driver.check_prefetch(ticket) == 0, f"FLOW-11: {tier.timeout_cap_s} s have passed, and not {linear_s} s"
    driver.drain()


@clause("FETCH-3", stop_policies=TIMEOUT)
def test_timeout_does_not_wait_for_a_prefetch_that_has_ended(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    came = driver.prefetch_pages(PROMPT)
    assert came == len(PROMPT), f"FETCH-3: all has come before its time, {came} pages are said"


@clause("FETCH-3", stop_policies=NOT_BEST_EFFORT, sidecars=("indexer",), page_sizes=[16])
def test_a_pending_sidecar_is_waited_for_as_long_as_kv(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    driver.complete_job(StorageKind.QUERY)
    driver.advance(driver.pending_job(StorageKind.PREFETCH).ticket)
    driver.step()
    assert driver.check_prefetch(ticket) is None, "FETCH-3: KV has come, and its sidecar is pending"
    driver.advance_clock(LONG_TIME_S)
    tokens, expected = driver.check_prefetch(ticket), None
    if driver.storage_config().stop_policy is StopPolicy.TIMEOUT:
        expected = 0
    assert tokens == expected, f"FETCH-3: a sidecar delays until the timeout and no longer: {expected}, got {tokens}"
    driver.drain()
    if tokens is None:
        expected = len(PROMPT) * driver.config.page_size
        assert driver.check_prefetch(ticket) == expected, "FETCH-3: all has come"


@clause(
    "FETCH-3", "FETCH-5", page_sizes=[1], write_policies=[WritePolicy.WRITE_THROUGH], needs=[Capability.STEPPED_STORAGE]
)
def test_a_cut_prefetch_keeps_the_batches_that_were_read(driver: Scenario) -> None:
    with driver.long_prompt_variant(StopPolicy.BEST_EFFORT) as long:
        long.put_in_storage_alone(LONG)
        for batches in range(4):
            long.reset()
            ticket = long.begin_prefetch(LONG)
            long.step()
            long.complete_job(StorageKind.QUERY)
            for _ in range(min(batches, 2)):
                long.advance(long.pending_job(StorageKind.PREFETCH).ticket)
            expected = min(128 * batches, 256)
            tokens = long.check_prefetch(ticket)
            assert tokens == expected, f"FETCH-3: {expected} pages of {len(LONG)} have come, it says {tokens}"
            assert long.tier_hits(LONG) == (0, expected), f"FETCH-4: a match gets {long.tier_hits(LONG)}"
            long.drain()


@clause("FETCH-3", "FETCH-6", stop_policies=BEST_EFFORT, components=(SWA, MAMBA), page_sizes=[16])
def test_a_cut_prefetch_with_a_window_or_a_state_keeps_all_or_nothing(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    batches = 4
    for done in range(batches + 1):
        driver.reset()
        ticket = driver.begin_prefetch(PROMPT)
        driver.step()
        driver.complete_job(StorageKind.QUERY)
        assert driver.pending_job(StorageKind.PREFETCH).units == batches, (
            "FETCH-5: KV, its sidecar, a window and a state"
        )
        for _ in range(done):
            driver.advance(driver.pending_job(StorageKind.PREFETCH).ticket)
        expected = len(PROMPT) * driver.config.page_size * (done == batches)
        tokens = driver.check_prefetch(ticket)
        assert tokens == expected, f"FETCH-6: after {done} of {batches} batches {expected} tokens, got {tokens}"
        driver.drain()


# FETCH-10: a cut keeps the longest prefix of which everything has come.


@clause("FETCH-10", "FETCH-6", needs=STEPPED_STORAGE, page_sizes=[16], write_policies=THROUGH, stop_policies=WAITING)
def test_a_cut_prefetch_keeps_the_longest_prefix_of_which_all_has_come(driver: Scenario) -> None:
    with driver.long_prompt_variant(StopPolicy.BEST_EFFORT) as long:
        cut_after_each_batch(long, LONG)


@clause("FETCH-10", "FETCH-6", needs=STEPPED_STORAGE, components=(SWA,), page_sizes=[16], write_policies=THROUGH)
def test_a_cut_prefetch_keeps_what_has_come_of_a_window_of_several_batches(driver: Scenario) -> None:
    prompt = tuple(range(1, 4 * BATCH_PAGES + 1))
    tokens = dict.fromkeys(driver.config.components, len(prompt))
    with driver.storage_variant(
        page_size=1,
        mamba_chunk_size=1 if driver.has(MAMBA) else None,
        sliding_window_size=3 * BATCH_PAGES,
        capacity_tokens=tokens,
        host={"capacity_tokens": tokens},
        storage={"limit_tokens": len(prompt), "stop_policy": StopPolicy.BEST_EFFORT},
    ) as wide:
        cut_after_each_batch(wide, prompt)


def cut_after_each_batch(driver: Scenario, prompt: Pages) -> None:
    """Cut a prefetch of a long prompt after each answer of storage: at least half of the KV that was read is kept."""
    driver.check_every = 0
    driver.put_in_storage_alone(*(prompt[:end] for end in range(STATE_PAGES, len(prompt), STATE_PAGES)), prompt)
    batches, came = 0, 0
    while came < len(prompt):
        driver.reset()
        came, kv_read = require_kept_when_cut(driver, prompt, batches)
        assert came >= (kv_read - BATCH_PAGES) // 2, (
            f"FETCH-10: cut after {batches} batches, when {kv_read} pages of KV had come: expected at least half of "
            f"those past the first {BATCH_PAGES} to stay, got {came} pages"
        )
        batches += 1
        assert batches < MAX_BATCHES, f"FETCH-10: {MAX_BATCHES} batches were read: expected all pages, got {came}"


@clause("FETCH-10", "FETCH-6", needs=STEPPED_STORAGE, components=(MAMBA,), page_sizes=[16])
def test_a_prefetch_that_may_be_cut_reaches_the_only_state_of_a_long_prompt(driver: Scenario) -> None:
    with driver.long_prompt_variant(StopPolicy.BEST_EFFORT) as long:
        long.check_every = 0
        long.put_in_storage_alone(LONG)
        came = long.prefetch_pages(LONG)
        assert came == len(LONG), f"FETCH-10: the only state is after {len(LONG)} pages: expected all, got {came}"
        reads = [key for call in long.store().calls if call.verb == "get" for key in call.keys]
        assert len(reads) == len(set(reads)), f"FETCH-4: of {len(reads)} objects read some were read twice"


@clause("FETCH-11", "FETCH-10", needs=STEPPED_STORAGE, components=(MAMBA,), page_sizes=[16], write_policies=THROUGH)
def test_a_cut_prefetch_keeps_kv_of_the_host_whose_state_has_come(driver: Scenario) -> None:
    half, branch = LONG[:150], (*LONG[:150], 901)
    with driver.long_prompt_variant(StopPolicy.BEST_EFFORT) as long:
        long.check_every = 0
        long.put_in_storage_alone(*(LONG[:end] for end in range(STATE_PAGES, len(LONG), STATE_PAGES)), half, LONG)
        came, batches = 0, 0
        while came < len(LONG):
            long.reset()
            long.put_on_host(branch)
            receipt = long.lock_host(long.best_match(branch))
            long.evict_all_host(MAMBA)
            long.unlock_host(receipt)
            found = sum(long.tier_hits(half))
            assert found < len(half), (
                f"MATCH-1: the host has KV alone: expected fewer pages than {len(half)}, {found} are found"
            )
            came, _ = require_kept_when_cut(long, LONG, batches, on_host=len(half))
            batches += 1
            assert batches < MAX_BATCHES, f"FETCH-11: {MAX_BATCHES} batches were read: expected all pages, got {came}"


@clause("FETCH-11", "REQ-3", needs=BOTH_STEPPED, components=(MAMBA,), page_sizes=[16], write_policies=THROUGH)
def test_kv_that_comes_to_the_host_between_two_parts_keeps_its_place(driver: Scenario) -> None:
    part, shared = 128, 50
    changes = {"prefetch_threshold": part * driver.config.page_size}
    with driver.long_prompt_variant(StopPolicy.BEST_EFFORT, **changes) as long:
        long.check_every = 0
        long.put_in_storage_alone(LONG[:part], LONG[: 2 * part], LONG)
        ticket = long.begin_prefetch(LONG)
        long.step()
        long.complete_job(StorageKind.QUERY)
        # Without its state the first part ends in nothing, and another prompt backs up the first pages of it.
        long.store().corrupt([long.object_keys(Pool.MAMBA, LONG)[part - 1]])
        long.put_pages((*LONG[:shared], 901))
        long.step()
        for one in long.pending(TransferKind.BACKUP):
            long.complete(one.ticket)
        long.drain()
        came = long.prefetched_pages(ticket)
        assert came == len(LONG), f"FETCH-11: all but one state is in storage: expected {len(LONG)} pages, got {came}"
        # The bytes of every page on the host.
        long.check()


def require_kept_when_cut(driver: Scenario, prompt: Pages, batches: int, on_host: int = 0) -> tuple[int, int]:
    """Cut a prefetch after so many answers of storage: it keeps what can be used of what was read.

    `on_host`: of how many of the first pages the host has KV. Returns how many pages came, and how many pages of KV
    were read.
    """
    earlier = len(driver.store().calls)
    ticket = driver.begin_prefetch(prompt)
    for _ in range(batches):
        driver.step()
        for one in driver.pending(*StorageKind):
            driver.advance(one.ticket)
    were_read = {key for call in driver.store().calls[earlier:] if call.verb == "get" for key in call.keys}
    read = {pool: [key in were_read for key in driver.object_keys(pool, prompt)] for pool in driver.pools()}
    for pool, component in component_of(driver.config).items():
        if component == FULL and on_host:
            again = sum(read[pool][:on_host])
            assert not again, f"FETCH-11: of {on_host} pages of {pool} on the host {again} were read"
            read[pool][:on_host] = [True] * on_host
    expected, came = restorable_pages(read, driver.window_pages), driver.prefetched_pages(ticket)
    assert came == expected, (
        f"FETCH-10: cut after {batches} batches, of {expected} pages everything has come: got {came}"
    )
    found = driver.tier_hits(prompt)
    assert found == (0, came), f"FETCH-4: {came} pages came: expected {(0, came)} from a match, got {found}"
    driver.drain()
    held = driver.slots_held_by_prefetches()
    assert not held, f"FETCH-8: the prefetch was cut, and nothing is read: expected no slots to be held, got {held}"
    return came, sum(read[Pool.KV])


# FETCH-8: however and whenever a prefetch ends, it releases every slot, lock and token of the limit.


STEPPED_WITH_SIZES = [Capability.STEPPED_STORAGE, Capability.SIZES]

End = Callable[[Scenario, Handle], object]


def abort(driver: Scenario, ticket: Handle) -> None:
    """Abort the prefetch."""
    driver.abort_prefetch(ticket)


def lose(driver: Scenario, ticket: Handle) -> None:
    """End the prefetch with no readable object."""
    driver.store().corrupt(list(driver.store().objects))
    driver.drain()
    driver.check_prefetch(ticket)


def finish(driver: Scenario, ticket: Handle) -> None:
    """End the prefetch normally."""
    driver.drain()
    driver.check_prefetch(ticket)


def reset(driver: Scenario, _: Handle) -> None:
    """Reset the cache."""
    driver.reset()


def reset_unread(driver: Scenario, _: Handle) -> None:
    """End the prefetch normally, and reset the cache before it is checked."""
    driver.drain()
    driver.reset()


ENDS = pytest.mark.parametrize("end", [abort, lose, finish, reset, reset_unread], ids=lambda end: end.__name__)


@ENDS
@PREFETCH_PHASES
@clause("FETCH-8", "FLOW-7", "EVICT-9", "POOL-1", needs=STEPPED_WITH_SIZES, page_sizes=[16])
def test_a_prefetch_leaves_nothing_held_however_it_ends(driver: Scenario, phase: PrefetchPhase, end: End) -> None:
    driver.put_in_storage_alone(PAIR, PROMPT)
    driver.prefetch_pages(PAIR)
    ticket = driver.begin_prefetch(PROMPT)
    phase(driver)
    end(driver, ticket)
    driver.require_all_evictable(f"after a prefetch that was {phase.__name__}, {end.__name__}")
    assert not driver.slots_held_by_prefetches(), f"FETCH-8: held is {driver.slots_held_by_prefetches()}"
    if Capability.REFUSALS in driver.adapter.capabilities:
        with driver.refused("FLOW-4", "a check of a ticket that has ended"):
            driver.adapter.check_prefetch(ticket)
        with driver.refused("FLOW-4", "an abort of a ticket that has ended"):
            driver.adapter.abort_prefetch(ticket)


@PREFETCH_PHASES
@clause("FETCH-8", "FLOW-1", needs=STEPPED_WITH_SIZES, page_sizes=[16])
def test_late_writes_of_an_aborted_prefetch_overwrite_nothing(driver: Scenario, phase: PrefetchPhase) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    phase(driver)
    driver.abort_prefetch(ticket)
    driver.put_pages(OTHER)
    driver.step()
    driver.complete_all()
    driver.drain()
    assert driver.tier_hits(PROMPT) == (0, 0), f"FETCH-8: it was aborted, and a match gets {driver.tier_hits(PROMPT)}"
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    driver.load(driver.key(driver.prompt(OTHER)))


@clause("FETCH-8", "FLOW-1", needs=STEPPED_WITH_SIZES, page_sizes=[16])
def test_an_aborted_prefetch_keeps_its_pages_until_the_batch_has_ended(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    driver.complete_job(StorageKind.QUERY)
    held = driver.slots_held_by_prefetches()
    driver.abort_prefetch(ticket)
    assert driver.slots_held_by_prefetches() == held, (
        f"FLOW-1: a batch is being written to {held}, got {driver.slots_held_by_prefetches()}"
    )
    driver.advance(driver.pending_job(StorageKind.PREFETCH).ticket)
    driver.step()
    assert not driver.slots_held_by_prefetches(), (
        f"FETCH-8: nothing is written any more, held are {driver.slots_held_by_prefetches()}"
    )
    capacity = driver.host_config.capacity_tokens
    assert driver.free_host_slots() == capacity, (
        f"FETCH-8: of {capacity} on the host {driver.free_host_slots()} is free"
    )
    reads = sum(call.verb == "get" for call in driver.store().calls)
    assert reads == 1, f"FETCH-8: it was aborted in its first batch, and {reads} were read"


@clause("FETCH-8", "FLOW-1", needs=STEPPED_WITH_SIZES, components=(SWA,), page_sizes=[16])
def test_an_aborted_prefetch_keeps_the_window_until_it_is_written(driver: Scenario) -> None:
    require_kept_until_written(driver, SWA)


@clause("FETCH-8", "FLOW-1", needs=STEPPED_WITH_SIZES, components=(MAMBA,), page_sizes=[16])
def test_an_aborted_prefetch_keeps_the_state_until_it_is_written(driver: Scenario) -> None:
    require_kept_until_written(driver, MAMBA)


@PREFETCH_PHASES
@clause("FETCH-8", "EVICT-9", needs=STEPPED_WITH_SIZES, page_sizes=[16])
def test_closing_a_cache_during_a_prefetch_leaves_storage_unchanged(driver: Scenario, phase: PrefetchPhase) -> None:
    driver.put_in_storage_alone(PROMPT)
    driver.begin_prefetch(PROMPT)
    phase(driver)
    driver.restart()
    came = driver.prefetch_pages(PROMPT)
    assert came == len(PROMPT), (
        f"FETCH-8: expected another cache over the same storage to prefetch {len(PROMPT)} pages, got {came}"
    )


@PREFETCH_PHASES
@clause("EVICT-9", "FETCH-8", needs=STEPPED_WITH_SIZES, page_sizes=[16])
def test_after_a_reset_an_earlier_prefetch_has_no_effect(driver: Scenario, phase: PrefetchPhase) -> None:
    driver.put_in_storage_alone(PROMPT)
    driver.begin_prefetch(PROMPT)
    phase(driver)
    driver.reset()
    driver.step()
    driver.drain()
    assert driver.tier_hits(PROMPT) == (0, 0), (
        f"EVICT-9: the prefetch began before the reset: expected (0, 0), got {driver.tier_hits(PROMPT)}"
    )
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "EVICT-9: expected all pages from a prefetch after the reset"


@clause("FETCH-8", "FLOW-4", needs=STEPPED_WITH_SIZES, page_sizes=[16])
def test_many_failed_prefetches_leave_the_host_free(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    contents = dict(driver.store().objects)
    ends = (abort, lose, partial(reset))
    for number in range(12):
        ticket = driver.begin_prefetch(PROMPT)
        driver.step()
        ends[number % len(ends)](driver, ticket)
        driver.store().restore(contents)
    driver.drain()
    free, capacity = driver.free_host_slots(), driver.host_config.capacity_tokens
    assert free == capacity, f"FETCH-8: of {capacity} on the host {free} is free"
    assert not driver.pins(Tier.HOST), f"FETCH-8: pinned is {driver.pins(Tier.HOST)}"
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FETCH-8: expected all pages from another prefetch"


@clause("FLOW-4", "FETCH-8", needs=STEPPED_WITH_SIZES, page_sizes=[16])
def test_a_ticket_that_has_ended_is_refused(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    first, second = driver.begin_prefetch(PROMPT), driver.begin_prefetch(PAIR)
    driver.abort_prefetch(second)
    driver.drain()
    assert driver.prefetched_pages(first) == len(PROMPT), "FETCH-4: all of it is in storage"
    for ticket in (first, second):
        for verb in (driver.adapter.check_prefetch, driver.adapter.abort_prefetch):
            with driver.refused("FLOW-4", f"{verb.__name__} of a ticket that has ended"):
                verb(ticket)


def require_kept_until_written(driver: Scenario, component: str) -> None:
    """Abort a prefetch while storage writes the pages of a component, after KV: their slots stay held until then."""
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    driver.complete_job(StorageKind.QUERY)
    for _ in range(driver.pools().index(Pool(component))):
        driver.advance(driver.pending_job(StorageKind.PREFETCH).ticket)
    held = driver.slots_held_by_prefetches()[component]
    driver.abort_prefetch(ticket)
    driver.step()
    left = driver.slots_held_by_prefetches().get(component, 0)
    assert left == held, f"FLOW-1: storage writes to {held} slots of {component}, and {left} are kept for that"
    driver.drain()
    assert not driver.slots_held_by_prefetches(), (
        f"FETCH-8: nothing is written any more, held are {driver.slots_held_by_prefetches()}"
    )
