"""Prompts in storage: how a test stores them, which objects are there, and how a prefetch brings them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import StorageConfig
from hicache.testing.adapter import Capability, Pending
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.pools import component_of
from hicache.testing.snapshot import StorageView
from hicache.testing.storage.scripted import Store, store_of
from hicache.testing.stored import restorable_pages
from hicache.types import SHARED, Handle, Namespace, Pool, StopPolicy, StorageKind

from .scenario import evict_all, evict_host, host_config, open_variant, put_and_back_up, window_pages
from .tree_view import Pages, nodes, tier_views

PROMPT = (1, 2, 3, 4)
"""Four pages: more than a window."""

PREFIXES = tuple(PROMPT[:count] for count in range(1, len(PROMPT) + 1))
"""All prefixes of the prompt. With MAMBA a state is stored after each page if all are cached, the shortest first."""

PAIR = (1, 2)
"""The first two pages of the prompt: one node with any components, since they are no longer than a window."""

OTHER = (7, 8, 9)
"""A prompt that shares no prefix with the others."""

LONG = tuple(range(1, 301))
"""A prompt whose pages are stored, and read, in three batches."""


def store(driver: Driver) -> Store:
    """The scripted store that the cache's backend writes to."""
    found = store_of(driver.config)
    assert found is not None, f"{driver.config.name} keeps its pages where a test can see them"
    return found


def storage_config(driver: Driver) -> StorageConfig:
    """The storage tier of the configuration."""
    assert driver.config.storage is not None, f"{driver.config.name} has storage"
    return driver.config.storage


def storage_view(driver: Driver) -> StorageView:
    """The storage tier as the cache shows it."""
    found = driver.snapshot().storage
    assert found is not None, f"{driver.config.name} has storage"
    return found


def pools(driver: Driver) -> list[str]:
    """The pools that have objects in storage."""
    return [*component_of(driver.config)]


def object_keys(driver: Driver, pool: str, pages: Sequence[int], namespace: Namespace = SHARED) -> list[str]:
    """The full key of the object of each page of a prompt in one pool; for MAMBA of the state after the page."""
    return driver.storage_keys(pool, driver.key(driver.prompt(pages), namespace))


def in_storage(driver: Driver, pages: Sequence[int]) -> dict[str, list[bool]]:
    """Of each pool, which pages of a prompt can be read from storage."""
    return {pool: store(driver).readable(object_keys(driver, pool, pages)) for pool in pools(driver)}


def stored_components(driver: Driver) -> dict[Pages, frozenset[str]]:
    """The components of each node that are marked as stored, by the pages up to the node's end."""
    given = storage_view(driver).persisted
    assert given is not None, "FETCH-9: with MARKS a snapshot shows which components of each node are stored"
    shared = [node.namespace == SHARED for node in driver.snapshot().nodes]
    marks = [mark for mark, is_shared in zip(given, shared, strict=True) if is_shared]
    return dict(zip(tier_views(driver), marks, strict=True))


def shows_marks(driver: Driver) -> bool:
    """Whether a snapshot shows which components of each node are stored."""
    return Capability.MARKS in driver.adapter.capabilities


