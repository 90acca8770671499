"""A rank is lost in the middle of a verb that makes room: this one raises, and has lost no slot and kept no lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hicache.config import CacheConfig, WritePolicy
from hicache.errors import RankError
from hicache.parallel.group import Reduction
from hicache.testing.adapter import Capability
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.types import Component, Key, Pool

ROOM_PAGES = 8


class Peer:
    """A group whose other rank gives what this one gives, until it is gone."""

    name, rank, size = "tp", 0, 2

    def __init__(self) -> None:
        self.is_gone = False

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        if self.is_gone:
            raise RankError(f"rank 1 of tp did not come to {reduction.value} {purpose}", "tp", (1,))
        return list(values)

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        return list(values)

    def barrier(self, purpose: str) -> None:
        """The other rank is always there."""


def write_back_config() -> CacheConfig:
    """All components and sidecars, small, with write_back."""
    config = next(
        config
        for config in standard_configurations(frozenset(Capability))
        if config.host is not None
        and config.storage is None
        and config.host.write_policy is WritePolicy.WRITE_BACK
        and len(config.components) == len(Component)
        and Pool.INDEXER in config.sidecars
    )
    room = dict.fromkeys(config.components, ROOM_PAGES * config.page_size) | {Component.MAMBA.value: ROOM_PAGES}
    return replace(config, capacity_tokens=room)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def driver(peer: Peer) -> Driver:
    """Its oldest page is on the host too, the next ones are on the device alone, and no page of the device is free."""
    config = write_back_config()
    driver = Driver(ReferenceAdapter(config, {"tp": peer}), config)
    oldest = page(driver, 1)
    driver.put(oldest)
    driver.evict(Component.FULL, 1)
    driver.load(oldest)
    for number in range(2, ROOM_PAGES + 1):
        driver.put(page(driver, number))
    free = {name: len(pool.free) for name, pool in driver.snapshot().pools.items()}
    assert not any(free.values()), f"the device is to be full, free are {free}"
    return driver


def page(driver: Driver, *numbers: int) -> Key:
    return driver.key(driver.prompt(numbers))


def admits(driver: Driver) -> object:
    """What is there of the request is the newest."""
    return driver.adapter.admit(page(driver, ROOM_PAGES, 20, 21))


def evicts(driver: Driver) -> object:
    return driver.adapter.evict(Component.FULL, 3 * driver.config.page_size)


def allocates(driver: Driver) -> object:
    return driver.adapter.allocate(3 * driver.config.page_size)


def takes_states(driver: Driver) -> object:
    return [driver.allocate_state() for _ in range(3)]


def forks(driver: Driver) -> object:
    found = driver.match(page(driver, ROOM_PAGES))
    return [driver.fork_state(found.device_anchor) for _ in range(3)]


def loads(driver: Driver) -> object:
    """The oldest page is on the host alone by now, and what is older than the rest has no copy."""
    found = driver.match(page(driver, 1))
    return driver.adapter.load_back(found.best_match, quota=None)


@pytest.mark.parametrize("verb", [admits, evicts, allocates, takes_states, forks], ids=lambda verb: verb.__name__)
def test_a_verb_that_raises_gives_back_what_it_took(
    driver: Driver, peer: Peer, verb: Callable[[Driver], object]
) -> None:
    peer.is_gone = True
    with pytest.raises(RankError, match="rank 1"):
        verb(driver)
    require_whole(driver, peer)


def test_a_load_that_raises_gives_back_what_it_took(driver: Driver, peer: Peer) -> None:
    driver.evict(Component.FULL, 1)
    assert driver.allocate(driver.config.page_size) is not None, "a page was evicted"
    peer.is_gone = True
    with pytest.raises(RankError, match="rank 1"):
        loads(driver)
    require_whole(driver, peer)


def require_whole(driver: Driver, peer: Peer) -> None:
    """Every law holds; and if the other rank came back, all would end, and nothing would be locked."""
    driver.check()
    peer.is_gone = False
    driver.drain()
    snapshot = driver.snapshot()
    assert snapshot.host is not None, f"{driver.config.name} has a host tier"
    locks = [view.locks for view in snapshot.nodes] + [view.locks for view in snapshot.host.nodes]
    locked = [dict(counts) for counts in locks if any(counts.values())]
    assert not locked, f"RANK-8: nothing is under way, and nobody holds a lock; still locked are {locked}"
    driver.adapter.close()
