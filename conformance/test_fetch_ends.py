"""FETCH-8: however and whenever a prefetch ends, it releases every slot, lock and token of the limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle, Pool, StorageKind, Tier

from .checks import refused, require_all_evictable
from .scenario import MAMBA, SWA, host_config, put, tier_hits
from .storage_scenes import (
    OTHER,
    PAIR,
    PREFETCH_STAGES,
    PROMPT,
    PrefetchStage,
    begin_prefetch,
    complete_job,
    pending_job,
    pools,
    prefetch,
    prefetched_pages,
    put_in_storage_alone,
    slots_held_by_prefetches,
    store,
)
from .tree_view import free_host_slots, pins

STEPPED = [Capability.STEPPED_STORAGE, Capability.SIZES]

End = Callable[[Driver, Handle], object]


def abort(driver: Driver, ticket: Handle) -> None:
    """Abort the prefetch."""
    driver.abort_prefetch(ticket)


def lose(driver: Driver, ticket: Handle) -> None:
    """End the prefetch with no readable object."""
    store(driver).corrupt(list(store(driver).objects))
    driver.drain()
    driver.check_prefetch(ticket)


def finish(driver: Driver, ticket: Handle) -> None:
    """End the prefetch normally."""
    driver.drain()
    driver.check_prefetch(ticket)


def reset(driver: Driver, _: Handle) -> None:
    """Reset the cache."""
    driver.reset()


def reset_unread(driver: Driver, _: Handle) -> None:
    """End the prefetch normally, and reset the cache before it is checked."""
    driver.drain()
    driver.reset()


ENDS = pytest.mark.parametrize("end", [abort, lose, finish, reset, reset_unread], ids=lambda end: end.__name__)


@ENDS
@PREFETCH_STAGES
@clause("FETCH-8", "FLOW-7", "EVICT-9", "POOL-1", needs=STEPPED, page_sizes=[16])
def test_a_prefetch_leaves_nothing_held_however_it_ends(driver: Driver, stage: PrefetchStage, end: End) -> None:
    put_in_storage_alone(driver, PAIR, PROMPT)
    prefetch(driver, PAIR)
    ticket = begin_prefetch(driver, PROMPT)
    stage(driver)
    end(driver, ticket)
    require_all_evictable(driver, f"after a prefetch that was {stage.__name__}, {end.__name__}")
    assert not slots_held_by_prefetches(driver), f"FETCH-8: held is {slots_held_by_prefetches(driver)}"
    with refused(driver, "FLOW-4", "a check of a ticket that has ended"):
        driver.adapter.check_prefetch(ticket)
    with refused(driver, "FLOW-4", "an abort of a ticket that has ended"):
        driver.adapter.abort_prefetch(ticket)


@PREFETCH_STAGES
@clause("FETCH-8", "FLOW-1", needs=STEPPED, page_sizes=[16])
def test_late_writes_of_an_aborted_prefetch_overwrite_nothing(driver: Driver, stage: PrefetchStage) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    stage(driver)
    driver.abort_prefetch(ticket)
    put(driver, OTHER)
    driver.step()
    driver.complete_all()
    driver.drain()
    assert tier_hits(driver, PROMPT) == (0, 0), f"FETCH-8: it was aborted, and a match gets {tier_hits(driver, PROMPT)}"
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    driver.load(driver.key(driver.prompt(OTHER)))


@clause("FETCH-8", "FLOW-1", needs=STEPPED, page_sizes=[16])
def test_an_aborted_prefetch_keeps_its_pages_until_the_batch_has_ended(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    held = slots_held_by_prefetches(driver)
    driver.abort_prefetch(ticket)
    assert slots_held_by_prefetches(driver) == held, (
        f"FLOW-1: a batch is being written to {held}, got {slots_held_by_prefetches(driver)}"
    )
    driver.advance_storage(pending_job(driver, StorageKind.PREFETCH).ticket)
    driver.step()
    assert not slots_held_by_prefetches(driver), (
        f"FETCH-8: nothing is written any more, held are {slots_held_by_prefetches(driver)}"
    )
    capacity = host_config(driver.config).capacity_tokens
    assert free_host_slots(driver) == capacity, f"FETCH-8: of {capacity} on the host {free_host_slots(driver)} is free"
    reads = sum(call.verb == "get" for call in store(driver).calls)
    assert reads == 1, f"FETCH-8: it was aborted in its first batch, and {reads} were read"


@clause("FETCH-8", "FLOW-1", needs=STEPPED, components=(SWA,), page_sizes=[16])
def test_an_aborted_prefetch_keeps_the_window_until_it_is_written(driver: Driver) -> None:
    require_kept_until_written(driver, SWA)


@clause("FETCH-8", "FLOW-1", needs=STEPPED, components=(MAMBA,), page_sizes=[16])
def test_an_aborted_prefetch_keeps_the_state_until_it_is_written(driver: Driver) -> None:
    require_kept_until_written(driver, MAMBA)


@PREFETCH_STAGES
@clause("FETCH-8", "EVICT-9", needs=STEPPED, page_sizes=[16])
def test_closing_a_cache_during_a_prefetch_leaves_storage_unchanged(driver: Driver, stage: PrefetchStage) -> None:
    put_in_storage_alone(driver, PROMPT)
    begin_prefetch(driver, PROMPT)
    stage(driver)
    driver.restart()
    came = prefetch(driver, PROMPT)
    assert came == len(PROMPT), (
        f"FETCH-8: expected another cache over the same storage to prefetch {len(PROMPT)} pages, got {came}"
    )


@PREFETCH_STAGES
@clause("EVICT-9", "FETCH-8", needs=STEPPED, page_sizes=[16])
def test_after_a_reset_an_earlier_prefetch_has_no_effect(driver: Driver, stage: PrefetchStage) -> None:
    put_in_storage_alone(driver, PROMPT)
    begin_prefetch(driver, PROMPT)
    stage(driver)
    driver.reset()
    driver.step()
    driver.drain()
    assert tier_hits(driver, PROMPT) == (0, 0), (
        f"EVICT-9: the prefetch began before the reset: expected (0, 0), got {tier_hits(driver, PROMPT)}"
    )
    assert prefetch(driver, PROMPT) == len(PROMPT), "EVICT-9: expected all pages from a prefetch after the reset"


@clause("FETCH-8", "FLOW-4", needs=STEPPED, page_sizes=[16])
def test_many_failed_prefetches_leave_the_host_free(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    contents = dict(store(driver).objects)
    ends = (abort, lose, partial(reset))
    for number in range(12):
        ticket = begin_prefetch(driver, PROMPT)
        driver.step()
        ends[number % len(ends)](driver, ticket)
        store(driver).restore(contents)
    driver.drain()
    free, capacity = free_host_slots(driver), host_config(driver.config).capacity_tokens
    assert free == capacity, f"FETCH-8: of {capacity} on the host {free} is free"
    assert not pins(driver, Tier.HOST), f"FETCH-8: pinned is {pins(driver, Tier.HOST)}"
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-8: expected all pages from another prefetch"


@clause("FLOW-4", "FETCH-8", needs=STEPPED, page_sizes=[16])
def test_a_ticket_that_has_ended_is_refused(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    first, second = begin_prefetch(driver, PROMPT), begin_prefetch(driver, PAIR)
    driver.abort_prefetch(second)
    driver.drain()
    assert prefetched_pages(driver, first) == len(PROMPT), "FETCH-4: all of it is in storage"
    for ticket in (first, second):
        for verb in (driver.adapter.check_prefetch, driver.adapter.abort_prefetch):
            with refused(driver, "FLOW-4", f"{verb.__name__} of a ticket that has ended"):
                verb(ticket)


def require_kept_until_written(driver: Driver, component: str) -> None:
    """Abort a prefetch while storage writes the pages of a component, after KV: their slots stay held until then."""
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    for _ in range(pools(driver).index(Pool(component))):
        driver.advance_storage(pending_job(driver, StorageKind.PREFETCH).ticket)
    held = slots_held_by_prefetches(driver)[component]
    driver.abort_prefetch(ticket)
    driver.step()
    left = slots_held_by_prefetches(driver).get(component, 0)
    assert left == held, f"FLOW-1: storage writes to {held} slots of {component}, and {left} are kept for that"
    driver.drain()
    assert not slots_held_by_prefetches(driver), (
        f"FETCH-8: nothing is written any more, held are {slots_held_by_prefetches(driver)}"
    )
