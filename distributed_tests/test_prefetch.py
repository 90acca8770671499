"""A prefetch on ranks that differ: all ranks keep the pages that every rank has, and end it at the same check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import SEVERAL_SIDECARS
from hicache.testing.contract import clause
from hicache.testing.driving.pools import component_of
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld, mesh_of
from hicache.testing.stored import restorable_pages
from hicache.types import Component, Handle, Pool, StopPolicy, StorageKind

from .configurations import ALL_MESHES, CP2_TP2, PP2_TP2, TP2, configuration, full_alone, on_meshes, with_room
from .rank_actions import STORAGE_NEEDS, catch_up, elements_on_host
from .stored_prompt import (
    PROMPT,
    Presence,
    advance_batches,
    ask_for_pages,
    begin,
    brought,
    objects,
    pools,
    presence,
    prompt_key,
    put_in_storage,
    slots_held_by_prefetches,
    store,
    taken_on_host,
    window_pages,
)

LONG = tuple(range(1, 301))
"""A prompt whose pages are read in three batches."""

BATCH_PAGES = 128

STATE_PAGES = 20
"""So many pages lie between two states of the long prompt."""

ENDS = tuple(range(1, 13))
"""A prompt with a state at each page."""

LOST = 0.3
"""The share of the ends of a prompt that each rank lacks."""

LATE_S = 1000.0
"""Longer than the timeout of any prefetch."""

Loss = tuple[int, str, int]
"""A rank, and a page of one pool that it lacks."""

Fetched = tuple[str, int, Presence, int]
"""A description of the loss, pages that came, what this rank can read, and pages of a window."""

Reused = tuple[str, int, int]
"""A later prompt and when it is asked for, pages that were found, and pages that must be."""

Incomplete = tuple[str, int, dict[str, int]]
"""The loss, pages that came, and host slots that are taken afterwards."""

Cut = tuple[int, Presence, int, int]
"""Pages that came, what this rank has read, pages of a window, and host slots still held."""

Left = tuple[str, dict[str, int], int]
"""The way of the abort, host slots that are taken after a drain, and pages that another prefetch brought."""


def losses(own_pools: Sequence[str], ranks: int) -> Iterator[tuple[Loss, ...]]:
    """Each page of each pool on one rank, and pages on two ranks at once."""
    for number, (pool, page) in enumerate(product(own_pools, range(len(PROMPT)))):
        yield ((number % ranks, pool, page),)
    for pool in own_pools[1:]:
        yield (0, Pool.KV, 3), (ranks - 1, pool, 2)
        yield (0, pool, 3), (ranks - 1, pool, 2)


def prefetches(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Fetched]:
    """Prefetch the prompt once for each loss, which happens before the query or after it."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    whole = dict(store(driver).objects)
    found: list[Fetched] = []
    for number, lost in enumerate(losses(pools(driver), mesh_of(world.topology).ranks)):
        own = [objects(driver, pool)[page] for rank, pool, page in lost if rank == driver.rank]
        is_known = number % 2 == 0
        if is_known:
            for name in own:
                del store(driver).objects[name]
        ticket = begin(driver)
        store(driver).corrupt(own)
        there = presence(driver)
        driver.drain()
        words = ", ".join(f"{pool} page {page} on rank {rank}" for rank, pool, page in lost)
        found.append(
            (f"{words}, {'known' if is_known else 'not known'}", brought(driver, ticket), there, window_pages(driver))
        )
        driver.reset()
        store(driver).restore(whole)
    driver.end()
    return found


def on_all(several: Sequence[Presence]) -> Presence:
    """What every rank can read."""
    return {pool: [all(pages) for pages in zip(*(one[pool] for one in several), strict=True)] for pool in several[0]}


