"""FETCH-1, FETCH-4 to FETCH-6, FETCH-11: which prefetches begin, which pages they read, and what enters the tree."""

from __future__ import annotations

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.pools import component_of
from hicache.types import Handle, Key, Pool, StorageKind, Tier

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .snapshot_values import Pages, prefixes
from .stored_prompts import OTHER, PAIR, PREFETCH_PHASES, PREFIXES, PROMPT, PrefetchPhase, fetching

STEPPED = [Capability.STEPPED_STORAGE]
THROUGH = [WritePolicy.WRITE_THROUGH]

LONG_TIME_S = 1e9


def prefetch_without(driver: Scenario, prompt: Pages, pool: str, page: int) -> tuple[int, int]:
    """Prefetch a prompt into an empty cache, while the object of one page becomes unreadable.

    Returns the pages that came, and the pages that can be used without that object. Afterwards the store is repaired.
    """
    driver.reset()
    kept = dict(driver.store().objects)
    ticket = driver.begin_prefetch(prompt)
    driver.store().corrupt([driver.object_keys(pool, prompt)[page]])
    expected = driver.expected_pages(prompt)
    driver.drain()
    came = driver.prefetched_pages(ticket)
    driver.store().restore(kept)
    return came, expected


# FETCH-1: prefetches below the threshold or above the limit are refused, and take nothing.


LIMITED = "prefetches_limited"


