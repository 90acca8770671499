"""Transfers and storage requests that a test steps by one interface: what is pending, in which order, and its laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import Pending
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.storage.scripted import store_of
from hicache.types import Handle, Pool, StorageKind, TransferKind

NAME = "full/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped"

LONG = range(1, 301)
"""A prompt whose pages are stored in three batches."""


@pytest.fixture
def config() -> CacheConfig:
    """FULL on three tiers, with room for the long prompt and a stepped executor of each."""
    found = next(one for one in standard_configurations(ReferenceAdapter.capabilities) if one.name == NAME)
    assert found.host is not None, f"{NAME} has a host tier"
    tokens = {"full": 320 * found.page_size}
    return replace(found, capacity_tokens=tokens, host=replace(found.host, capacity_tokens=tokens))


def open_driver(config: CacheConfig, adapter: type[ReferenceAdapter] = ReferenceAdapter) -> Driver:
    """An empty cache on an empty store."""
    store = store_of(config)
    assert store is not None, f"{NAME} keeps its pages in a scripted store"
    store.empty()
    return Driver(adapter(config), config)


def with_executors(config: CacheConfig, host: ExecutorKind, storage: ExecutorKind) -> CacheConfig:
    assert config.host is not None, "there is a host tier"
    assert config.storage is not None, "there is a storage tier"
    tiers = replace(config.host, executor=host), replace(config.storage, executor=storage)
    return replace(config, host=tiers[0], storage=tiers[1])


def back_up(driver: Driver, pages: Sequence[int]) -> None:
    """Insert a prompt, and start its backup."""
    driver.put(driver.key(driver.prompt(pages)))
    driver.step()


def begin_store(driver: Driver, pages: Sequence[int]) -> None:
    """Insert a prompt, back it up, and start to store it."""
    back_up(driver, pages)
    for one in driver.pending(TransferKind.BACKUP):
        driver.complete(one.ticket)
    driver.step()


def kinds(pending: Sequence[Pending]) -> list[str]:
    return [one.kind.name for one in pending]


def test_transfers_and_storage_requests_are_pending_together_oldest_first(config: CacheConfig) -> None:
    driver = open_driver(config)
    back_up(driver, [1, 2])
    back_up(driver, [7, 8])
    first, second = driver.pending()
    driver.complete(first.ticket)
    driver.step()
    assert kinds(driver.pending()) == ["BACKUP", "STORE"], "the second backup started before the first was stored"
    driver.complete(second.ticket)
    back_up(driver, [4])
    assert kinds(driver.pending()) == ["STORE", "STORE", "BACKUP"], "the last backup started last"
    assert kinds(driver.pending(*TransferKind)) == ["BACKUP"], "of the transfers alone"
    assert kinds(driver.pending(StorageKind.STORE)) == ["STORE", "STORE"], "of one kind alone"
    assert not driver.pending(TransferKind.LOAD), "nothing is loaded"
    tickets = [one.ticket for one in driver.pending()]
    assert len(set(tickets)) == 3, f"expected a ticket of its own for each, got {tickets}"
    driver.adapter.close()


def test_a_transfer_advances_by_layers_and_a_storage_request_by_batches(config: CacheConfig) -> None:
    driver = open_driver(config)
    back_up(driver, LONG)
    (backup,) = driver.pending()
    layers = driver.adapter.layers(Pool.KV)
    assert (backup.parts, backup.units, backup.units_done) == (1, layers, 0), f"nothing was copied yet, got {backup}"
    driver.advance(backup.ticket)
    assert [one.units_done for one in driver.pending()] == [1], f"one layer was copied, got {driver.pending()}"
    begin_store(driver, [])
    (stored,) = driver.pending()
    assert (stored.parts, stored.units, stored.units_done) == (1, 3, 0), f"300 pages are three batches, got {stored}"
    driver.advance(stored.ticket)
    assert [one.units_done for one in driver.pending()] == [1], f"one batch was done, got {driver.pending()}"
    driver.advance(stored.ticket)
    driver.complete(stored.ticket)
    assert not driver.pending(), f"all batches were done, got {driver.pending()}"
    with pytest.raises(ValueError, match=f"no transfer or storage job {stored.ticket} is pending"):
        driver.adapter.complete(stored.ticket)
    driver.adapter.close()


def test_transfers_that_threads_make_are_not_pending(config: CacheConfig) -> None:
    driver = open_driver(with_executors(config, ExecutorKind.THREADED, ExecutorKind.STEPPED))
    back_up(driver, [1, 2])
    assert not driver.pending(), "a thread makes the backup"
    assert isinstance(driver.adapter, ReferenceAdapter), "the driver has the reference"
    host = driver.adapter.cache.host
    assert host is not None, "it has a host tier"
    host.controller.wait(TransferKind.BACKUP)
    driver.step()
    assert kinds(driver.pending()) == ["STORE"], "the backup was applied, and storage is asked"
    driver.complete(driver.pending()[0].ticket)
    assert not driver.pending(), f"storage has answered, got {driver.pending()}"
    driver.adapter.close()


def test_storage_requests_that_threads_make_are_not_pending(config: CacheConfig) -> None:
    driver = open_driver(with_executors(config, ExecutorKind.STEPPED, ExecutorKind.THREADED))
    back_up(driver, [1, 2])
    assert kinds(driver.pending()) == ["BACKUP"], "the test moves the backup"
    driver.complete(driver.pending()[0].ticket)
    driver.step()
    assert not driver.pending(), "a thread asks storage"
    driver.adapter.close()


class _DoesTwo(ReferenceAdapter):
    """Two units are done at once."""

    def advance(self, ticket: int) -> None:
        super().advance(ticket)
        super().advance(ticket)


class _DoesNothing(ReferenceAdapter):
    """No unit is done."""

    def advance(self, ticket: int) -> None:
        del ticket


class _StaysPending(ReferenceAdapter):
    """A completed storage request stays pending."""

    def complete(self, ticket: int) -> None:
        if any(one.ticket == ticket and isinstance(one.kind, TransferKind) for one in self.pending()):
            super().complete(ticket)


class _ShowsTheEnded(ReferenceAdapter):
    """A storage request of which all batches are done is still shown."""

    def pending(self) -> Sequence[Pending]:
        return [
            replace(one, units_done=one.units) if isinstance(one.kind, StorageKind) else one
            for one in super().pending()
        ]


@pytest.mark.parametrize(
    ("adapter", "step", "message"),
    [
        (_DoesTwo, Driver.advance, "FETCH-3: advance of a persist: expected 1 of 3 units done, got 2 of 3"),
        (_DoesNothing, Driver.advance, "FETCH-3: advance of a persist: expected 1 of 3 units done, got 0 of 3"),
        (_StaysPending, Driver.complete, "FLOW-4: complete: expected a persist that has ended"),
        (_ShowsTheEnded, Driver.advance, "FETCH-3: pending: expected at least one part, and fewer units done than all"),
    ],
)
def test_a_defect_of_stepped_storage_is_found(
    config: CacheConfig, adapter: type[ReferenceAdapter], step: Callable[[Driver, Handle], None], message: str
) -> None:
    driver = open_driver(config, adapter)
    begin_store(driver, LONG)
    (stored,) = driver.adapter.pending()
    with pytest.raises(AssertionError, match=message):
        step(driver, stored.ticket)
    driver.adapter.close()
