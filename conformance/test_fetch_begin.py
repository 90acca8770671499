"""FETCH-1: prefetches below the threshold or above the limit are refused, and take nothing."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle, Tier

from .scenario import key_of
from .storage_scenes import (
    OTHER,
    PREFIXES,
    PROMPT,
    begin_prefetch,
    prefetch,
    prefetched_pages,
    put_in_storage,
    put_in_storage_alone,
    slots_held_by_prefetches,
    storage_config,
    storage_variant,
)
from .tree_view import pins

LIMITED = "prefetches_limited"


@clause("FETCH-1", page_sizes=[3], prefetch_threshold=True)
def test_a_prefetch_below_the_threshold_is_refused(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    threshold = storage_config(driver).extra.prefetch_threshold // driver.config.page_size
    for count in range(len(PROMPT)):
        ticket = driver.prefetch(key_of(driver, PROMPT[:count]))
        is_enough = count >= threshold
        assert (ticket is not None) == is_enough, (
            f"FETCH-1: {count} pages of at least {threshold}: expected {is_enough}, got {ticket}"
        )
        if ticket is not None:
            driver.abort_prefetch(ticket)
        driver.drain()


@clause("FETCH-1", page_sizes=[3], prefetch_threshold=True)
def test_the_threshold_counts_the_pages_that_the_tree_lacks(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    assert prefetch(driver, PROMPT[:3]) == 3, "FETCH-4: three pages are in storage"
    ticket = driver.prefetch(key_of(driver, PROMPT))
    assert ticket is None, "FETCH-1: one page is lacking, which is below the threshold of two"


@clause("FETCH-1", page_sizes=[3], prefetch_threshold=True)
def test_a_prefetch_brings_nothing_if_storage_has_less_than_the_threshold(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT[:1])
    came = prefetch(driver, PROMPT)
    assert came == 0, f"FETCH-1: four pages are wanted, storage has one, which is below the threshold; {came} came"


@clause("FETCH-1")
def test_a_prefetch_of_a_cached_prompt_is_refused(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
    for pages in (PROMPT, (), PROMPT[:0]):
        ticket = driver.prefetch(key_of(driver, pages))
        assert ticket is None, f"FETCH-1: nothing is lacking of {pages}, and a prefetch began"
    short = driver.key(driver.prompt(PROMPT)[: driver.config.page_size - 1])
    assert driver.prefetch(short) is None, "KEY-1: less than a page is nothing"


@clause("FETCH-1", needs=[Capability.COUNTERS])
def test_at_the_limit_a_prefetch_is_refused_until_another_has_ended(driver: Driver) -> None:
    tickets = at_the_limit(driver)
    for _ in range(3):
        assert driver.prefetch(key_of(driver, (99,))) is None, "FETCH-1: the limit is reached"
    counted = driver.adapter.counters()[LIMITED]
    assert counted == 3, f"FETCH-1: three prefetches were over the limit, counted are {counted}"
    driver.abort_prefetch(tickets.pop())
    ticket = driver.prefetch(key_of(driver, (99,)))
    assert ticket is not None, "FETCH-8: one was aborted, so that another fits"
    driver.drain()
    for one in [ticket, *tickets]:
        driver.check_prefetch(one)
    for ticket in at_the_limit(driver, first=50):
        driver.abort_prefetch(ticket)
    driver.drain()


@clause("FETCH-1", "EVICT-9")
def test_a_reset_frees_the_limit(driver: Driver) -> None:
    at_the_limit(driver)
    driver.reset()
    for ticket in at_the_limit(driver):
        driver.abort_prefetch(ticket)
    driver.drain()


@clause("FETCH-1")
def test_prefetches_that_ended_do_not_count(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    tickets = at_the_limit(driver)
    driver.drain()
    again = at_the_limit(driver, first=50)
    driver.drain()
    for ticket in [*tickets, *again]:
        assert prefetched_pages(driver, ticket) == 0, "FETCH-4: nothing of these prompts is in storage"


@clause("FETCH-1", page_sizes=[16])
def test_a_prefetch_larger_than_the_limit_is_refused(driver: Driver) -> None:
    page = driver.config.page_size
    with storage_variant(driver, storage={"limit_tokens": 3 * page}) as narrow:
        put_in_storage_alone(narrow, PROMPT)
        assert narrow.prefetch(key_of(narrow, PROMPT)) is None, "FETCH-1: four pages are wanted, three allowed"
        assert prefetch(narrow, PROMPT[:3]) in (0, 3), "FETCH-1: three pages are allowed"


@clause("FETCH-1")
def test_a_prefetch_that_was_refused_holds_nothing(driver: Driver) -> None:
    put_in_storage(driver, PROMPT[:1])
    tickets = at_the_limit(driver)
    held = slots_held_by_prefetches(driver), pins(driver, Tier.HOST), pins(driver, Tier.DEVICE)
    assert driver.prefetch(key_of(driver, PROMPT)) is None, "FETCH-1: the limit is reached"
    now = slots_held_by_prefetches(driver), pins(driver, Tier.HOST), pins(driver, Tier.DEVICE)
    assert now == held, f"FETCH-1: slots and pins {held} before it was refused, {now} after"
    for ticket in tickets:
        driver.abort_prefetch(ticket)
    driver.drain()


@clause("FETCH-1", "FETCH-4")
def test_a_prefetch_of_a_prompt_that_storage_lacks_brings_nothing(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    assert prefetch(driver, OTHER) == 0, "FETCH-4: nothing of this prompt is in storage"
    assert not slots_held_by_prefetches(driver), f"FETCH-8: nothing came, held are {slots_held_by_prefetches(driver)}"


def at_the_limit(driver: Driver, first: int = 20) -> list[Handle]:
    """Start as many prefetches of two pages as the limit allows."""
    count = storage_config(driver).limit_tokens // driver.config.page_size // 2
    return [begin_prefetch(driver, (first + 2 * place, first + 2 * place + 1)) for place in range(count)]