def prefetches_lengths(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Fetched]:
    """Prefetch the prompt while each rank has another number of pages of each sidecar, in each turn others."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    whole, found = dict(store(driver).objects), list[Fetched]()
    for turn in range(len(PROMPT)):
        ticket = ask_for_pages(driver)
        numbered = enumerate(config.sidecars, start=turn + 2 * driver.rank)
        lengths = {pool: 1 + number % len(PROMPT) for number, pool in numbered}
        for pool, pages in lengths.items():
            store(driver).corrupt(objects(driver, pool)[pages:])
        there = presence(driver)
        driver.drain()
        found.append((f"rank {driver.rank} has {lengths}", brought(driver, ticket), there, window_pages(driver)))
        driver.reset()
        store(driver).restore(whole)
    driver.end()
    return found


@clause("FETCH-7", "RANK-1", needs=(*STORAGE_NEEDS, Capability.SIDECARS))
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_of_sidecars_of_different_lengths_the_least_over_all_ranks_counts(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    for number, kind in enumerate(SEVERAL_SIDECARS):
        config = configuration(adapter_type, kind=kind)
        results = launch.again(number).values(prefetches_lengths, adapter_type, config)
        for case in zip(*results, strict=True):
            expected = restorable_pages(on_all([there for _, _, there, _ in case]), case[0][3])
            came = [pages for _, pages, _, _ in case]
            words = "; ".join(words for words, _, _, _ in case)
            assert came == [expected] * len(case), (
                f"FETCH-7: {kind}: {words}: expected {expected} pages on every rank, got {came}"
            )


@clause("RANK-1", "RANK-4", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_all_ranks_prefetch_the_prefix_that_every_rank_can_read(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    results = launch.values(prefetches, adapter_type, configuration(adapter_type))
    for case in zip(*results, strict=True):
        words, _, _, window = case[0]
        expected = restorable_pages(on_all([there for _, _, there, _ in case]), window)
        came = [pages for _, pages, _, _ in case]
        assert came == [expected] * len(case), (
            f"FETCH-7: {words} was lost: expected {expected} pages on every rank, by rank came {came}"
        )


def interleaved(ranks: int) -> Iterator[tuple[set[tuple[int, int]], str]]:
    """Ranks and the ends that each lacks: all but the first in turns, and drawn ones, with a gap in KV or without."""
    yield {(page % ranks, page) for page in range(1, len(ENDS))}, ""
    yield {(page % ranks, page) for page in range(2, len(ENDS) - 1)}, Pool.KV
    dice = Random(0)
    for _ in range(6):
        yield {one for one in product(range(ranks), range(len(ENDS))) if dice.random() < LOST}, ""


def prefetches_interleaved(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Fetched]:
    """Prefetch a prompt whose ends are lost on each rank at other pages, before the query."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, ENDS, with_prefixes=True)
    whole, found = dict(store(driver).objects), list[Fetched]()
    last = next((name for name in (Component.MAMBA, Component.SWA) if name in config.components), Component.FULL)
    ends = [pool for pool, name in component_of(config).items() if name == last]
    for lost, gap in interleaved(mesh_of(world.topology).ranks):
        names = [objects(driver, pool, ENDS)[page] for pool in ends for rank, page in lost if rank == driver.rank]
        names += objects(driver, gap, ENDS)[1:2] if gap and driver.rank == 0 else []
        for name in names:
            del store(driver).objects[name]
        ticket = begin(driver, ENDS)
        there = presence(driver, ENDS)
        driver.drain()
        words = f"{sorted(lost)} and page 1 of {gap}" if gap else str(sorted(lost))
        found.append((words, brought(driver, ticket, ENDS), there, window_pages(driver)))
        driver.reset()
        store(driver).restore(whole)
    driver.end()
    return found


