"""What a scheduler does with a cache, over prompts of whole pages that are named by numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from hicache.config import CacheConfig, HostConfig, WritePolicy
from hicache.testing.adapter import Admission, CacheAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.types import NO_SLOTS, SHARED, Component, EvictResult, Handle, InsertResult, Key, Namespace, Slots

from .tree_view import Pages, device_slots, host_slots, prefixes

FULL, SWA, MAMBA = (component.value for component in Component)

FORWARD = (WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE)
"""The policies that back up before an eviction."""


@dataclass(frozen=True, slots=True, eq=False)
class FreshInsert:
    """An insert of a prompt that shares no slot with the tree: the slots and the state it gave, and its result."""

    slots: Slots
    partners: Slots
    state: int | None
    result: InsertResult


class TierHits(NamedTuple):
    """Pages that are found on the device, and the pages after them that are on the host alone."""

    device: int
    host: int


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


def use(driver: Driver, pages: Sequence[int]) -> None:
    """A request uses a prompt: it matches the prompt, locks what is cached of it, and releases the lock."""
    driver.unlock(driver.lock(driver.match(key_of(driver, pages)).device_anchor))


def find(driver: Driver, pages: Sequence[int]) -> Handle:
    """The node at the end of a prompt that is cached in full on the device. The match is not counted as a hit."""
    found = driver.match(key_of(driver, pages), chunked=True)
    hit = len(found.device_indices) // driver.config.page_size
    assert hit == len(pages), f"MATCH-1: {tuple(pages)} is cached: expected {len(pages)} pages on the device, got {hit}"
    return found.device_anchor


def hit_pages(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
    """Match a prompt, as a request that counts as a hit; the number of pages found on the device."""
    found = driver.match(driver.key(driver.prompt(pages), namespace))
    return len(found.device_indices) // driver.config.page_size


def tier_hits(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> TierHits:
    """The pages of a prompt that are found on each tier. The match is not counted as a hit."""
    found = driver.match(driver.key(driver.prompt(pages), namespace), chunked=True)
    size = driver.config.page_size
    return TierHits(len(found.device_indices) // size, found.host_hit_length // size)


def best_match(driver: Driver, pages: Sequence[int]) -> Handle:
    """The node at the end of a prompt that is cached in full, on either tier.

    No match counts FULL data on the device past the anchor, where a state or a window is missing: a prompt with such
    data is treated as not cached in full.
    """
    found = driver.match(key_of(driver, pages), chunked=True)
    hit = (len(found.device_indices) + found.host_hit_length) // driver.config.page_size
    assert hit == len(pages), f"MATCH-1: {tuple(pages)} is cached on some tier: expected {len(pages)} pages, got {hit}"
    return found.best_match


def lock(driver: Driver, pages: Sequence[int]) -> Handle:
    """Lock a prompt that is cached in full on the device; returns the receipt."""
    return driver.lock(find(driver, pages))


def evict_all(driver: Driver, *components: str) -> None:
    """Evict from the device everything that can be evicted of these components, by default of all."""
    for component in components or driver.config.components:
        driver.evict(component, driver.config.capacity_tokens[component])


def evict_host(driver: Driver, *components: str) -> None:
    """Evict from the host everything that can be evicted of these components, by default of all."""
    capacity_tokens = host_config(driver.config).capacity_tokens
    for component in components or driver.config.components:
        driver.evict_host(component, capacity_tokens[component])


def put_and_back_up(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts as often as the write policy needs to back them up; write_back backs up only at an eviction."""
    for pages in prompts:
        put(driver, pages)
        if has_policy(driver, WritePolicy.WRITE_THROUGH_SELECTIVE):
            put(driver, pages)
    driver.drain()


