"""The rounds of ranks whose requests wait for prefetches: collectives, questions to storage, and lists that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from hicache.config import CacheConfig
from hicache.errors import RankError
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import Mesh, RankWorld, Team
from hicache.testing.storage.scripted import Store, store_of
from hicache.transfer import queue
from hicache.types import Component, Pool, StopPolicy, StorageKind

RANKS = Mesh(tp_size=2, cp_size=1, pp_size=1)
MANY = 64


def config_of(components: tuple[str, ...], stop_policy: StopPolicy) -> CacheConfig:
    """Pages of one token, room for MANY prefetches, and storage that a test moves."""
    found = next(
        one
        for one in standard_configurations(ReferenceAdapter.capabilities)
        if one.components == components and one.storage is not None and one.storage.stop_policy is stop_policy
        if "-stepped/ScriptedStorage" in one.name and one.storage.extra.prefetch_threshold == 0
    )
    assert found.host is not None, f"{found.name} has a host tier"
    assert found.storage is not None, f"{found.name} has storage"
    room = dict.fromkeys(components, 2 * MANY)
    return replace(
        found,
        model=reshaped(found.model, kv_heads=2, conv_elements=4, state_elements=8),
        page_size=1,
        mamba_chunk_size=1 if Component.MAMBA in components else None,
        capacity_tokens=room,
        host=replace(found.host, capacity_tokens=room),
        storage=replace(found.storage, limit_tokens=MANY),
    )


TIMED = config_of((Component.FULL,), StopPolicy.TIMEOUT)
HYBRID = config_of((Component.FULL, Component.MAMBA), StopPolicy.WAIT_COMPLETE)


def store(driver: RankDriver) -> Store:
    found = store_of(driver.config)
    assert found is not None, "each rank has a scripted store"
    return found


def opened(world: RankWorld, config: CacheConfig) -> RankDriver:
    """The driver of one rank, with an empty store."""
    driver = RankDriver(ReferenceAdapter, config, world)
    driver.check_every = 0
    store(driver).empty()
    return driver


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team(RANKS, timeout_s=20.0)
    yield team
    team.close()


def collectives(driver: RankDriver) -> int:
    return sum(len(calls) for calls in driver.world.calls.values())


def waiting_prefetches(driver: RankDriver, prompts: Sequence[int]) -> list[object]:
    """Prefetches of prompts of one page, for which storage does not answer."""
    tickets = [driver.prefetch(driver.key(driver.prompt([prompt]))) for prompt in prompts]
    assert None not in tickets, f"FETCH-1: expected a ticket of each prompt, got {tickets}"
    return tickets


@pytest.mark.parametrize("waiting", [1, 8, MANY])
def test_a_round_is_one_collective_however_many_prefetches_wait(team: Team, waiting: int) -> None:
    def rounds(rank: int) -> list[int]:
        driver, made = opened(team.worlds[rank], TIMED), list[int]()
        tickets = waiting_prefetches(driver, range(waiting))
        for act in (driver.step, lambda: None):
            before = collectives(driver)
            act()
            assert {driver.check_prefetch(ticket) for ticket in tickets} == {None}, "no time has passed"
            made.append(collectives(driver) - before)
        driver.advance_clock(1000.0 if rank else 0.0)
        ended = [driver.check_prefetch(ticket) for ticket in tickets]
        assert ended == [0] * waiting, f"RANK-1: the time is over on rank 1: expected no wait on rank {rank}"
        driver.end()
        return made

    made = team.each(rounds)
    assert made == [[1, 1]] * 2, f"expected one collective with a step, and one of checks without, got {made}"


def lost_by(rank: int, count: int) -> set[int]:
    """The states that a rank lacks: every other one and a few more, never the third."""
    dice = Random(rank)
    return {page for page in range(count) if page != 2 and (page % 2 == rank or dice.random() < 0.3)}


@pytest.mark.parametrize(("bits_a_step", "steps"), [(queue.BITS_A_STEP, 1), (12, 1), (5, 3)])
def test_storage_is_asked_once_and_its_answer_is_sent_in_bounded_steps(
    team: Team, monkeypatch: pytest.MonkeyPatch, bits_a_step: int, steps: int
) -> None:
    monkeypatch.setattr(queue, "BITS_A_STEP", bits_a_step)

    def prefetches(rank: int) -> tuple[int, list[str], int]:
        driver, prompt = opened(team.worlds[rank], HYBRID), range(12)
        for end in prompt:
            driver.put(driver.key(driver.prompt(range(end + 1))))
            driver.drain()
        driver.reset()
        key = driver.key(driver.prompt(prompt))
        names, earlier = driver.storage_keys(Pool.MAMBA, key), len(store(driver).calls)
        for page in lost_by(rank, len(names)):
            del store(driver).objects[names[page]]
        ticket = driver.prefetch(key)
        driver.step()
        driver.let_end(StorageKind.QUERY)
        taken = 0
        while not driver.pending(StorageKind.PREFETCH):
            driver.step()
            taken += 1
        driver.drain()
        came = driver.check_prefetch(ticket)
        verbs = [call.verb for call in store(driver).calls[earlier:]]
        driver.end()
        return came or 0, [verb for verb in verbs if verb in ("exists", "get")], taken

    found = team.each(prefetches)
    expected = (3, ["exists", "get", "get"], steps)
    assert found == [expected] * 2, f"expected tokens, calls of storage and steps {expected} on both ranks, got {found}"


def waits_for_others(world: RankWorld, prompts: Sequence[Sequence[int]]) -> str:
    """Wait for prefetches that differ between ranks; returns the error of the next step."""
    driver = opened(world, TIMED)
    waiting_prefetches(driver, prompts[driver.rank])
    try:
        driver.adapter.step()
    except RankError as error:
        return str(error)
    return "nothing"


DIFFERENT = {
    "more": ([1], [1, 2]),
    "another": ([1], [2]),
    "in another order": ([1, 2], [2, 1]),
    "the last of many": ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7]),
}


@pytest.mark.parametrize("prompts", DIFFERENT.values(), ids=list(DIFFERENT))
def test_ranks_that_wait_for_different_prefetches_say_what_each_has(
    team: Team, tmp_path: Path, prompts: tuple[Sequence[int], Sequence[int]]
) -> None:
    launch = Launch(RANKS, "gloo", tmp_path, deadline_s=60.0, timeout_s=5.0, is_recorded=False)
    by_threads = team.each(lambda rank: waits_for_others(team.worlds[rank], prompts))
    for errors in (by_threads, launch.values(waits_for_others, prompts)):
        assert errors[0] == errors[1], f"RANK-8: expected one error on both ranks, got {errors}"
        named = {words for words in errors[0].split("MIN progress: ")[1:] if "(1 pages)" in words}
        assert len(named) == 2, f"RANK-2: expected what both ranks wait for, got {errors[0]}"
        assert "rank 1" in errors[0], f"RANK-2: expected the rank to be named, got {errors[0]}"