def put_in_storage(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, in this order, and evict them from the device, until storage has all of their data."""
    for pages in prompts:
        put_and_back_up(driver, pages)
        evict_all(driver)
        driver.drain()
    for pages in prompts:
        missing = [page for page, is_there in enumerate(in_storage(driver, pages)[Pool.KV]) if not is_there]
        assert not missing, f"FETCH-9: expected all of {tuple(pages)} in storage, pages {missing} are missing"


def put_in_storage_alone(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts until storage has them, and start a new cache over the same store."""
    put_in_storage(driver, *prompts)
    driver.restart()


def evict_both_tiers(driver: Driver) -> None:
    """Evict everything from the device and from the host."""
    evict_all(driver)
    driver.drain()
    evict_host(driver)
    assert not nodes(driver), f"EVICT-8: nothing is locked: expected an empty tree, got {nodes(driver).keys()}"


def begin_prefetch(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> Handle:
    """Start a prefetch of a prompt; returns its ticket."""
    ticket = driver.prefetch(driver.key(driver.prompt(pages), namespace))
    assert ticket is not None, (
        f"FETCH-1: {tuple(pages)} is above the threshold and below the limit: expected a ticket, got None"
    )
    return ticket


def prefetched_pages(driver: Driver, ticket: Handle) -> int:
    """The number of pages that a prefetch brought; it must have ended."""
    tokens = driver.check_prefetch(ticket)
    assert tokens is not None, (
        "FETCH-3: nothing is under way: expected the prefetch to have ended, but check_prefetch gives None"
    )
    return tokens // driver.config.page_size


def prefetch(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
    """Prefetch a prompt, and drain; the number of pages that the prefetch brought."""
    ticket = begin_prefetch(driver, pages, namespace)
    driver.drain()
    return prefetched_pages(driver, ticket)


def expected_pages(driver: Driver, pages: Sequence[int], anchor: int = 0) -> int:
    """The number of pages past the anchor that a prefetch must bring, by the objects that can be read now."""
    present = {pool: there[anchor:] for pool, there in in_storage(driver, pages).items()}
    return restorable_pages(present, window_pages(driver.config))


def pending_job(driver: Driver, kind: StorageKind) -> Pending:
    """The only pending storage job of a kind."""
    found = driver.pending(kind)
    assert len(found) == 1, f"FLOW-4: expected one pending {kind.value}, got {found}"
    return found[0]


def complete_job(driver: Driver, kind: StorageKind) -> None:
    """Complete the only pending storage job of a kind, and let a step take it over."""
    driver.complete(pending_job(driver, kind).ticket)
    driver.step()


def slots_held_by_prefetches(driver: Driver) -> dict[str, int]:
    """Host slots that belong to prefetches, by component."""
    found = dict.fromkeys(driver.config.components, 0)
    for one in storage_view(driver).fetches:
        for component, slots in one.host.items():
            found[component] += len(slots)
    return {component: count for component, count in found.items() if count}


@contextmanager
def storage_variant(
    driver: Driver,
    *,
    host: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    storage: Mapping[str, Any] | None = None,
    is_closed: bool = False,
    **changes: Any,
) -> Iterator[Driver]:
    """A driver of an empty cache over the same store that differs in these fields of each tier; closed at the end.

    `is_closed`: the test closes the cache, and there is nothing to check afterwards.
    """
    tier = storage_config(driver)
    below = replace(tier, **(extra or {}), **(storage or {}))
    other = open_variant(driver, **changes, host=replace(host_config(driver.config), **(host or {})), storage=below)
    try:
        yield other
        if not is_closed:
            other.check()
    finally:
        other.adapter.close()


def long_prompt_variant(
    driver: Driver, stop_policy: StopPolicy = StopPolicy.WAIT_COMPLETE
) -> AbstractContextManager[Driver]:
    """A cache with room for the long prompt on both tiers, and a prefetch limit that allows it."""
    tokens = dict.fromkeys(driver.config.components, 320 * driver.config.page_size)
    changes = {"limit_tokens": tokens["full"], "stop_policy": stop_policy}
    return storage_variant(driver, host={"capacity_tokens": tokens}, capacity_tokens=tokens, storage=changes)


PrefetchStage = Callable[[Driver], None]


def queued(_: Driver) -> None:
    """Storage was not queried yet."""


def querying(driver: Driver) -> None:
    """Storage is queried for the pages it has."""
    driver.step()
    pending_job(driver, StorageKind.QUERY)


def known(driver: Driver) -> None:
    """Storage has answered the query, and no step has taken the answer over."""
    querying(driver)
    driver.complete(pending_job(driver, StorageKind.QUERY).ticket)


def fetching(driver: Driver) -> None:
    """Storage is asked to read pages."""
    querying(driver)
    complete_job(driver, StorageKind.QUERY)
    pending_job(driver, StorageKind.PREFETCH)


def arrived(driver: Driver) -> None:
    """All pages are read, and no step has taken them over."""
    fetching(driver)
    driver.complete(pending_job(driver, StorageKind.PREFETCH).ticket)


PREFETCH_STAGES = pytest.mark.parametrize(
    "stage", [queued, querying, known, fetching, arrived], ids=lambda stage: stage.__name__
)