@clause("FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_all_ranks_prefetch_the_longest_prefix_that_none_lacks(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type)
    config = with_room(config, config.components, page_size=1, pages=2 * len(ENDS))
    for case in zip(*launch.values(prefetches_interleaved, adapter_type, config), strict=True):
        words, _, _, window = case[0]
        expected = restorable_pages(on_all([there for _, _, there, _ in case]), window)
        came = [pages for _, pages, _, _ in case]
        assert came == [expected] * len(case), (
            f"FETCH-7: of states (rank, page) {words} were lost: expected {expected} pages on every rank, "
            f"by rank came {came}"
        )


def finds_again(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Reused]:
    """Cache each prefix of the prompt; find it, its continuation and a fork after a demotion, and after a restart."""
    driver, reused = RankDriver(adapter_type, config, world), list[Reused]()
    put_in_storage(driver, with_prefixes=True)
    later = {"the same prompt": (PROMPT, 4), "a continuation": ((*PROMPT, 9), 4), "a fork": ((*PROMPT[:2], 8, 9), 2)}
    for words, (pages, promised) in later.items():
        driver.restart()
        brought(driver, drained(driver, begin(driver, pages)), pages)
        for place in ("after a restart", "after a demotion"):
            reached = len(driver.load(prompt_key(driver, pages)).device_indices)
            reused.append((f"{words} {place}", reached // config.page_size, promised))
            for component in config.components:
                driver.evict(component, config.capacity_tokens[component])
            driver.drain()
    driver.end()
    return reused


def drained(driver: RankDriver, ticket: Handle) -> Handle:
    """The ticket of a prefetch, once nothing is under way."""
    driver.drain()
    return ticket


@clause("REUSE-5", "REUSE-6", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2)
def test_every_rank_finds_what_was_demoted_or_stored(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    for case in zip(*launch.values(finds_again, adapter_type, configuration(adapter_type)), strict=True):
        words, _, promised = case[0]
        found = [pages for _, pages, _ in case]
        assert found == [promised] * len(case), (
            f"REUSE-6: {words}: expected {promised} pages on every rank, by rank {found}"
        )


def prefetches_incomplete(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Incomplete]:
    """Prefetch a prompt with one state, at its end, while one rank lacks the last page of a pool."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=False)
    whole, found = dict(store(driver).objects), []
    for pool in pools(driver)[1:]:
        for poor in range(mesh_of(world.topology).ranks):
            ticket = ask_for_pages(driver)
            if driver.rank == poor:
                store(driver).corrupt(objects(driver, pool)[-1:])
            driver.drain()
            left = slots_held_by_prefetches(driver) | taken_on_host(driver)
            found.append((f"{pool} of rank {poor}", brought(driver, ticket), left))
            driver.reset()
            store(driver).restore(whole)
    driver.end()
    return found


@clause("FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_no_rank_keeps_a_sidecar_that_is_incomplete_on_one_rank(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type)
    if not {Component.SWA, Component.MAMBA} & set(config.components):
        pytest.skip(f"{config.name} has no component that is needed at the end of a prefix alone")
    for rank, found in enumerate(launch.values(prefetches_incomplete, adapter_type, config)):
        for lost, came, left in found:
            assert (came, left) == (0, {}), (
                f"FETCH-7: {lost} lacks its last page, and there is no other state: expected nothing to come, and no "
                f"host slot to be taken; on rank {rank} came {came} pages, and taken are {left}"
            )


def waits(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[int | None]:
    """The results of check_prefetch when the timeout has passed on no rank, on the last stage, and on the first one."""
    driver = RankDriver(adapter_type, config, world)
    key = driver.key(driver.prompt([1, 2, 3]))
    driver.put(key)
    catch_up(driver)
    driver.reset()
    ticket = driver.prefetch(key)
    assert ticket is not None, "FETCH-1: expected a prefetch of a prompt that is in storage alone, got None"
    driver.step()
    said = [driver.check_prefetch(ticket)]
    for stage in (world.topology.pp_size - 1, 0):
        if world.topology.pp_rank == stage:
            driver.advance_clock(60.0)
        said.append(driver.check_prefetch(ticket))
    driver.end()
    return said


def times_out(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[bool, int, int]]:
    """For each rank whose clock alone passes the timeout, with no page read, and with all pages read on every rank.

    Returns whether the prefetch ended at once, and the pages that came in both cases.
    """
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    found = []
    for late in range(mesh_of(world.topology).ranks):
        came = []
        for have_come in (False, True):
            ticket = ask_for_pages(driver)
            assert driver.check_prefetch(ticket) is None, "FETCH-3: no time has passed: expected None"
            if have_come:
                driver.let_end(StorageKind.PREFETCH)
            if driver.rank == late:
                driver.advance_clock(LATE_S)
            tokens = driver.check_prefetch(ticket)
            is_over = tokens is not None
            driver.compare("check")
            if driver.rank != late:
                driver.advance_clock(LATE_S)
            if tokens is None:
                tokens = driver.check_prefetch(ticket)
            assert tokens is not None, (
                "FETCH-3: the timeout has passed on every rank: expected a number of tokens, got None"
            )
            came.append(tokens // config.page_size)
            driver.drain()
            driver.reset()
        found.append((is_over, came[0], came[1]))
    driver.end()
    return found


def cuts_batches(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[int, int]]:
    """For each rank that is one batch ahead of the others: pages that came of a long prompt, host slots still held."""
    driver = RankDriver(adapter_type, config, world)
    driver.check_every = 0
    driver.put(prompt_key(driver, LONG))
    driver.drain()
    driver.reset()
    found = []
    for ahead in range(mesh_of(world.topology).ranks):
        ticket = ask_for_pages(driver, LONG)
        batches = advance_batches(driver, 2 if driver.rank == ahead else 1)
        assert batches == len(LONG) // BATCH_PAGES + 1, f"expected a batch for {BATCH_PAGES} pages, got {batches}"
        tokens = driver.check_prefetch(ticket)
        driver.compare("check")
        driver.drain()
        assert tokens is not None, "FETCH-3: best_effort does not wait: expected a number of tokens, got None"
        found.append((tokens // config.page_size, sum(slots_held_by_prefetches(driver).values())))
        reached = len(driver.load(prompt_key(driver, LONG)).device_indices)
        assert reached == tokens, f"FETCH-4: expected a request to find the {tokens} prefetched tokens, got {reached}"
        driver.check()
        driver.reset()
    driver.end()
    return found


def cuts_parts(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Cut]:
    """For each rank that has read a whole part, when the others have read a batch of it: what was read, and kept."""
    driver = RankDriver(adapter_type, config, world)
    driver.check_every = 0
    for end in range(STATE_PAGES, len(LONG) + 1, STATE_PAGES):
        driver.put(prompt_key(driver, LONG[:end]))
        driver.drain()
    driver.reset()
    found: list[Cut] = []
    for ahead in range(mesh_of(world.topology).ranks):
        earlier, ticket = len(store(driver).calls), begin(driver, LONG)
        while not driver.pending(StorageKind.PREFETCH) or not elements_on_host(driver):
            driver.let_end(*StorageKind)
            driver.step()
        advance_batches(driver, 1 << 10 if driver.rank == ahead else 1)
        calls = store(driver).calls[earlier:]
        were_read = {key for call in calls if call.verb == "get" for key in call.keys}
        names = {pool: driver.storage_keys(pool, prompt_key(driver, LONG)) for pool in pools(driver)}
        came = brought(driver, ticket, LONG)
        driver.compare("check")
        driver.drain()
        held = sum(slots_held_by_prefetches(driver).values())
        read: Presence = {pool: [name in were_read for name in own] for pool, own in names.items()}
        found.append((came, read, window_pages(driver), held))
        driver.check()
        driver.reset()
    driver.end()
    return found


def cuts_sidecars(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[int, int]]:
    """For each rank that lacks the last pool when the others have all: pages that came, host slots still held."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    found = []
    for behind in range(mesh_of(world.topology).ranks):
        ticket = ask_for_pages(driver)
        batches = driver.pending(StorageKind.PREFETCH)[0].units
        advance_batches(driver, batches - (driver.rank == behind))
        came = brought(driver, ticket)
        driver.drain()
        found.append((came, sum(slots_held_by_prefetches(driver).values())))
        driver.reset()
    driver.end()
    return found


def require_kept(by_rank: Sequence[object], expected: Sequence[tuple[int, int]], how: str) -> None:
    """On every rank the expected pages came each time, and the expected host slots are held."""
    for rank, found in enumerate(by_rank):
        assert found == expected, (
            f"FETCH-7: {how}: expected pages that came, and host slots left over, {expected}; on rank {rank} {found}"
        )


@clause("RANK-4", needs=STORAGE_NEEDS)
@on_meshes(PP2_TP2)
def test_the_first_stage_decides_when_a_prefetch_is_over(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.TIMEOUT)
    results = launch.values(waits, adapter_type, config)
    assert results == [[None, None, 0]] * len(results), (
        f"RANK-4: a prefetch before any clock, after the last stage's and after the first stage's: "
        f"expected [None, None, 0] on each rank, got {results}"
    )


@clause("FETCH-7", "RANK-1", "RANK-4", needs=STORAGE_NEEDS)
@on_meshes(*ALL_MESHES)
def test_the_first_stage_decides_when_a_prefetch_times_out(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    results = launch.values(times_out, adapter_type, configuration(adapter_type, stop_policy=StopPolicy.TIMEOUT))
    for rank, found in enumerate(results):
        for late, outcome in enumerate(found):
            expected = (launch.mesh.topology(late).pp_rank == 0, 0, len(PROMPT))
            assert outcome == expected, (
                f"RANK-4: the time is over on rank {late} alone: expected {expected} (whether the prefetch is over, "
                f"pages when none has come, pages when all have), on rank {rank} {outcome}"
            )


@clause("FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2)
def test_a_cut_prefetch_keeps_the_batches_that_all_ranks_have(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.BEST_EFFORT)
    config = full_alone(config, page_size=1, pages=len(LONG) + 20)
    found = launch.values(cuts_batches, adapter_type, config)
    require_kept(found, [(BATCH_PAGES, 0)] * launch.mesh.ranks, "each rank in turn was a batch ahead")


@clause("FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2)
def test_a_cut_prefetch_keeps_nothing_if_one_rank_lacks_a_pool(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.BEST_EFFORT)
    found = launch.values(cuts_sidecars, adapter_type, config)
    require_kept(found, [(0, 0)] * launch.mesh.ranks, "each rank in turn lacked the last pool")


@clause("FETCH-10", "FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, PP2_TP2)
def test_a_cut_prefetch_keeps_the_parts_that_all_ranks_have(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.BEST_EFFORT)
    config = with_room(config, config.components, page_size=1, pages=len(LONG) + 20)
    for ahead, case in enumerate(zip(*launch.values(cuts_parts, adapter_type, config), strict=True)):
        expected = restorable_pages(on_all([read for _, read, _, _ in case]), case[0][2])
        assert expected, "FETCH-10: a part was inserted before the cut: expected more than 0 pages to have been read"
        kept = [(came, held) for came, _, _, held in case]
        assert kept == [(expected, 0)] * len(case), (
            f"FETCH-10: rank {ahead} was ahead, and every rank has read all of {expected} pages: expected them to "
            f"come, and no host slots to be left over, on every rank; by rank {kept}"
        )


def aborts_queries(driver: RankDriver, ahead: int) -> None:
    """Abort when one rank has the answer to its query."""
    ticket = begin(driver)
    driver.step()
    if driver.rank == ahead:
        driver.let_end(StorageKind.QUERY)
    driver.abort_prefetch(ticket)


def aborts_pages(driver: RankDriver, ahead: int) -> None:
    """Abort when one rank has read all pages, the others none."""
    ticket = ask_for_pages(driver)
    if driver.rank == ahead:
        driver.let_end(StorageKind.PREFETCH)
    driver.abort_prefetch(ticket)


def aborts_what_was_stepped(driver: RankDriver, ahead: int) -> None:
    """Abort after a step, when one rank has read all pages, and the others some."""
    ticket = ask_for_pages(driver)
    advance_batches(driver, 1 << 10 if driver.rank == ahead else driver.rank % 2)
    driver.step()
    driver.abort_prefetch(ticket)


def aborts_one_of_two(driver: RankDriver, ahead: int) -> None:
    """Abort two prefetches in the opposite order of one rank's answers."""
    first, second = begin(driver, PROMPT[:2]), begin(driver, (7, 8))
    driver.step()
    if driver.rank == ahead:
        driver.complete(driver.pending(*StorageKind)[-1].ticket)
    driver.step()
    driver.abort_prefetch(second)
    driver.step()
    driver.abort_prefetch(first)


WAYS = (aborts_queries, aborts_pages, aborts_what_was_stepped, aborts_one_of_two)


def aborts(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Left]:
    """Abort in each way, each time with another rank ahead; then drain, at a different speed on each rank."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    found = []
    ranks = mesh_of(world.topology).ranks
    for number, way in enumerate(WAYS * 2):
        way(driver, ahead=number % ranks if number < len(WAYS) else ranks - 1 - number % ranks)
        driver.compare("abort")
        if driver.rank % 2:
            driver.let_end(*StorageKind)
        driver.step()
        driver.drain()
        left = slots_held_by_prefetches(driver) | taken_on_host(driver)
        ticket = begin(driver)
        driver.drain()
        found.append((way.__name__, left, brought(driver, ticket)))
        driver.reset()
    driver.end()
    return found


@clause("RANK-1", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_an_aborted_prefetch_leaves_nothing_held(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    for rank, found in enumerate(launch.values(aborts, adapter_type, configuration(adapter_type))):
        for way, left, came in found:
            assert (left, came) == ({}, len(PROMPT)), (
                f"FETCH-7: {way} with one rank ahead: expected every host slot to be free, and {len(PROMPT)} pages "
                f"from another prefetch; on rank {rank} are taken {left}, and {came} pages came"
            )
