"""What a scheduler does, over prompts of whole pages that are named by numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.driving.driver import Driver
from hicache.types import NO_SLOTS, Component, Handle, InsertResult, Key, Slots

from .tree_view import Pages, device_slots, host_slots, prefixes

FULL, SWA, MAMBA = (component.value for component in Component)


@dataclass(frozen=True, slots=True, eq=False)
class FreshInsert:
    """An insert of a prompt that shares no slot with the tree: the slots and the state it gave, and its result."""

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
    """Match a prompt, compute the rest and insert it. `passed`: the first pages are before the request's window."""
    window_start = passed * driver.config.page_size
    return driver.put(key_of(driver, pages), window_start=window_start, with_state=with_state, priority=priority)


def put_prefixes(driver: Driver, pages: Sequence[int]) -> None:
    """Cache each prefix of a prompt, the shortest first, so that with MAMBA each has its state."""
    for count in range(1, len(pages) + 1):
        put(driver, pages[:count])


def insert_fresh(driver: Driver, pages: Sequence[int], *, passed: int = 0, with_state: bool = True) -> FreshInsert:
    """Insert a prompt from newly allocated slots only, as a request does whose match found nothing."""
    key, size = key_of(driver, pages), driver.config.page_size
    slots = driver.allocate(len(pages) * size)
    assert slots is not None, f"the scenario needs free slots for {len(pages)} pages, got none"
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
    return FreshInsert(slots, partners, state, result)


def find(driver: Driver, pages: Sequence[int]) -> Handle:
    """The node at the end of a prompt that is cached in full on the device. The match is not counted as a hit."""
    found = driver.match(key_of(driver, pages), chunked=True)
    hit = len(found.device_indices) // driver.config.page_size
    assert hit == len(pages), f"MATCH-1: {tuple(pages)} is cached: expected {len(pages)} pages on the device, got {hit}"
    return found.device_anchor


def lock(driver: Driver, pages: Sequence[int]) -> Handle:
    """Lock a prompt that is cached in full on the device; returns the receipt."""
    return driver.lock(find(driver, pages))


def evict_all(driver: Driver, *components: str) -> None:
    """Evict from the device everything that can be evicted of these components, by default of all."""
    for component in components or driver.config.components:
        driver.evict(component, driver.config.capacity_tokens[component])


def put_on_both(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, in this order, so that all of their data is on the device and on the host."""
    if _has_policy(driver, WritePolicy.WRITE_BACK):
        put_on_host(driver, *prompts)
        for pages in prompts:
            driver.load(key_of(driver, pages))
    else:
        put_and_back_up(driver, *prompts)
    missing = _prefixes(prompts) - (device_slots(driver, FULL).keys() & host_slots(driver, FULL).keys())
    assert not missing, f"HOST-1: expected {prompts} on both tiers, {missing} is missing on one of them"


def put_on_host(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, in this order, and evict everything from the device, so that their data is on the host alone."""
    put_and_back_up(driver, *prompts)
    evict_all(driver)
    missing = _prefixes(prompts) - host_slots(driver, FULL).keys()
    assert not missing, f"EVICT-7: expected {prompts} on the host, {missing} is missing"
    left = device_slots(driver, FULL).keys()
    assert not left, f"EVICT-1: expected an empty device after all was evicted, got {left}"


def put_and_back_up(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts as often as the write policy needs to back them up; write_back backs up only at an eviction."""
    for pages in prompts:
        put(driver, pages)
        if _has_policy(driver, WritePolicy.WRITE_THROUGH_SELECTIVE):
            put(driver, pages)
    driver.drain()


def has(driver: Driver, component: str) -> bool:
    """Whether the cache under test has a component."""
    return component in driver.config.components


def unit(driver: Driver, component: str) -> int:
    """Slots of one page of a component; a state counts as a page of one slot."""
    return 1 if component == MAMBA else driver.config.page_size


def window_pages(config: CacheConfig) -> int:
    """How many pages the window of one token covers, wholly or in part."""
    return -(-(config.sliding_window_size or 0) // config.page_size)


def _prefixes(prompts: Iterable[Sequence[int]]) -> set[Pages]:
    return {prefix for pages in prompts for prefix in prefixes(*pages)}


def _has_policy(driver: Driver, policy: WritePolicy) -> bool:
    return driver.config.host is not None and driver.config.host.write_policy is policy
