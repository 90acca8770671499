"""Prompts in storage: how they come there, what is there of them, and how they come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hicache.config import StorageConfig
from hicache.testing.adapter import Capability
from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import StorageView
from hicache.testing.storage.scripted import store_of
from hicache.testing.storage.store import Store
from hicache.testing.storage_verbs import PendingStorage
from hicache.testing.stored import restorable_pages
from hicache.types import SHARED, Handle, Namespace, Pool, StorageKind

from .host_eviction import evict_host
from .host_trees import views
from .hosts import host_of
from .reopening import reopened
from .residences import put_through
from .trees import Pages, nodes
from .verbs import MAMBA, SWA, evict_all, has, window_pages


def store(driver: Driver) -> Store:
    """The store behind the cache."""
    found = store_of(driver.config)
    assert found is not None, f"{driver.config.name} keeps its pages where a test can see them"
    return found


def storage_of(driver: Driver) -> StorageConfig:
    """The storage tier of the configuration."""
    assert driver.config.storage is not None, f"{driver.config.name} has storage"
    return driver.config.storage


def view(driver: Driver) -> StorageView:
    """The storage tier as the cache shows it."""
    found = driver.snapshot().storage
    assert found is not None, f"{driver.config.name} has storage"
    return found


def pools(driver: Driver) -> list[Pool]:
    """The pools of which storage keeps objects."""
    shown = {Pool.INDEXER: Pool.INDEXER in driver.config.sidecars, Pool.SWA: has(driver, SWA)}
    return [Pool.KV, *(pool for pool, is_there in (shown | {Pool.MAMBA: has(driver, MAMBA)}).items() if is_there)]


def objects(driver: Driver, pool: Pool, pages: Sequence[int], namespace: Namespace = SHARED) -> list[str]:
    """The full key of each page of a prompt in one pool; for MAMBA of the state after it."""
    return driver.storage_keys(pool, driver.key(driver.prompt(pages), namespace))


def in_storage(driver: Driver, pages: Sequence[int]) -> dict[Pool, list[bool]]:
    """Which pages of a prompt storage could deliver, of each pool."""
    return {pool: store(driver).readable(objects(driver, pool, pages)) for pool in pools(driver)}


def persisted(driver: Driver) -> dict[Pages, frozenset[str]]:
    """What counts as persisted of each node of the shared namespace, by the pages up to its end."""
    given = view(driver).persisted
    assert given is not None, "FETCH-9: with MARKS nodes say what storage was given of them"
    shared = [node.namespace == SHARED for node in driver.snapshot().nodes]
    marks = [mark for mark, is_shared in zip(given, shared, strict=True) if is_shared]
    return dict(zip(views(driver), marks, strict=True))


def keeps_marks(driver: Driver) -> bool:
    """Whether nodes say what storage was given of them."""
    return Capability.MARKS in driver.adapter.capabilities


def put_in_storage(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, in this order, and wait until storage has all that they have."""
    for pages in prompts:
        put_through(driver, pages)
        evict_all(driver)
        driver.drain()
    for pages in prompts:
        missing = [page for page, is_there in enumerate(in_storage(driver, pages)[Pool.KV]) if not is_there]
        assert not missing, f"FETCH-9: {tuple(pages)} was to lie in storage, pages {missing} do not"


def put_in_storage_alone(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, and begin again with nothing but what storage has."""
    put_in_storage(driver, *prompts)
    driver.restart()


def lose_tiers(driver: Driver) -> None:
    """Evict all from the device and from the host."""
    evict_all(driver)
    driver.drain()
    evict_host(driver)
    assert not nodes(driver), f"EVICT-8: nothing is locked, left are {nodes(driver).keys()}"


def begin(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> Handle:
    """A prefetch of a prompt begins."""
    ticket = driver.prefetch(driver.key(driver.prompt(pages), namespace))
    assert ticket is not None, f"FETCH-1: {tuple(pages)} is neither too little nor too much, yet it was refused"
    return ticket


def check(driver: Driver, ticket: Handle) -> int:
    """The pages that a prefetch brought which has ended."""
    tokens = driver.check_prefetch(ticket)
    assert tokens is not None, "FETCH-3: nothing is under way any more, and the prefetch has not ended"
    return tokens // driver.config.page_size


def fetch(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
    """Fetch a prompt from beginning to end; the pages that it brought."""
    ticket = begin(driver, pages, namespace)
    driver.drain()
    return check(driver, ticket)


def expected_pages(driver: Driver, pages: Sequence[int], anchor: int = 0) -> int:
    """The pages past the anchor that storage must be able to bring, by what is there now."""
    present = {pool: there[anchor:] for pool, there in in_storage(driver, pages).items()}
    return restorable_pages(present, window_pages(driver.config))


def asked(driver: Driver, kind: StorageKind) -> PendingStorage:
    """The one thing of a kind that storage is asked."""
    found = [one for one in driver.pending_storage() if one.kind is kind]
    assert len(found) == 1, f"FLOW-4: one {kind.value} is pending, got {found}"
    return found[0]


def answer(driver: Driver, kind: StorageKind) -> None:
    """Storage does all of the one thing of a kind that it is asked, and the cache takes it over."""
    driver.complete_storage(asked(driver, kind).ticket)
    driver.step()


def held_by_fetches(driver: Driver) -> dict[str, int]:
    """Host slots that belong to prefetches, by component."""
    found = dict.fromkeys(driver.config.components, 0)
    for one in view(driver).fetches:
        for component, slots in one.host.items():
            found[component] += len(slots)
    return {component: count for component, count in found.items() if count}


@contextmanager
def storing(
    driver: Driver,
    *,
    host: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    storage: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Iterator[Driver]:
    """A driver of an empty cache over the same store, that differs in these fields of each tier; closed at the end."""
    tier = storage_of(driver)
    below = replace(tier, **(extra or {}), **(storage or {}))
    other = reopened(driver, **changes, host=replace(host_of(driver.config), **(host or {})), storage=below)
    try:
        yield other
        other.check()
    finally:
        other.adapter.close()


def fetch_without(driver: Driver, prompt: Pages, pool: Pool, page: int) -> tuple[int, int]:
    """Begin to fetch a prompt on an empty cache, and lose one page's object on the way.

    The pages that came, and those that can be used without it. Afterwards all is in storage again.
    """
    driver.reset()
    kept = dict(store(driver).objects)
    ticket = begin(driver, prompt)
    store(driver).corrupt([objects(driver, pool, prompt)[page]])
    expected = expected_pages(driver, prompt)
    driver.drain()
    came = check(driver, ticket)
    store(driver).restore(kept)
    return came, expected
