"""FETCH-8: whatever ends a fetch, and whenever, gives back every slot, lock and token of the limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle, Pool, StorageKind, Tier

from .fetch_stages import STAGES, Stage
from .host_trees import free_below, pins
from .hosts import host_of
from .reach import reach
from .refusals import refused
from .rest import require_rest
from .storages import OTHER, PAIR, PROMPT
from .stored import (
    answer,
    asked,
    begin,
    check,
    fetch,
    held_by_fetches,
    pools,
    put_in_storage_alone,
    store,
)
from .verbs import MAMBA, SWA, put

STEPPED = [Capability.STEPPED_STORAGE, Capability.SIZES]

End = Callable[[Driver, Handle], object]


def abort(driver: Driver, ticket: Handle) -> None:
    """Nobody waits any more."""
    driver.abort_prefetch(ticket)


def lose(driver: Driver, ticket: Handle) -> None:
    """Nothing of it can be read."""
    store(driver).corrupt(list(store(driver).objects))
    driver.drain()
    driver.check_prefetch(ticket)


def finish(driver: Driver, ticket: Handle) -> None:
    """It ends as it should."""
    driver.drain()
    driver.check_prefetch(ticket)


def reset(driver: Driver, _: Handle) -> None:
    """Everything is dropped."""
    driver.reset()


def reset_unread(driver: Driver, _: Handle) -> None:
    """It ends as it should, and everything is dropped before anybody has asked."""
    driver.drain()
    driver.reset()


ENDS = pytest.mark.parametrize("end", [abort, lose, finish, reset, reset_unread], ids=lambda end: end.__name__)


@ENDS
@STAGES
@clause("FETCH-8", "FLOW-7", "EVICT-9", "POOL-1", needs=STEPPED, page_sizes=[16])
def test_nothing_is_left_of_a_fetch(driver: Driver, stage: Stage, end: End) -> None:
    put_in_storage_alone(driver, PAIR, PROMPT)
    fetch(driver, PAIR)
    ticket = begin(driver, PROMPT)
    stage(driver)
    end(driver, ticket)
    require_rest(driver, f"after a fetch that was {stage.__name__}, {end.__name__}")
    assert not held_by_fetches(driver), f"FETCH-8: held is {held_by_fetches(driver)}"
    with refused(driver, "FLOW-4", "a check of a ticket that has ended"):
        driver.adapter.check_prefetch(ticket)
    with refused(driver, "FLOW-4", "an abort of a ticket that has ended"):
        driver.adapter.abort_prefetch(ticket)


@STAGES
@clause("FETCH-8", "FLOW-1", needs=STEPPED, page_sizes=[16])
def test_what_is_written_late_harms_nobody(driver: Driver, stage: Stage) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin(driver, PROMPT)
    stage(driver)
    driver.abort_prefetch(ticket)
    put(driver, OTHER)
    driver.step()
    driver.complete_all()
    driver.drain()
    assert reach(driver, PROMPT) == (0, 0), f"FETCH-8: it was aborted, and a match gets {reach(driver, PROMPT)}"
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    driver.load(driver.key(driver.prompt(OTHER)))


@clause("FETCH-8", "FLOW-1", needs=STEPPED, page_sizes=[16])
def test_an_aborted_fetch_keeps_its_pages_until_the_batch_has_ended(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin(driver, PROMPT)
    driver.step()
    answer(driver, StorageKind.QUERY)
    held = held_by_fetches(driver)
    driver.abort_prefetch(ticket)
    assert held_by_fetches(driver) == held, f"FLOW-1: a batch is being written to {held}, got {held_by_fetches(driver)}"
    driver.advance_storage(asked(driver, StorageKind.PREFETCH).ticket)
    driver.step()
    assert not held_by_fetches(driver), f"FETCH-8: nothing is written any more, held are {held_by_fetches(driver)}"
    capacity = host_of(driver.config).capacity_tokens
    assert free_below(driver) == capacity, f"FETCH-8: of {capacity} on the host {free_below(driver)} is free"
    reads = sum(call.verb == "get" for call in store(driver).calls)
    assert reads == 1, f"FETCH-8: it was aborted in its first batch, and {reads} were read"


@clause("FETCH-8", "FLOW-1", needs=STEPPED, components=(SWA,), page_sizes=[16])
def test_an_aborted_fetch_keeps_the_window_until_it_is_written(driver: Driver) -> None:
    require_kept_until_written(driver, SWA)


@clause("FETCH-8", "FLOW-1", needs=STEPPED, components=(MAMBA,), page_sizes=[16])
def test_an_aborted_fetch_keeps_the_state_until_it_is_written(driver: Driver) -> None:
    require_kept_until_written(driver, MAMBA)


@STAGES
@clause("FETCH-8", "EVICT-9", needs=STEPPED, page_sizes=[16])
def test_a_cache_that_is_closed_in_the_middle_leaves_storage_as_it_is(driver: Driver, stage: Stage) -> None:
    put_in_storage_alone(driver, PROMPT)
    begin(driver, PROMPT)
    stage(driver)
    driver.restart()
    came = fetch(driver, PROMPT)
    assert came == len(PROMPT), f"FETCH-8: another cache over the same storage fetches all of it, {came} came"


@STAGES
@clause("EVICT-9", "FETCH-8", needs=STEPPED, page_sizes=[16])
def test_after_a_reset_the_old_fetch_does_nothing(driver: Driver, stage: Stage) -> None:
    put_in_storage_alone(driver, PROMPT)
    begin(driver, PROMPT)
    stage(driver)
    driver.reset()
    driver.step()
    driver.drain()
    assert reach(driver, PROMPT) == (0, 0), f"EVICT-9: it is of the old life, a match gets {reach(driver, PROMPT)}"
    assert fetch(driver, PROMPT) == len(PROMPT), "EVICT-9: in the new life it can be fetched again"


@clause("FETCH-8", "FLOW-4", needs=STEPPED, page_sizes=[16])
def test_many_fetches_that_end_badly_leave_all_of_the_host(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    contents = dict(store(driver).objects)
    ends = (abort, lose, partial(reset))
    for number in range(12):
        ticket = begin(driver, PROMPT)
        driver.step()
        ends[number % len(ends)](driver, ticket)
        store(driver).restore(contents)
    driver.drain()
    free, capacity = free_below(driver), host_of(driver.config).capacity_tokens
    assert free == capacity, f"FETCH-8: of {capacity} on the host {free} is free"
    assert not pins(driver, Tier.HOST), f"FETCH-8: pinned is {pins(driver, Tier.HOST)}"
    assert fetch(driver, PROMPT) == len(PROMPT), "FETCH-8: it can still be fetched"


@clause("FLOW-4", "FETCH-8", needs=STEPPED, page_sizes=[16])
def test_a_ticket_ends_once(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    first, second = begin(driver, PROMPT), begin(driver, PAIR)
    driver.abort_prefetch(second)
    driver.drain()
    assert check(driver, first) == len(PROMPT), "FETCH-4: all of it is in storage"
    for ticket in (first, second):
        for verb in (driver.adapter.check_prefetch, driver.adapter.abort_prefetch):
            with refused(driver, "FLOW-4", f"{verb.__name__} of a ticket that has ended"):
                verb(ticket)


def require_kept_until_written(driver: Driver, component: str) -> None:
    """Abort a fetch while storage writes the pages of a component, which come after KV: nobody else gets them."""
    put_in_storage_alone(driver, PROMPT)
    ticket = begin(driver, PROMPT)
    driver.step()
    answer(driver, StorageKind.QUERY)
    for _ in range(pools(driver).index(Pool(component))):
        driver.advance_storage(asked(driver, StorageKind.PREFETCH).ticket)
    held = held_by_fetches(driver)[component]
    driver.abort_prefetch(ticket)
    driver.step()
    left = held_by_fetches(driver).get(component, 0)
    assert left == held, f"FLOW-1: storage writes to {held} slots of {component}, and {left} are kept for that"
    driver.drain()
    assert not held_by_fetches(driver), f"FETCH-8: nothing is written any more, held are {held_by_fetches(driver)}"