@clause("FETCH-1", page_sizes=[3], prefetch_threshold=True)
def test_a_prefetch_below_the_threshold_is_refused(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    threshold = driver.storage_config().extra.prefetch_threshold // driver.config.page_size
    for count in range(len(PROMPT)):
        ticket = driver.prefetch(driver.key_of(PROMPT[:count]))
        is_enough = count >= threshold
        assert (ticket is not None) == is_enough, (
            f"FETCH-1: {count} pages of at least {threshold}: expected {is_enough}, got {ticket}"
        )
        if ticket is not None:
            driver.abort_prefetch(ticket)
        driver.drain()


@clause("FETCH-1", page_sizes=[3], prefetch_threshold=True)
def test_the_threshold_counts_the_pages_that_the_tree_lacks(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    assert driver.prefetch_pages(PROMPT[:3]) == 3, "FETCH-4: three pages are in storage"
    ticket = driver.prefetch(driver.key_of(PROMPT))
    assert ticket is None, "FETCH-1: one page is lacking, which is below the threshold of two"


@clause("FETCH-1", page_sizes=[3], prefetch_threshold=True)
def test_a_prefetch_brings_nothing_if_storage_has_less_than_the_threshold(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT[:1])
    came = driver.prefetch_pages(PROMPT)
    assert came == 0, f"FETCH-1: four pages are wanted, storage has one, which is below the threshold; {came} came"


@clause("FETCH-1")
def test_a_prefetch_of_a_cached_prompt_is_refused(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    for pages in (PROMPT, (), PROMPT[:0]):
        ticket = driver.prefetch(driver.key_of(pages))
        assert ticket is None, f"FETCH-1: nothing is lacking of {pages}, and a prefetch began"
    short = driver.key(driver.prompt(PROMPT)[: driver.config.page_size - 1])
    assert driver.prefetch(short) is None, "KEY-1: less than a page is nothing"


@clause("FETCH-1", needs=[Capability.COUNTERS])
def test_at_the_limit_a_prefetch_is_refused_until_another_has_ended(driver: Scenario) -> None:
    tickets = at_the_limit(driver)
    for _ in range(3):
        assert driver.prefetch(driver.key_of((99,))) is None, "FETCH-1: the limit is reached"
    counted = driver.adapter.counters()[LIMITED]
    assert counted == 3, f"FETCH-1: three prefetches were over the limit, counted are {counted}"
    driver.abort_prefetch(tickets.pop())
    ticket = driver.prefetch(driver.key_of((99,)))
    assert ticket is not None, "FETCH-8: one was aborted, so that another fits"
    driver.drain()
    for one in [ticket, *tickets]:
        driver.check_prefetch(one)
    for ticket in at_the_limit(driver, first=50):
        driver.abort_prefetch(ticket)
    driver.drain()


@clause("FETCH-1", "EVICT-9")
def test_a_reset_frees_the_limit(driver: Scenario) -> None:
    at_the_limit(driver)
    driver.reset()
    for ticket in at_the_limit(driver):
        driver.abort_prefetch(ticket)
    driver.drain()


@clause("FETCH-1")
def test_prefetches_that_ended_do_not_count(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    tickets = at_the_limit(driver)
    driver.drain()
    again = at_the_limit(driver, first=50)
    driver.drain()
    for ticket in [*tickets, *again]:
        assert driver.prefetched_pages(ticket) == 0, "FETCH-4: nothing of these prompts is in storage"


@clause("FETCH-1", page_sizes=[16])
def test_a_prefetch_larger_than_the_limit_is_refused(driver: Scenario) -> None:
    page = driver.config.page_size
    with driver.storage_variant(storage={"limit_tokens": 3 * page}) as narrow:
        narrow.put_in_storage_alone(PROMPT)
        assert narrow.prefetch(narrow.key_of(PROMPT)) is None, "FETCH-1: four pages are wanted, three allowed"
        assert narrow.prefetch_pages(PROMPT[:3]) in (0, 3), "FETCH-1: three pages are allowed"


@clause("FETCH-1")
def test_a_prefetch_that_was_refused_holds_nothing(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT[:1])
    tickets = at_the_limit(driver)
    held = driver.slots_held_by_prefetches(), driver.pins(Tier.HOST), driver.pins(Tier.DEVICE)
    assert driver.prefetch(driver.key_of(PROMPT)) is None, "FETCH-1: the limit is reached"
    now = driver.slots_held_by_prefetches(), driver.pins(Tier.HOST), driver.pins(Tier.DEVICE)
    assert now == held, f"FETCH-1: slots and pins {held} before it was refused, {now} after"
    for ticket in tickets:
        driver.abort_prefetch(ticket)
    driver.drain()


@clause("FETCH-1", "FETCH-4")
def test_a_prefetch_of_a_prompt_that_storage_lacks_brings_nothing(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    assert driver.prefetch_pages(OTHER) == 0, "FETCH-4: nothing of this prompt is in storage"
    assert not driver.slots_held_by_prefetches(), f"FETCH-8: nothing came, held are {driver.slots_held_by_prefetches()}"


def at_the_limit(driver: Scenario, first: int = 20) -> list[Handle]:
    """Start as many prefetches of two pages as the limit allows."""
    count = driver.storage_config().limit_tokens // driver.config.page_size // 2
    return [driver.begin_prefetch((first + 2 * place, first + 2 * place + 1)) for place in range(count)]


# FETCH-4: prefetched pages are inserted into the tree as it is then; duplicates and unneeded pages are freed.


@clause("FETCH-4", "HOST-7", "FLOW-10")
def test_prefetched_pages_can_be_loaded_and_read(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    came = driver.prefetch_pages(PROMPT)
    assert came == len(PROMPT), f"FETCH-4: all of the prompt is in storage, {came} pages came"
    assert driver.tier_hits(PROMPT) == (0, len(PROMPT)), (
        f"FETCH-4: it is on the host: expected {(0, len(PROMPT))}, got {driver.tier_hits(PROMPT)}"
    )
    found = driver.load(driver.key_of(PROMPT))
    driver.verify_state(driver.key_of(PROMPT), found)
    assert driver.tier_hits(PROMPT) == (len(PROMPT), 0), (
        f"FLOW-10: it was loaded: expected {(len(PROMPT), 0)}, got {driver.tier_hits(PROMPT)}"
    )


@clause("FETCH-4", needs=STEPPED)
def test_prefetched_pages_are_inserted_only_when_a_step_takes_them_over(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    driver.complete_job(StorageKind.QUERY)
    driver.complete(driver.pending_job(StorageKind.PREFETCH).ticket)
    assert driver.tier_hits(PROMPT) == (0, 0), (
        f"FLOW-2: nothing was taken over, yet a match gets {driver.tier_hits(PROMPT)}"
    )
    driver.step()
    assert driver.tier_hits(PROMPT) == (0, len(PROMPT)), f"FETCH-4: it was, a match gets {driver.tier_hits(PROMPT)}"
    assert driver.prefetched_pages(ticket) == len(PROMPT), "FETCH-4: all of it came"


@clause("FETCH-4")
def test_a_prefetch_brings_the_stored_prefix_of_a_prompt(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    came = driver.prefetch_pages((*PROMPT[:3], 9))
    assert came == 3, f"FETCH-4: three pages of the prompt are in storage, {came} came"
    assert not driver.slots_held_by_prefetches(), (
        f"FETCH-4: the tail is free again, held are {driver.slots_held_by_prefetches()}"
    )
    assert driver.host_slots(FULL).keys() == prefixes(*PROMPT[:3]), f"FETCH-4: got {driver.host_slots(FULL).keys()}"


@PREFETCH_PHASES
@clause("FETCH-4", "INS-1", needs=STEPPED)
def test_pages_that_were_computed_meanwhile_stay_and_the_prefetched_ones_are_freed(
    driver: Scenario, phase: PrefetchPhase
) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    ticket = driver.begin_prefetch(PROMPT)
    phase(driver)
    driver.put_pages(PROMPT)
    driver.drain()
    require_all_counted(driver, ticket)
    assert driver.tier_hits(PROMPT) == (len(PROMPT), 0), f"FETCH-4: got {driver.tier_hits(PROMPT)}"
    capacity = driver.config.host.capacity_tokens if driver.config.host else {}
    used = {name: capacity[name] - free for name, free in driver.free_host_slots().items()}
    assert used[FULL] <= len(PROMPT) * driver.config.page_size, f"FETCH-4: each page once, used are {used}"


@PREFETCH_PHASES
@clause("FETCH-4", "INS-8", needs=STEPPED)
def test_pages_are_inserted_below_a_node_that_was_split_meanwhile(driver: Scenario, phase: PrefetchPhase) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    ticket = driver.begin_prefetch(PROMPT)
    phase(driver)
    driver.put_pages((*PROMPT[:1], 9))
    driver.drain()
    assert driver.prefetched_pages(ticket) == len(PROMPT), "FETCH-4: a match gets all of the prompt"
    driver.load(driver.key_of(PROMPT))
    assert driver.tier_hits(PROMPT) == (len(PROMPT), 0), f"FETCH-4: got {driver.tier_hits(PROMPT)}"


@clause("FLOW-10", "FETCH-4", needs=[Capability.STEPPED, *STEPPED], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_prefetch_past_an_insert_that_is_being_backed_up_reports_what_is_found(driver: Scenario) -> None:
    driver.put_in_storage_alone(PAIR, PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    fetching(driver)
    driver.put_pages(PAIR)
    driver.complete_job(StorageKind.PREFETCH)
    # The copy of the shorter prompt has not ended: below it nothing can be on the host yet, however long one waits.
    tokens = driver.check_prefetch(ticket)
    if tokens is None:
        driver.advance_clock(LONG_TIME_S)
        tokens = driver.check_prefetch(ticket)
    for _ in range(2):
        found = sum(driver.tier_hits(PROMPT)) * driver.config.page_size
        assert tokens is None or tokens <= found, f"FLOW-10: a prefetch reports {tokens} tokens, a match finds {found}"
        driver.drain()
    if tokens is None:
        assert driver.prefetched_pages(ticket) == len(PROMPT), "FETCH-4: it was waited for: expected all pages"


@PREFETCH_PHASES
@clause("FETCH-4", "FLOW-6", needs=STEPPED)
def test_two_prefetches_of_one_prompt_insert_it_once(driver: Scenario, phase: PrefetchPhase) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    first = driver.begin_prefetch(PROMPT)
    phase(driver)
    second = driver.begin_prefetch(PROMPT)
    driver.drain()
    require_all_counted(driver, first, second)


@clause("FETCH-4", "FETCH-8", page_sizes=[16])
def test_a_prefetch_brings_as_many_pages_as_the_host_has_room_for(driver: Scenario) -> None:
    for pages in range(1, len(PROMPT) + 1):
        states = window = len(PROMPT)
        sizes = driver.capacity_for(pages, states) | ({SWA: window * 16} if driver.has(SWA) else {})
        with driver.storage_variant() as writer:
            writer.put_in_storage(*PREFIXES)
        with driver.storage_variant(host={"capacity_tokens": sizes}) as narrow:
            came = narrow.prefetch_pages(PROMPT)
            assert came == pages, f"FETCH-4: the host has {pages} pages, {came} came"
            assert not narrow.slots_held_by_prefetches(), (
                f"FETCH-8: {narrow.slots_held_by_prefetches()} is held of what did not fit"
            )


@clause("FETCH-4", "EVICT-8", page_sizes=[16])
def test_a_prefetch_evicts_from_the_host(driver: Scenario) -> None:
    with driver.storage_variant() as writer:
        writer.put_in_storage(PROMPT)
    sizes = driver.capacity_for(len(PROMPT), 1)
    with driver.storage_variant(host={"capacity_tokens": sizes}) as narrow:
        narrow.put_in_storage(OTHER)
        assert narrow.tier_hits(OTHER) == (0, len(OTHER)), f"the host is taken, a match gets {narrow.tier_hits(OTHER)}"
        came = narrow.prefetch_pages(PROMPT)
        assert came == len(PROMPT), f"FETCH-4: what is on the host can go, {came} pages came"


@clause("FETCH-4", "EVICT-8", needs=STEPPED, write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_prefetch_goes_on_without_the_room_above_a_page_that_storage_is_writing(driver: Scenario) -> None:
    with driver.storage_variant() as writer:
        writer.put_in_storage(*PREFIXES)
    sizes = driver.capacity_for(len(PROMPT) + 1, len(PROMPT) + 2)
    with driver.storage_variant(host={"capacity_tokens": sizes}) as narrow:
        narrow.put_in_storage(OTHER[:1])
        narrow.put_pages(OTHER[:2])
        narrow.step()
        narrow.complete_all()
        narrow.pending_job(StorageKind.STORE)
        narrow.evict_all()
        ticket = narrow.begin_prefetch(PROMPT)
        narrow.step()
        while narrow.pending(StorageKind.QUERY):
            narrow.complete_job(StorageKind.QUERY)
        narrow.drain()
        room, came = len(PROMPT) - 1, narrow.prefetched_pages(ticket)
        assert came == room, f"FETCH-4: {room} pages are free, and the parent of a page in use stays: {came} came"


@clause("FETCH-1", "FETCH-8", components=(SWA,), page_sizes=[16])
def test_without_room_for_a_window_a_prefetch_brings_a_prefix_that_is_shorter_than_it(driver: Scenario) -> None:
    room = driver.window_pages - 1
    with driver.storage_variant() as writer:
        writer.put_in_storage(*PREFIXES)
    sizes = driver.capacity_for(len(PROMPT), 1) | {SWA: room * driver.config.page_size}
    with driver.storage_variant(host={"capacity_tokens": sizes}) as narrow:
        came = narrow.prefetch_pages(PROMPT)
        assert came == room, f"FETCH-1: the host has room for {room} pages of a window: expected as many, got {came}"
        assert not narrow.slots_held_by_prefetches(), f"FETCH-8: {narrow.slots_held_by_prefetches()} is held"


@clause("FETCH-4", "STORE-2")
def test_pages_before_an_unreadable_one_are_used(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    for lost in range(len(PROMPT)):
        came, expected = prefetch_without(driver, PROMPT, Pool.KV, lost)
        assert came == expected, f"FETCH-4: page {lost} was lost, {expected} pages can be used, {came} came"


@clause("FETCH-4", "FLOW-4", needs=STEPPED, page_sizes=[16])
def test_a_prefetch_ends_if_no_object_can_be_read(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    driver.store().corrupt(list(driver.store().objects))
    assert driver.prefetch_pages(PROMPT) == 0, (
        f"FETCH-4: nothing can be read, in storage is {driver.in_storage(PROMPT)}"
    )
    queries = sum(call.verb == "exists" for call in driver.store().calls)
    assert queries <= 10, f"FLOW-4: one prefetch asked {queries} times what there is"
    assert not driver.slots_held_by_prefetches(), f"FETCH-8: {driver.slots_held_by_prefetches()} is held"


@pytest.mark.parametrize("count", range(1, len(PROMPT) + 1))
@clause("FETCH-4", "FLOW-9")
def test_pages_evicted_from_both_tiers_are_prefetched_past_any_anchor(driver: Scenario, count: int) -> None:
    driver.put_in_storage(*PREFIXES)
    driver.evict_both_tiers()
    if count < len(PROMPT):
        assert driver.prefetch_pages(PROMPT[:count]) == count, "FETCH-4: the beginning comes first"
        driver.evict_all()
    expected = driver.expected_pages(PROMPT, anchor=count if count < len(PROMPT) else 0)
    came = driver.prefetch_pages(PROMPT)
    assert came == expected, f"FETCH-4: past {count} pages {expected} are in storage, {came} came"
    if driver.has(MAMBA):
        driver.verify_state(driver.key_of(PROMPT), driver.load(driver.key_of(PROMPT)))


def require_all_counted(driver: Scenario, *tickets: Handle) -> None:
    """Each prefetch brought all of the prompt, and holds no slots for it."""
    for ticket in tickets:
        assert driver.prefetched_pages(ticket) == len(PROMPT), (
            "FETCH-4: expected all pages of the prompt to count, from any request or prefetch"
        )
    assert not driver.slots_held_by_prefetches(), (
        f"FETCH-4: two had the same pages, held are {driver.slots_held_by_prefetches()}"
    )


# FETCH-5, FETCH-6: the other pools are read after KV, for the prefix of KV that was read.

INDEXER = "indexer"


def reads(driver: Scenario) -> list[tuple[str, list[int]]]:
    """The pages of the prompt that each call of get requested."""
    places = {
        driver.object_keys(pool, PROMPT)[page]: (pool, page)
        for pool in driver.pools()
        for page in driver.stored_pages(pool, PROMPT)
    }
    asked_for = [[places[key] for key in call.keys] for call in driver.store().calls if call.verb == "get"]
    return [(named[0][0], [page for _, page in named]) for named in asked_for]


@clause("FETCH-5", page_sizes=[16])
def test_kv_is_read_first_and_the_other_pools_for_the_prefix_that_was_read(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    assert driver.prefetch_pages((*PROMPT[:3], 9)) == 3, "FETCH-4: three pages are in storage"
    window = list(range(max(0, 3 - driver.window_pages), 3))
    tails: dict[str, list[int]] = {Pool.SWA: window, Pool.MAMBA: [2]}
    expected = [(pool, tails.get(pool, driver.stored_pages(pool, PROMPT[:3]))) for pool in driver.pools()]
    found = reads(driver)
    assert found[0] == expected[0], f"FETCH-5: KV comes first, {expected[0]}, asked for were {found}"
    assert sorted(found) == sorted(expected), f"FETCH-5: {expected} is needed, asked for were {found}"


@clause("FETCH-5", page_sizes=[16])
def test_without_kv_no_other_pool_is_read(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.store().corrupt(driver.object_keys(Pool.KV, PROMPT)[:1])
    driver.drain()
    assert driver.prefetched_pages(ticket) == 0, "FETCH-4: the first page of KV is lost"
    assert [pool for pool, _ in reads(driver)] == [Pool.KV], f"FETCH-5: no KV came, asked for were {reads(driver)}"


@clause("FETCH-5", "FETCH-6", page_sizes=[16], components=(SWA, MAMBA))
def test_the_window_and_the_state_are_read_at_the_end_of_the_readable_prefix(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    ticket = driver.begin_prefetch(PROMPT)
    driver.store().corrupt(driver.object_keys(Pool.KV, PROMPT)[3:])
    driver.drain()
    assert driver.prefetched_pages(ticket) == 3, "FETCH-4: three pages of KV can be read"
    window = list(range(3 - driver.window_pages, 3))
    found = reads(driver)
    tails = [named for named in found if named[0] in (Pool.SWA, Pool.MAMBA)]
    assert tails[-2:] == [(Pool.SWA, window), (Pool.MAMBA, [2])], f"FETCH-5: the prefix has 3 pages, read were {found}"
    twice = [page for pool, pages in found if pool == Pool.KV for page in pages]
    assert len(twice) == len(set(twice)), f"FETCH-5: what had come was read again: {found}"


@clause("FETCH-5", sidecars=(INDEXER,))
def test_kv_pages_without_their_sidecar_are_not_used(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    for lost in range(len(PROMPT)):
        for pool in driver.config.sidecars:
            came, expected = prefetch_without(driver, PROMPT, pool, lost)
            assert came == expected, f"FETCH-5: {pool} of page {lost} is lost: {expected} pages, {came} came"


@clause("FETCH-6", components=(SWA,), page_sizes=[16])
def test_a_window_is_prefetched_in_full_or_not_at_all(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FETCH-4: all is in storage"
    window = driver.window_pages
    held = {len(pages) for pages in driver.host_slots(SWA)}
    expected = set(range(len(PROMPT) - window + 1, len(PROMPT) + 1))
    assert held == expected, f"FETCH-6: the last window of {len(PROMPT)} pages is {expected}, on the host is {held}"


@clause("FETCH-6", components=(SWA,), page_sizes=[16])
def test_a_window_with_an_unreadable_page_is_freed(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    for lost in range(len(PROMPT) - driver.window_pages, len(PROMPT)):
        came, expected = prefetch_without(driver, PROMPT, Pool.SWA, lost)
        assert came == expected, f"FETCH-6: page {lost} of the window is lost: {expected} pages, {came} came"
        assert not driver.slots_held_by_prefetches(), (
            f"FETCH-6: the whole window is freed, held is {driver.slots_held_by_prefetches()}"
        )


@clause("FETCH-6", components=(SWA,), page_sizes=[16])
def test_past_a_match_a_prefetch_shorter_than_the_window_reads_only_its_own_pages(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    assert driver.prefetch_pages(PROMPT[:3]) == 3, "FETCH-4: the beginning comes first"
    before = len(reads(driver))
    came = driver.prefetch_pages(PROMPT)
    assert came == 1, f"FETCH-6: one page is lacking, {came} came"
    swa = [pages for pool, pages in reads(driver)[before:] if pool == Pool.SWA]
    assert swa == [[3]], f"FETCH-6: the match has its own window, asked for were {swa}"


@clause("FETCH-6", components=(MAMBA,))
def test_a_state_is_prefetched_only_at_the_end_of_the_prefix(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT[:2], PROMPT)
    for wanted, expected in ((PROMPT[:1], 0), (PROMPT[:3], 2), (PROMPT, 4)):
        driver.reset()
        came = driver.prefetch_pages(wanted)
        assert came == expected, f"FETCH-6: of {wanted} there are states after 2 and 4 pages, {came} came"
        assert len(driver.host_slots(MAMBA)) == (expected > 0), f"FETCH-6: got states {driver.host_slots(MAMBA)}"


@clause("FETCH-6", components=(MAMBA,), page_sizes=[16])
def test_an_unreadable_state_is_replaced_by_an_earlier_one(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT[:2], PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.store().corrupt([driver.object_keys(Pool.MAMBA, PROMPT)[3]])
    driver.drain()
    came = driver.prefetched_pages(ticket)
    assert came == 2, f"FETCH-6: the state after 4 pages is lost, the one after 2 is there, {came} pages came"
    driver.verify_state(driver.key_of(PROMPT), driver.load(driver.key_of(PROMPT)))


@clause("FETCH-5", "FETCH-3", needs=STEPPED, sidecars=(INDEXER,), page_sizes=[16])
def test_a_prefetch_has_not_ended_while_a_sidecar_is_pending(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    driver.complete_job(StorageKind.QUERY)
    pending = driver.pending_job(StorageKind.PREFETCH)
    for done in range(1, pending.units):
        driver.advance(pending.ticket)
        driver.step()
        left = pending.units - done
        assert not driver.host_slots(FULL), f"FETCH-5: {left} batches are pending, and KV is in the tree"
    driver.advance(pending.ticket)
    driver.step()
    assert driver.prefetched_pages(ticket) == len(PROMPT), "FETCH-5: all has come"


# REQ-2, FETCH-8: requests with a prefetch before their admission.


REQUESTS = [Capability.REQUESTS, Capability.STORAGE]


def arriving(driver: Scenario, tokens: list[int]) -> Key:
    """The part of a prompt that an admission can use: the last token is always computed."""
    return driver.key(tokens[:-1])


@clause("REQ-3", "FETCH-4", needs=REQUESTS)
def test_a_request_uses_what_was_prefetched(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    tokens = [*driver.prompt(PROMPT), 7]
    ticket = driver.prefetch(arriving(driver, tokens))
    assert ticket is not None, "FETCH-1: four pages are lacking"
    driver.drain()
    brought = driver.prefetched_pages(ticket)
    admission = driver.admit(driver.key(tokens))
    assert admission is not None, "REQ-5: the request fits"
    assert brought == len(PROMPT), f"FETCH-4: all whole pages are in storage, {brought} came"
    assert admission.cached_tokens == driver.tokens_in_pages(len(PROMPT)), f"FLOW-10: {brought} came, got {admission}"
    driver.drain()
    if admission.loading:
        assert driver.resume(admission.request) is not None, "FLOW-4: its load has ended"
    driver.finish(admission.request)
    driver.drain()
    driver.require_requests_released("the request has ended")


@clause("FETCH-4", "FLOW-10", needs=REQUESTS)
def test_a_prefetch_brings_only_the_pages_that_admission_can_use(driver: Scenario) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    tokens = driver.prompt(PROMPT)
    ticket = driver.prefetch(arriving(driver, tokens))
    assert ticket is not None, "FETCH-1: three pages are lacking"
    driver.drain()
    brought = driver.prefetched_pages(ticket)
    expected = len(PROMPT) - 1
    assert brought == expected, f"FETCH-4: the last token is computed: {expected} pages are of use, {brought} came"
    admission = driver.admit(driver.key(tokens))
    assert admission is not None, "REQ-5: the request fits"
    # A window or a state past the usable part could not be used.
    assert admission.cached_tokens == driver.tokens_in_pages(expected), f"FLOW-10: {expected} came, got {admission}"
    driver.abort(admission.request)
    driver.drain()


@PREFETCH_PHASES
@clause("REQ-2", "FETCH-8", needs=[*REQUESTS, Capability.STEPPED, Capability.SIZES], page_sizes=[16])
def test_a_request_aborted_during_its_prefetch_leaves_nothing_held(driver: Scenario, phase: PrefetchPhase) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    phase(driver)
    driver.abort_prefetch(ticket)
    driver.drain()
    driver.require_all_evictable(f"after a request that was gone while it was {phase.__name__}")


@PREFETCH_PHASES
@clause("REQ-2", "FETCH-4", needs=[*REQUESTS, Capability.STEPPED, Capability.SIZES], page_sizes=[16])
def test_a_request_admitted_before_its_prefetch_ends_uses_none_of_it(driver: Scenario, phase: PrefetchPhase) -> None:
    driver.put_in_storage_alone(*PREFIXES)
    ticket = driver.begin_prefetch(PROMPT)
    phase(driver)
    admission = driver.admit(driver.key([*driver.prompt(PROMPT), 7]))
    assert admission is not None, "REQ-5: the request fits"
    assert admission.cached_tokens == 0, f"FETCH-4: nothing was taken over, cached are {admission.cached_tokens}"
    driver.finish(admission.request)
    driver.drain()
    assert driver.prefetched_pages(ticket) == len(PROMPT), (
        "FETCH-4: expected all pages of the prompt to count, from any request or prefetch"
    )
    driver.require_all_evictable("after both have ended")


@clause("FETCH-6", "FETCH-4", components=("swa",), page_sizes=[16])
def test_windows_of_any_length_are_prefetched(driver: Scenario) -> None:
    for pages in (1, 2, 3):
        with driver.storage_variant(sliding_window_size=driver.window_tokens(pages)) as other:
            other.put_in_storage_alone(*PREFIXES)
            for wanted in PREFIXES:
                other.reset()
                expected, came = other.expected_pages(wanted), other.prefetch_pages(wanted)
                assert came == expected == len(wanted), (
                    f"FETCH-6: windows of {pages} pages, all of {wanted} is in storage, {came} pages came"
                )
                other.load(other.key_of(wanted))
            other.drain()


@clause("REQ-2", "FLOW-4", needs=[*REQUESTS, Capability.SIZES], page_sizes=[16])
def test_a_full_device_does_not_stop_a_prefetch(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    driver.put_pages(OTHER)
    receipt = driver.lock(driver.match(driver.key_of(OTHER)).device_anchor)
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FETCH-4: storage gives to the host, where there is room"
    driver.unlock(receipt)


# FETCH-11: KV that the host has without its window or state is not read.


def put_tombstone_on_host(driver: Scenario, component: str, *prompts: Pages) -> None:
    """Prompts in storage; and on the host KV of the tombstone without a component, below which a longer prompt is."""
    driver.put_in_storage_alone(TOMBSTONE, *prompts)
    driver.put_on_host(driver.longer_prompt())
    driver.evict_inner_from_host(component)
    lacking = {name for name in driver.evicted_with(component) if TOMBSTONE not in driver.host_slots(name)}
    assert lacking == driver.evicted_with(component), f"EVICT-3: {component} of {TOMBSTONE} left the host"
    assert TOMBSTONE in driver.host_slots(FULL), f"EVICT-3: KV of {TOMBSTONE} is on the host"
    found = sum(driver.tier_hits(TOMBSTONE))
    assert found < len(TOMBSTONE), f"MATCH-1: {TOMBSTONE} has no {component}: expected fewer pages, {found} are found"


def kv_read(driver: Scenario, first_call: int, prompt: Pages) -> dict[str, list[int]]:
    """Which pages of a prompt were read since a call, counted from one, of KV and each of its sidecars."""
    read = {key for call in driver.store().calls[first_call:] if call.verb == "get" for key in call.keys}
    return {
        pool: [page for page, key in enumerate(driver.object_keys(pool, prompt), 1) if key in read]
        for pool, component in component_of(driver.config).items()
        if component == FULL
    }


@clause("FETCH-11", "FETCH-6", needs=STEPPED, components=(MAMBA,), page_sizes=[16], write_policies=THROUGH)
def test_a_prefetch_reads_only_the_state_of_kv_that_is_on_the_host(driver: Scenario) -> None:
    put_tombstone_on_host(driver, MAMBA)
    before, free = len(driver.store().calls), driver.free_host_slots()
    came = driver.prefetch_pages(TOMBSTONE)
    assert came == len(TOMBSTONE), f"FETCH-11: storage has the state: expected {len(TOMBSTONE)} pages, {came} came"
    read = kv_read(driver, before, TOMBSTONE)
    assert not any(read.values()), f"FETCH-11: the host has all KV of {TOMBSTONE}, and {read} were read"
    assert driver.free_host_slots()[FULL] == free[FULL], "FETCH-4: no slot of KV was taken"
    assert driver.tier_hits(TOMBSTONE) == (0, len(TOMBSTONE)), "FETCH-11: what came is found with it"
    driver.load(driver.key_of(TOMBSTONE))


@clause("FETCH-11", "FETCH-6", needs=STEPPED, components=(SWA,), page_sizes=[16], write_policies=THROUGH)
def test_a_prefetch_reads_only_the_window_of_kv_that_is_on_the_host(driver: Scenario) -> None:
    put_tombstone_on_host(driver, SWA)
    before = len(driver.store().calls)
    came = driver.prefetch_pages(TOMBSTONE)
    assert came == len(TOMBSTONE), f"FETCH-11: storage has the window: expected {len(TOMBSTONE)} pages, {came} came"
    read = kv_read(driver, before, TOMBSTONE)
    assert not any(read.values()), f"FETCH-11: the host has all KV of {TOMBSTONE}, and {read} were read"
    driver.load(driver.key_of(TOMBSTONE))


@clause("FETCH-11", "FETCH-2", needs=STEPPED, components=(MAMBA,), page_sizes=[16], write_policies=THROUGH)
def test_kv_that_a_prefetch_counts_on_stays_on_the_host_until_it_ends(driver: Scenario) -> None:
    prompt = (*TOMBSTONE, 7, 8)
    put_tombstone_on_host(driver, MAMBA, prompt)
    before = len(driver.store().calls)
    ticket = driver.begin_prefetch(prompt)
    fetching(driver)
    driver.evict_all_host()
    assert TOMBSTONE in driver.host_slots(FULL), "FETCH-11: the prefetch goes on from there: expected it to stay"
    driver.drain()
    came = driver.prefetched_pages(ticket)
    assert came == len(prompt), f"FETCH-11: expected {len(prompt)} pages, {came} came"
    read = kv_read(driver, before, prompt)
    expected = {pool: [3, 4] for pool in read}
    assert read == expected, f"FETCH-11: the host has the first pages: expected {expected} to be read, got {read}"
    driver.load(driver.key_of(prompt))
    driver.evict_both_tiers()


@clause("FETCH-11", "FETCH-8", needs=STEPPED, components=(MAMBA,), page_sizes=[16], write_policies=THROUGH)
def test_kv_that_a_prefetch_counted_on_is_free_to_leave_when_it_was_aborted(driver: Scenario) -> None:
    put_tombstone_on_host(driver, MAMBA)
    ticket = driver.begin_prefetch(TOMBSTONE)
    fetching(driver)
    driver.abort_prefetch(ticket)
    driver.drain()
    driver.evict_both_tiers()
