"""A rank is lost or fails: verbs and the opening of a cache raise on every rank, and nothing stays locked or open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hicache.cache import UnifiedRadixCache
from hicache.clock import VirtualClock
from hicache.config import CacheConfig, WritePolicy
from hicache.errors import ConfigurationError, RankError
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Reduction
from hicache.runtime import Runtime
from hicache.storage.registry import open_backend
from hicache.testing.adapter import Capability
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.ranks.world import Mesh, Team
from hicache.tests.cache.pools.two_tiers import stored_config
from hicache.transfer.executors import ThreadExecutor
from hicache.transfer.job import CopyWorker
from hicache.types import Component, Key, Pool

# A rank fails while a cache is opened: no cache stays open, and every rank raises an error.

FAILING = 1


class NoRoomError(Exception):
    """An error of a machine that has no more memory, threads or disk space."""


def refuse(*_: Any) -> Any:
    raise NoRoomError("there is none left")


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team(Mesh(tp_size=2, cp_size=1, pp_size=1), timeout_s=20.0)
    yield team
    team.close()


def outcomes(team: Team, openers: Callable[[int], Mapping[str, Any]]) -> list[BaseException | None]:
    """The error of each rank when all open a cache, or None; a cache that was opened is closed again."""

    def opens(rank: int) -> BaseException | None:
        parts = openers(rank)
        agreement = Agreement(team.worlds[rank].groups(dict))
        runtime = Runtime(parts["executor"], parts["storage"], parts["backend"], VirtualClock())
        try:
            agreement.together(
                lambda: UnifiedRadixCache.open(parts["config"], runtime, agreement), UnifiedRadixCache.close, "open"
            ).close()
        except Exception as error:  # noqa: BLE001 - the test compares it
            return error
        return None

    return team.each(opens)


def openers(usual_config: CacheConfig, **failing: Any) -> Callable[[int], Mapping[str, Any]]:
    """By rank, the parts a cache is opened with. `failing`: the parts that differ on rank FAILING."""
    usual = {
        "config": usual_config,
        "executor": lambda kind, copier: ThreadExecutor(kind.value, CopyWorker(copier).rest),
        "storage": lambda name, worker: ThreadExecutor(name, worker.step),
        "backend": lambda scope: open_backend("memory", scope, {}),
    }
    return lambda rank: {**usual, **failing} if rank == FAILING else usual


@pytest.mark.parametrize("part", ["executor", "storage", "backend"])
def test_a_rank_that_cannot_open_a_part_is_named_on_the_others_and_no_thread_stays(team: Team, part: str) -> None:
    before = set(threading.enumerate())
    team.each(lambda _: None)
    own, other = reversed(outcomes(team, openers(stored_config(), **{part: refuse})))
    assert isinstance(own, NoRoomError), f"RANK-2: expected rank {FAILING} to raise its own error, got {own!r}"
    assert isinstance(other, RankError), f"RANK-2: expected the other rank to raise a RankError, got {other!r}"
    expected = f"rank {FAILING} of 2 failed (open)"
    assert str(other) == expected, f"RANK-8: expected {expected!r}, got {other}"
    left = [thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("rank")]
    assert not left, f"expected no thread to run after the failed opening, got {left}"


def test_an_unknown_component_on_one_rank_is_refused_on_every_rank(team: Team) -> None:
    config = stored_config()
    assert config.host is not None, "expected a configuration with a host tier"
    strange = replace(
        config,
        components=(*config.components, "odd"),
        capacity_tokens={**config.capacity_tokens, "odd": config.page_size},
        host=replace(config.host, capacity_tokens={**config.host.capacity_tokens, "odd": config.page_size}),
    )
    for rank, error in enumerate(outcomes(team, openers(config, config=strange))):
        assert isinstance(error, ConfigurationError), f"RANK-2: expected a ConfigurationError on rank {rank}: {error!r}"


# A rank is lost while a verb evicts: on this rank the verb raises RankError, loses no slot and keeps no lock.

ROOM_PAGES = 8


class Peer:
    """A group whose other rank passes the values of this rank, until it is lost."""

    name, rank, size = "tp", 0, 2

    def __init__(self) -> None:
        self.is_lost = False

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        if self.is_lost:
            raise RankError(f"rank 1 of tp did not reach {reduction.value} {purpose}", "tp", (1,))
        return list(values)

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        return list(values)

    def barrier(self, purpose: str) -> None:
        """Return at once: the other rank always reaches a barrier."""


def write_back_config() -> CacheConfig:
    """A configuration with all components, the indexer and write_back, with room for ROOM_PAGES pages."""
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
    """A full device: the oldest page is also on the host, all later pages are on the device alone."""
    config = write_back_config()
    driver = Driver(ReferenceAdapter(config, {"tp": peer}), config)
    oldest = page(driver, 1)
    driver.put(oldest)
    driver.evict(Component.FULL, 1)
    driver.load(oldest)
    for number in range(2, ROOM_PAGES + 1):
        driver.put(page(driver, number))
    free = {name: len(pool.free) for name, pool in driver.snapshot().pools.items()}
    assert not any(free.values()), f"expected a full device, got free slots {free}"
    return driver


def page(driver: Driver, *numbers: int) -> Key:
    return driver.key(driver.prompt(numbers))


def admits(driver: Driver) -> object:
    """Admit a request whose cached prefix is the most recent page."""
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
    """Load back the oldest page, which is on the host alone; the next oldest pages have no host copy."""
    found = driver.match(page(driver, 1))
    return driver.adapter.load_back(found.best_match, quota=None)


@pytest.mark.parametrize("verb", [admits, evicts, allocates, takes_states, forks], ids=lambda verb: verb.__name__)
def test_a_verb_that_raises_frees_its_slots_and_locks(
    driver: Driver, peer: Peer, verb: Callable[[Driver], object]
) -> None:
    peer.is_lost = True
    with pytest.raises(RankError, match="rank 1"):
        verb(driver)
    require_no_loss(driver, peer)


def test_a_load_back_that_raises_frees_its_slots_and_locks(driver: Driver, peer: Peer) -> None:
    driver.evict(Component.FULL, 1)
    assert driver.allocate(driver.config.page_size) is not None, "expected a free page after an eviction"
    peer.is_lost = True
    with pytest.raises(RankError, match="rank 1"):
        loads(driver)
    require_no_loss(driver, peer)


def require_no_loss(driver: Driver, peer: Peer) -> None:
    """Check that every law holds. With the other rank back, end all transfers, and check that nothing is locked."""
    driver.check()
    peer.is_lost = False
    driver.drain()
    snapshot = driver.snapshot()
    assert snapshot.host is not None, f"{driver.config.name} has a host tier"
    locks = [view.locks for view in snapshot.nodes] + [view.locks for view in snapshot.host.nodes]
    locked = [dict(counts) for counts in locks if any(counts.values())]
    assert not locked, f"RANK-8: no transfer is in flight and no request runs, expected no lock, got {locked}"
    driver.adapter.close()
