"""What a scheduler does, over prompts of whole pages that are named by numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache.config import CacheConfig
from hicache.testing.driving.driver import Driver
from hicache.types import NO_SLOTS, Component, Handle, InsertResult, Key, Slots

FULL, SWA, MAMBA = (component.value for component in Component)


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """An insert of slots that the caller computed alone: what it gave, and what became of it."""

    slots: Slots
    partners: Slots
    state: int | None
    result: InsertResult


def key_of(driver: Driver, pages: Sequence[int]) -> Key:
    """The prompt of these pages."""
    return driver.key(driver.prompt(pages))


def put(
    driver: Driver, pages: Sequence[int], *, passed: int = 0, with_state: bool = True, priority: int = 0
) -> InsertResult:
    """Cache a prompt as a request does that matched it first; the window has left its first `passed` pages."""
    window_start = passed * driver.config.page_size
    return driver.put(key_of(driver, pages), window_start=window_start, with_state=with_state, priority=priority)


def put_prefixes(driver: Driver, pages: Sequence[int]) -> None:
    """Cache each prefix of a prompt, the shortest first, so that with MAMBA each has its state."""
    for count in range(1, len(pages) + 1):
        put(driver, pages[:count])


def offer(driver: Driver, pages: Sequence[int], *, passed: int = 0, with_state: bool = True) -> Offer:
    """Insert a prompt that was computed in slots of its own, as a request does that found nothing when it came."""
    key, size = key_of(driver, pages), driver.config.page_size
    slots = driver.allocate(len(pages) * size)
    assert slots is not None, f"room for {len(pages)} pages is part of the scene"
    if passed and has(driver, SWA):
        driver.release_window(slots[: passed * size])
    partners = driver.adapter.partners(slots) if has(driver, SWA) else NO_SLOTS
    driver.write(key, slots, 0)
    state = driver.allocate_state() if with_state and has(driver, MAMBA) else None
    if state is not None:
        driver.write_state(key, state)
    result = driver.insert(key, slots, shared=0, window_start=passed * size, state=state)
    if state is not None and not result.state_adopted:
        driver.free_state(state)
    return Offer(slots, partners, state, result)


def find(driver: Driver, pages: Sequence[int]) -> Handle:
    """The node where a prompt ends that is cached as a whole. It counts as no request."""
    found = driver.match(key_of(driver, pages), chunked=True)
    hit = len(found.device_indices) // driver.config.page_size
    assert hit == len(pages), f"MATCH-1: {len(pages)} pages {tuple(pages)} are cached, {hit} were found"
    return found.device_anchor


def lock(driver: Driver, pages: Sequence[int]) -> Handle:
    """Lock a prompt that is cached as a whole; returns the receipt."""
    return driver.lock(find(driver, pages))


def evict_all(driver: Driver, *components: str) -> None:
    """Evict all that can be evicted of these components, or of every one."""
    for component in components or driver.config.components:
        driver.evict(component, driver.config.capacity_tokens[component])


def has(driver: Driver, component: str) -> bool:
    """Whether the cache under test was opened with a component."""
    return component in driver.config.components


def unit(driver: Driver, component: str) -> int:
    """Slots of one page of a component; a state is a page of one slot."""
    return 1 if component == MAMBA else driver.config.page_size


def window_pages(config: CacheConfig) -> int:
    """Pages that one window reaches into."""
    return -(-(config.sliding_window_size or 0) // config.page_size)
