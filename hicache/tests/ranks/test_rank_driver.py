"""RankDriver: ranks of the reference as threads; when their trees differ, the error has the lines that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hicache.config import CacheConfig
from hicache.errors import InvariantError, RankError
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.ranks.driver import RankDriver, config_on
from hicache.testing.ranks.world import Mesh, Team
from hicache.testing.storage.scripted import store_of
from hicache.types import StorageKind, TransferKind

NAME = "full/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped"

Act = Callable[[RankDriver], object]


@pytest.fixture
def config() -> CacheConfig:
    """FULL alone on three tiers, with one KV head, which pipeline and context parallelism do not divide."""
    return next(one for one in standard_configurations(ReferenceAdapter.capabilities) if one.name == NAME)


@pytest.fixture
def team() -> Iterator[Team]:
    opened = Team(Mesh(1, 2, 1), timeout_s=2.0)
    yield opened
    opened.close()


@pytest.fixture
def drivers(team: Team, config: CacheConfig) -> Iterator[list[RankDriver]]:
    opened = team.each(lambda rank: RankDriver(ReferenceAdapter, config, team.worlds[rank]))
    for driver in opened:
        store = store_of(driver.config)
        assert store is not None, "a store of its own"
        store.empty()
    yield opened
    for driver in opened:
        driver.adapter.close()


def put(driver: RankDriver) -> None:
    """Insert a prompt of two pages."""
    driver.put(driver.key(driver.prompt([1, 2])))


def test_ranks_that_do_the_same_hold_one_tree_to_the_end(team: Team, drivers: list[RankDriver]) -> None:
    team.each(lambda rank: put(drivers[rank]))
    team.each(lambda rank: drivers[rank].step())
    ended = team.each(lambda rank: drivers[rank].let_end(TransferKind.BACKUP))
    team.each(lambda rank: drivers[rank].drain())
    assert ended == [1, 1], f"expected one backup to end on each rank, got {ended}"
    assert drivers[0].let_end(*StorageKind) == 0, "expected nothing in flight after drain"


def test_a_tree_that_differs_is_reported_on_every_rank(team: Team, drivers: list[RankDriver]) -> None:
    def act(rank: int) -> str:
        if rank:
            put(drivers[rank])
        try:
            drivers[rank].compare("put")
        except InvariantError as error:
            return str(error)
        return "nothing"

    messages = team.each(act)
    assert messages[0] == messages[1], f"expected the same message on each rank, got {messages}"
    assert messages[0].startswith("RANK-1: put: expected the same tree on every rank, got rank 1 has +"), (
        f"got {messages[0]}"
    )
    assert "+node 0..32 " in messages[0], f"expected the node that rank 1 has, got {messages[0]}"


def test_a_rank_that_skips_a_step_is_named(team: Team, drivers: list[RankDriver]) -> None:
    with pytest.raises(RankError, match=r"^rank 1 of cp skipped call \d+ \(MIN progress\)"):
        team.each(lambda rank: drivers[rank].compare("nothing") if rank else drivers[rank].step())


def test_bytes_depend_on_the_rank_that_holds_them(team: Team, drivers: list[RankDriver]) -> None:
    team.each(lambda rank: put(drivers[rank]))
    team.each(lambda rank: drivers[rank].drain())
    stores = [store_of(driver.config) for driver in drivers]
    contents = [set(store.objects.values()) for store in stores if store is not None]
    assert all(len(content) == 2 for content in contents), f"expected two pages in each store, got {contents}"
    assert not contents[0] & contents[1], "RANK-6: expected other bytes in each rank's part of the same pages"


def test_a_rank_opens_a_cache_in_its_place_with_a_store_of_its_own(team: Team, config: CacheConfig) -> None:
    configs = [config_on(config, world) for world in team.worlds]
    ranks = [one.topology.cp_rank for one in configs]
    assert ranks == [0, 1], f"RANK-5: expected cp ranks 0 and 1, got {ranks}"
    stores = {one.storage.extra.options["store"] for one in configs if one.storage is not None}
    assert len(stores) == 2, f"expected a store for each rank, got {stores}"
    assert {one.name for one in configs} == {config.name}, "expected the same name on all ranks"


def test_a_cache_is_opened_again_on_every_rank(team: Team, drivers: list[RankDriver]) -> None:
    team.each(lambda rank: put(drivers[rank]))
    team.each(lambda rank: drivers[rank].drain())
    team.each(lambda rank: drivers[rank].restart())
    key = drivers[0].key(drivers[0].prompt([1, 2]))
    tickets = team.each(lambda rank: drivers[rank].prefetch(key))
    team.each(lambda rank: drivers[rank].drain())
    brought = team.each(lambda rank: drivers[rank].check_prefetch(tickets[rank]))
    assert brought == [32, 32], f"FETCH-7: expected both pages from storage on each rank, got {brought}"
