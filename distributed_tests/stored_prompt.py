"""A prompt in the storage of every rank: how a test stores it, which objects a rank has, and how it is prefetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.testing.driving.pools import component_of
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.storage.scripted import Store
from hicache.types import Handle, Key, StorageKind

from .rank_actions import own_store

PROMPT = (1, 2, 3, 4)
"""The pages of the prompt: more than a window."""

Presence = Mapping[str, Sequence[bool]]
"""Of each pool, which pages of the prompt a rank can read."""


def store(driver: RankDriver) -> Store:
    """The scripted store of this rank."""
    return own_store(driver.config)


def pools(driver: RankDriver) -> list[str]:
    """The pools that have objects in storage."""
    return [*component_of(driver.config)]


def window_pages(driver: RankDriver) -> int:
    """How many pages the window of one token covers, wholly or in part."""
    return -(-(driver.config.sliding_window_size or 0) // driver.config.page_size)


def prompt_key(driver: RankDriver, pages: Sequence[int] = PROMPT) -> Key:
    """The key of a prompt."""
    return driver.key(driver.prompt(pages))


def objects(driver: RankDriver, pool: str, pages: Sequence[int] = PROMPT) -> list[str]:
    """The object key of each page of the prompt in one pool, on this rank."""
    return driver.storage_keys(pool, prompt_key(driver, pages))


def presence(driver: RankDriver, pages: Sequence[int] = PROMPT) -> dict[str, list[bool]]:
    """Which pages of the prompt this rank can read."""
    return {pool: store(driver).readable(objects(driver, pool, pages)) for pool in pools(driver)}


def put_in_storage(driver: RankDriver, pages: Sequence[int] = PROMPT, *, with_prefixes: bool) -> None:
    """Cache the prompt until it is stored, and reset the cache.

    `with_prefixes`: cache each prefix first, so that each page has a state.
    """
    for count in range(1 if with_prefixes else len(pages), len(pages) + 1):
        driver.put(prompt_key(driver, pages[:count]))
        driver.drain()
    missing = [pool for pool, there in presence(driver, pages).items() if not there[-1]]
    assert not missing, f"FETCH-9: expected all of {pages} in storage, its last page lacks {missing}"
    driver.reset()


def begin(driver: RankDriver, pages: Sequence[int] = PROMPT) -> Handle:
    """Start a prefetch of a prompt; returns its ticket."""
    ticket = driver.prefetch(prompt_key(driver, pages))
    assert ticket is not None, (
        f"FETCH-1: {len(pages)} pages are above the threshold and below the limit: expected a ticket, got None"
    )
    return ticket


def ask_for_pages(driver: RankDriver, pages: Sequence[int] = PROMPT) -> Handle:
    """Start a prefetch, complete its query on every rank, and let a step request its pages."""
    ticket = begin(driver, pages)
    driver.step()
    driver.let_end(StorageKind.QUERY)
    driver.step()
    return ticket


def advance_batches(driver: RankDriver, count: int) -> int:
    """Let storage read so many batches of the only pending prefetch; returns the number of its batches."""
    prefetches = driver.pending(StorageKind.PREFETCH)
    assert len(prefetches) == 1, f"FETCH-3: expected one pending read of pages, got {prefetches}"
    for _ in range(min(count, prefetches[0].units)):
        driver.advance(prefetches[0].ticket)
    return prefetches[0].units


def slots_held_by_prefetches(driver: RankDriver) -> dict[str, int]:
    """Host slots that belong to prefetches, by component."""
    storage = driver.snapshot().storage
    found = dict.fromkeys(driver.config.components, 0)
    for fetch in storage.fetches if storage is not None else ():
        for component, slots in fetch.host.items():
            found[component] += len(slots)
    return {component: count for component, count in found.items() if count}


def taken_on_host(driver: RankDriver) -> dict[str, int]:
    """Host slots that are not free, by component."""
    host = driver.snapshot().host
    taken = {name: pool.capacity - len(pool.free) for name, pool in host.pools.items()} if host is not None else {}
    return {name: count for name, count in taken.items() if count}


def brought(driver: RankDriver, ticket: Handle, pages: Sequence[int] = PROMPT) -> int:
    """The number of pages that an ended prefetch brought. They are loaded, and their bytes are compared."""
    tokens = driver.check_prefetch(ticket)
    assert tokens is not None, "FETCH-3: nothing is under way: expected the prefetch to have ended, got None"
    reached = len(driver.load(prompt_key(driver, pages)).device_indices)
    assert reached == tokens, f"FETCH-4: expected a request to find the {tokens} prefetched tokens, got {reached}"
    return tokens // driver.config.page_size