def put_on_both(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, in this order, so that all of their data is on the device and on the host."""
    if has_policy(driver, WritePolicy.WRITE_BACK):
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


def has(driver: Driver, component: str) -> bool:
    """Whether the cache under test has a component."""
    return component in driver.config.components


def has_policy(driver: Driver, policy: WritePolicy) -> bool:
    """Whether the cache under test backs up to the host by this policy."""
    return driver.config.host is not None and driver.config.host.write_policy is policy


def unit(driver: Driver, component: str) -> int:
    """Slots of one page of a component; a state counts as a page of one slot."""
    return 1 if component == MAMBA else driver.config.page_size


def window_pages(config: CacheConfig) -> int:
    """How many pages the window of one token covers, wholly or in part."""
    return -(-(config.sliding_window_size or 0) // config.page_size)


TOMBSTONE = (1, 2)
"""The prefix that lacks the component."""


def longer_prompt(driver: Driver) -> list[int]:
    """A prompt that continues the tombstone by a whole window, so that it needs no SWA data at the tombstone."""
    return [*TOMBSTONE, *range(3, 3 + max(1, window_pages(driver.config)))]


def make_tombstone(driver: Driver, component: str) -> Handle:
    """Cache the longer prompt, and evict the component of the first two pages; returns their node."""
    put(driver, TOMBSTONE)
    handle = find(driver, TOMBSTONE)
    put(driver, longer_prompt(driver))
    _make_gap(driver, component)
    return handle


def drop_on_device(driver: Driver, component: str) -> None:
    """Cache the longer prompt on both tiers, and evict a component of its first two pages from the device."""
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    _make_gap(driver, component)


def evict_inner(driver: Driver, component: str) -> EvictResult:
    """Evict a component from the device while the longer prompt is locked, so that the prefix alone loses it."""
    receipt = lock(driver, longer_prompt(driver))
    result = driver.evict(component, driver.config.capacity_tokens[component])
    driver.unlock(receipt)
    return result


def evict_inner_from_host(driver: Driver, component: str) -> None:
    """Evict a component from the host while the longer prompt is locked there, so that the prefix alone loses it."""
    receipt = driver.lock_host(best_match(driver, longer_prompt(driver)))
    evict_host(driver, component)
    driver.unlock_host(receipt)


def evicted_with(driver: Driver, component: str) -> set[str]:
    """The components that an inner node loses with this one: itself, and those after it."""
    ranks = [FULL, SWA, MAMBA]
    return set(ranks[ranks.index(component) :]) & set(driver.config.components)


def recompute(driver: Driver) -> None:
    """Another request computes the prefix again, and inserts all of its data."""
    insert_fresh(driver, TOMBSTONE)
    find(driver, TOMBSTONE)


def run(driver: Driver, pages: Sequence[int], tail: int = 0) -> None:
    """Run a request with this prompt from its admission to its end."""
    driver.finish(admit(driver, pages, tail).request)


def cached_pages(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
    """How many pages of a prompt a request would find cached, if it may use all of them."""
    return driver.lookup(driver.key(driver.prompt(pages), namespace)) // driver.config.page_size


def admit(driver: Driver, pages: Sequence[int], tail: int = 0) -> Admission:
    """Admit a request whose prompt is these pages and so many more tokens."""
    admission = driver.admit(driver.key([*driver.prompt(pages), *range(tail)]))
    assert admission is not None, f"REQ-5: expected a prompt of {len(pages)} pages and {tail} tokens to be admitted"
    return admission


def tokens_in_pages(driver: Driver, pages: int) -> int:
    """The number of tokens that make so many whole pages."""
    return pages * driver.config.page_size + int(driver.config.bigram)


def decode(driver: Driver, admission: Admission, pages: Sequence[int]) -> None:
    """Compute all of a request's prompt, and extend it page by page."""
    size = driver.config.page_size
    for page in pages:
        table = driver.extend(admission.request, driver.prompt([page])[-size:])
        assert table is not None, f"REQ-5: there is room for page {page}: expected a longer table, got None"


def allocate_all(driver: Driver) -> Slots:
    """Allocate every slot that is free or evictable in all pools at once."""
    sizes = [sizes for name, sizes in driver.adapter.sizes().items() if name != MAMBA]
    count = min(size.free + size.evictable for size in sizes)
    slots = driver.allocate(count)
    assert slots is not None, f"EVICT-1: {count} slots are free or evictable: expected them, got None"
    return slots


def fill_device(driver: Driver, first_page: int) -> Slots:
    """Allocate every slot that the device can give, and write other data there: pages from this one on."""
    slots = allocate_all(driver)
    count = len(slots) // driver.config.page_size
    driver.write(key_of(driver, range(first_page, first_page + count)), slots, 0)
    return slots


@contextmanager
def leave_only(driver: Driver, component: str, count: int) -> Iterator[None]:
    """Limit the free pages or states of a component to `count` while the block runs.

    Everything evictable is evicted first. The other components keep what is left.
    """
    held, states = NO_SLOTS, list[int]()
    if component == MAMBA:
        states = _allocate_states(driver)
        _free_states(driver, states[:count])
        states = states[count:]
    else:
        held = _allocate_full(driver) if component == FULL else allocate_all(driver)
        given = count * driver.config.page_size
        driver.free(held[:given])
        held = held[given:]
    try:
        yield
    finally:
        driver.free(held)
        _free_states(driver, states)


def open_variant(driver: Driver, **changes: Any) -> Driver:
    """A driver of an empty cache that differs in these fields of CacheConfig."""
    return _opened(type(driver.adapter), replace(driver.config, **changes))


def open_with_window(driver: Driver, pages: int) -> Driver:
    """An empty cache whose window is so many pages long, the last of them only in part if a page has several tokens."""
    return open_variant(driver, sliding_window_size=window_tokens(driver.config, pages))


def open_standard(adapter: type[CacheAdapter], name: str, **changes: Any) -> Driver:
    """A driver of the standard configuration of this name, with these fields of CacheConfig changed."""
    config = next(config for config in standard_configurations(adapter.capabilities) if config.name == name)
    return _opened(adapter, replace(config, **changes))


@contextmanager
def host_variant(driver: Driver, *, host: Mapping[str, Any] | None = None, **changes: Any) -> Iterator[Driver]:
    """A driver of an empty cache that differs in these fields of CacheConfig and of HostConfig; closed at the end."""
    tier = replace(host_config(driver.config), **(host or {}))
    other = open_variant(driver, **changes, host=tier)
    try:
        yield other
        other.check()
    finally:
        other.adapter.close()


def host_config(config: CacheConfig) -> HostConfig:
    """The host tier of a configuration that has one."""
    assert config.host is not None, f"{config.name} has a host tier"
    return config.host


def window_tokens(config: CacheConfig, pages: int) -> int | None:
    """A window so many pages long in tokens, the last page only in part if it has several tokens; None without SWA."""
    return pages * config.page_size - config.page_size // 2 if SWA in config.components else None


def capacity_for(config: CacheConfig, pages: int, states: int) -> dict[str, int]:
    """A capacity of so many pages of each component, and so many states."""
    return {name: states if name == MAMBA else pages * config.page_size for name in config.components}


def _prefixes(prompts: Iterable[Sequence[int]]) -> set[Pages]:
    return {prefix for pages in prompts for prefix in prefixes(*pages)}


def _make_gap(driver: Driver, component: str) -> None:
    evict_inner(driver, component)
    assert TOMBSTONE not in device_slots(driver, component), (
        f"EVICT-3: {component} of {TOMBSTONE} was not locked: expected it to leave the device"
    )


def _allocate_full(driver: Driver) -> Slots:
    """Allocate every FULL slot, and give all SWA partners back."""
    taken = [allocate_all(driver)]
    while has(driver, SWA) and len(taken[-1]):
        driver.release_window(taken[-1])
        taken.append(allocate_all(driver))
    return np.concatenate(taken)


def _allocate_states(driver: Driver) -> list[int]:
    return list(iter(driver.allocate_state, None))


def _free_states(driver: Driver, states: Sequence[int]) -> None:
    for state in states:
        driver.free_state(state)


def _opened(adapter: type[CacheAdapter], config: CacheConfig) -> Driver:
    listed = adapter.configurations()
    if listed is not None and config not in listed:
        pytest.skip(f"{adapter.__name__} lists its configurations, and {config} is not among them")
    return Driver(adapter(config), config)
