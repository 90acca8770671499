"""FETCH-2: the anchor of a prefetch is pinned until the prefetch has ended."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle, StopPolicy, StorageKind, Tier, TransferKind

from .scenario import FULL, evict_all, evict_host, put, tier_hits
from .storage_scenes import (
    PAIR,
    PREFETCH_STAGES,
    PROMPT,
    PrefetchStage,
    begin_prefetch,
    complete_job,
    prefetch,
    prefetched_pages,
    put_in_storage_alone,
    slots_held_by_prefetches,
)
from .transfers import pending_transfer
from .tree_view import host_slots, nodes, pins, prefixes

STEPPED = [Capability.STEPPED]
STEPPED_STORAGE = [Capability.STEPPED_STORAGE]


@PREFETCH_STAGES
@clause("FETCH-2", "LOCK-7", needs=STEPPED_STORAGE)
def test_the_anchor_stays_until_the_prefetch_has_ended(driver: Driver, stage: PrefetchStage) -> None:
    ticket = begun_past_an_anchor(driver)
    stage(driver)
    evict_all(driver)
    evict_host(driver)
    assert PAIR in nodes(driver), (
        f"FETCH-2: {PAIR} is the anchor of a prefetch: expected it to stay, but it was evicted"
    )
    assert pins(driver, Tier.HOST)[FULL, PAIR] > 0, f"FETCH-2: {PAIR} is host-locked, got {pins(driver, Tier.HOST)}"
    driver.drain()
    assert prefetched_pages(driver, ticket) == len(PROMPT) - len(PAIR), "FETCH-4: the rest of the prompt is in storage"
    assert not pins(driver, Tier.HOST), (
        f"FETCH-2: the prefetch has ended: expected no pins, got {pins(driver, Tier.HOST)}"
    )
    evict_host(driver)
    assert not nodes(driver), (
        f"FETCH-2: the prefetch has ended: expected an empty tree after eviction, got {nodes(driver).keys()}"
    )


@PREFETCH_STAGES
@clause("FETCH-2", "FETCH-8", needs=STEPPED_STORAGE)
def test_an_abort_unpins_the_anchor_at_once(driver: Driver, stage: PrefetchStage) -> None:
    ticket = begun_past_an_anchor(driver)
    stage(driver)
    driver.abort_prefetch(ticket)
    assert not pins(driver, Tier.HOST), (
        f"FETCH-8: the prefetch was aborted: expected no pins, got {pins(driver, Tier.HOST)}"
    )
    evict_host(driver)
    assert not nodes(driver), (
        f"FETCH-8: the prefetch was aborted: expected an empty tree after eviction, got {nodes(driver).keys()}"
    )


@clause("FETCH-2", needs=STEPPED_STORAGE, write_policies=[WritePolicy.WRITE_BACK])
def test_an_anchor_that_is_on_the_device_alone_is_not_removed(driver: Driver) -> None:
    put_in_storage_alone(driver, PAIR, PROMPT)
    put(driver, PAIR)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    evict_all(driver)
    evict_host(driver)
    assert PAIR in nodes(driver), (
        f"FETCH-2: {PAIR} is the anchor of a prefetch: expected it to stay, but it was evicted"
    )
    driver.drain()
    assert prefetched_pages(driver, ticket) == len(PROMPT) - len(PAIR), "FETCH-4: the rest of the prompt is in storage"


@clause("FETCH-2", "FETCH-9", needs=STEPPED, write_policies=[WritePolicy.WRITE_THROUGH])
def test_prefetched_pages_are_inserted_after_the_backup_of_their_anchor(driver: Driver) -> None:
    put_in_storage_alone(driver, PAIR, PROMPT)
    put(driver, PAIR)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    complete_job(driver, StorageKind.PREFETCH)
    driver.step()
    assert tier_hits(driver, PROMPT) == (len(PAIR), 0), (
        "HOST-2: the anchor is not on the host, and nothing below may be"
    )
    driver.complete(pending_transfer(driver, TransferKind.BACKUP).ticket)
    driver.step()
    driver.step()
    rest = len(PROMPT) - len(PAIR)
    assert tier_hits(driver, PROMPT) == (len(PAIR), rest), (
        f"FETCH-4: the anchor is there: expected {(len(PAIR), rest)}, got {tier_hits(driver, PROMPT)}"
    )
    assert prefetched_pages(driver, ticket) == rest, "FETCH-4: all of the prompt came"


@clause("FETCH-2", "LOCK-7", needs=STEPPED, write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_an_anchor_is_host_locked_from_the_end_of_its_backup(driver: Driver) -> None:
    put_in_storage_alone(driver, PAIR, PROMPT)
    put(driver, PAIR)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    driver.complete(pending_transfer(driver, TransferKind.BACKUP).ticket)
    driver.step()
    complete_job(driver, StorageKind.STORE)
    evict_all(driver)
    evict_host(driver)
    there = host_slots(driver, FULL).keys()
    assert there == prefixes(*PAIR), f"FETCH-2: {PAIR} is an anchor: expected it to stay on the host, got {there}"
    driver.drain()
    came, rest = prefetched_pages(driver, ticket), len(PROMPT) - len(PAIR)
    assert came == rest, f"FETCH-4: the rest of the prompt is in storage: expected {rest} pages, got {came}"
    evict_all(driver)
    evict_host(driver)
    assert not nodes(driver), (
        f"FETCH-2: the prefetch has ended: expected an empty tree after eviction, got {nodes(driver).keys()}"
    )


@clause("FETCH-2", "FLOW-3", needs=STEPPED, write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_prefetch_brings_nothing_if_the_backup_of_its_anchor_fails(driver: Driver) -> None:
    put_in_storage_alone(driver, PAIR, PROMPT)
    put(driver, PAIR)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    complete_job(driver, StorageKind.PREFETCH)
    driver.fail(pending_transfer(driver, TransferKind.BACKUP).ticket, parts_done=0)
    driver.drain()
    assert prefetched_pages(driver, ticket) == 0, (
        "FLOW-3: the pages would be below a node that is not on the host: expected 0"
    )
    assert tier_hits(driver, PROMPT) == (len(PAIR), 0), f"FLOW-3: got {tier_hits(driver, PROMPT)}"


@clause(
    *("FETCH-3", "HOST-2"),
    needs=STEPPED,
    write_policies=[WritePolicy.WRITE_THROUGH],
    stop_policies=[StopPolicy.BEST_EFFORT],
)
def test_a_prefetch_that_is_cut_during_the_backup_of_its_anchor_brings_nothing(driver: Driver) -> None:
    put_in_storage_alone(driver, PAIR, PROMPT)
    put(driver, PAIR)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    complete_job(driver, StorageKind.PREFETCH)
    came = prefetched_pages(driver, ticket)
    assert came == 0, f"HOST-2: all pages have come, and the anchor is not on the host: expected 0 pages, got {came}"
    held = slots_held_by_prefetches(driver)
    assert not held, f"FETCH-8: the prefetch was cut and nothing is read: expected no slots to be held, got {held}"
    driver.drain()
    found = tier_hits(driver, PROMPT)
    assert found == (len(PAIR), 0), f"HOST-2: expected a hit of {(len(PAIR), 0)}, got {found}"


def begun_past_an_anchor(driver: Driver) -> Handle:
    """Start a prefetch of a prompt whose first pages are on the host."""
    put_in_storage_alone(driver, PAIR, PROMPT)
    assert prefetch(driver, PAIR) == len(PAIR), "FETCH-4: the beginning is in storage"
    return begin_prefetch(driver, PROMPT)
