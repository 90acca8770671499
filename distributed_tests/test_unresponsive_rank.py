"""A rank is killed, or does not respond: the others raise an error that names it, and keep every law."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hicache.config import CacheConfig, WritePolicy
from hicache.errors import InvariantError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld
from hicache.types import Component, StopPolicy

from .configurations import ALL_MESHES, PP2_TP2, TP2, configuration, full_alone, on_meshes
from .rank_actions import KINDS, NEEDS, STORAGE_NEEDS
from .stored_prompt import ask_for_pages, prompt_key, put_in_storage

UNRESPONSIVE = 1
OLDEST = 10
"""The number of the page that is cached first."""

COLLECTIVE_TIMEOUT_S = 2.0
"""The timeout of a collective, when a rank does not respond."""

BOUND_S = 60.0
"""The limit until the other ranks raise, on a busy machine."""

LOST_TIMEOUT_S = 3.0
"""The timeout of a collective, when a rank is killed."""

Outcome = tuple[str, float, float]
"""The error of a rank, after how many seconds, and the seconds until the error of its next step."""


def in_step(driver: RankDriver) -> Callable[[], object]:
    """A step while a request runs, and a backup is queued."""
    driver.put(prompt_key(driver, (1, 2)))
    driver.admit(prompt_key(driver, (1, 2, 3)))
    driver.step()
    return driver.adapter.step


def in_eviction(driver: RankDriver) -> Callable[[], object]:
    """An eviction of a page with a copy, and of one that must be backed up first."""
    fill(driver)
    return lambda: driver.adapter.evict(Component.FULL, 3 * driver.config.page_size)


def in_admission(driver: RankDriver) -> Callable[[], object]:
    """An admission that hits the newest page, and must evict."""
    newest = fill(driver)
    return lambda: driver.adapter.admit(prompt_key(driver, (newest, 30, 31)))


def in_extension(driver: RankDriver) -> Callable[[], object]:
    """An extension that must evict."""
    admission = driver.admit(prompt_key(driver, (1, 2, 3)))
    assert admission is not None, "REQ-4: the cache is empty, yet a request of three pages does not fit"
    fill(driver)
    more = 2 * driver.config.page_size
    return lambda: driver.adapter.extend(admission.request, np.arange(more, dtype=np.int32))


def in_load(driver: RankDriver) -> Callable[[], object]:
    """A load of a page on the host alone that must evict."""
    fill(driver)
    driver.evict(Component.FULL, 1)
    assert driver.allocate(driver.config.page_size) is not None, "EVICT-1: a page was evicted, and none is free"
    found = driver.match(prompt_key(driver, (OLDEST,)))
    return lambda: driver.adapter.load_back(found.best_match, quota=None)


def in_check(driver: RankDriver) -> Callable[[], object]:
    """Two checks of a prefetch with a timeout: the step before them may have answered the first."""
    put_in_storage(driver, with_prefixes=True)
    ticket = ask_for_pages(driver)
    return lambda: [driver.adapter.check_prefetch(ticket) for _ in range(2)]


def fill(driver: RankDriver) -> int:
    """Fill the device with evictable pages, the oldest of which has a host copy; returns the newest."""
    oldest = prompt_key(driver, (OLDEST,))
    driver.put(oldest)
    driver.evict(Component.FULL, 1)
    driver.load(oldest)
    free = len(driver.snapshot().pools[Component.FULL].free) // driver.config.page_size
    for number in range(free):
        driver.put(prompt_key(driver, (OLDEST + 1 + number,)))
    return OLDEST + free


def give_back(driver: RankDriver) -> None:
    """Abort all requests and prefetches."""
    for running in list(driver.running.values()):
        driver.abort(running.request)
    for fetch in list(driver.prefetches.values()):
        driver.abort_prefetch(fetch.ticket)


def error_of(act: Callable[[], object]) -> tuple[str, float]:
    """The message of the error that a verb raises, and the seconds until then."""
    begin = time.monotonic()
    try:
        act()
    except InvariantError:
        raise
    except Exception as error:  # noqa: BLE001 - an error of any type has to name the rank
        return str(error), time.monotonic() - begin
    return "nothing", time.monotonic() - begin


def waits_for_unresponsive(
    world: RankWorld,
    adapter_type: type[CacheAdapter],
    config: CacheConfig,
    prepare: Callable[..., Callable[[], object]],
) -> Outcome:
    """One rank calls a verb much too late; the error of each rank. Then all laws are checked, and all is released."""
    driver = RankDriver(adapter_type, config, world)
    act = prepare(driver)
    if driver.rank == UNRESPONSIVE:
        time.sleep(2 * COLLECTIVE_TIMEOUT_S)
    error_text, took_s = error_of(act)
    driver.check()
    give_back(driver)
    driver.reset()
    _, again_s = error_of(driver.adapter.step)
    driver.adapter.close()
    return error_text, took_s, again_s


def require_named(launch: Launch, adapter_type: type[CacheAdapter], config: CacheConfig, prepare: object) -> None:
    """RANK-8: every other rank raises an error that names the unresponsive one, in time."""
    # Not recorded: the error comes from the cache itself, not from the recorder.
    patient = replace(launch, timeout_s=COLLECTIVE_TIMEOUT_S, is_recorded=False)
    results = patient.values(waits_for_unresponsive, adapter_type, config, prepare)
    for rank, (error_text, took_s, again_s) in enumerate(results):
        if rank != UNRESPONSIVE:
            assert f"rank {UNRESPONSIVE}" in error_text, (
                f"RANK-8: expected the error of rank {rank} to name rank {UNRESPONSIVE}, got {error_text!r}"
            )
        assert max(took_s, again_s) < BOUND_S, (
            f"RANK-8: expected an error on rank {rank} within {BOUND_S:g} s, it took {took_s:.1f} and {again_s:.1f} s"
        )


@clause("RANK-8", needs=(*NEEDS, Capability.REQUESTS))
@on_meshes(TP2, PP2_TP2)
def test_a_step_names_the_unresponsive_rank(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    require_named(launch, adapter_type, configuration(adapter_type, stop_policy=None), in_step)


@clause("RANK-8", needs=(*NEEDS, Capability.REQUESTS))
@pytest.mark.parametrize(
    "prepare", [in_eviction, in_admission, in_extension, in_load], ids=lambda prepare: prepare.__name__
)
@on_meshes(TP2)
def test_an_eviction_names_the_unresponsive_rank(
    launch: Launch, adapter_type: type[CacheAdapter], prepare: object
) -> None:
    config = configuration(adapter_type, write_policy=WritePolicy.WRITE_BACK, stop_policy=None)
    config = full_alone(config, config.page_size, pages=8)
    require_named(launch, adapter_type, config, prepare)


@clause("RANK-8", needs=STORAGE_NEEDS)
@on_meshes(TP2)
def test_a_prefetch_check_names_the_unresponsive_rank(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    require_named(launch, adapter_type, configuration(adapter_type, stop_policy=StopPolicy.TIMEOUT), in_check)


def loses_one(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> tuple[str, float]:
    """Rank 1 is killed between two steps; the error of another rank, and after how long. Then all laws are checked."""
    driver = RankDriver(adapter_type, config, world)
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.step()
    driver.let_end(*KINDS)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error_text, took_s = error_of(driver.adapter.step)
    driver.check()
    driver.adapter.close()
    return error_text, took_s


@clause("RANK-8", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_the_other_ranks_name_a_killed_rank_and_lose_no_slot(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=None)
    # Not recorded: the error comes from the cache itself, not from the recorder.
    outcomes = replace(launch, timeout_s=LOST_TIMEOUT_S, is_recorded=False).outcomes(loses_one, adapter_type, config)
    others = [outcome for outcome in outcomes if outcome.rank != 1]
    failed = [outcome for outcome in others if outcome.failure]
    assert not failed, "RANK-8: expected each other rank to end cleanly, got:\n" + "\n".join(
        one.failure for one in failed
    )
    for outcome in others:
        error_text, took_s = outcome.value
        assert "rank 1" in error_text, (
            f"RANK-8: expected the error of rank {outcome.rank} to name rank 1, got {error_text!r}"
        )
        assert took_s < BOUND_S, f"RANK-8: expected the error within {BOUND_S:g} s, it took {took_s:.1f} s"
