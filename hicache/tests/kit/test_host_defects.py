"""Caches with two tiers and one defect each: the driver finds every defect, and names the clause it violates."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.driver import Driver
from hicache.tests.kit.host_defects import (
    AllIsReady,
    ClaimsLess,
    ClaimsNothing,
    CopiesOneLayer,
    CountsNothing,
    EvictsInSecret,
    EvictsNothing,
    EvictsSources,
    GoesOnPending,
    KeepsPins,
    LeaksItsTarget,
    LoadsLess,
    LoadsTheSameTwice,
    LosesLoads,
    MiscountsTheHost,
    NothingIsReady,
    PromisesMore,
    ReadyForAWhile,
    RefusesAndLoads,
    ResetsTheTreeAlone,
    RunsAgain,
    ShowsTooSoon,
    SkipsALayer,
    UnlocksNothing,
    UnlocksOthers,
    WaitsForNothing,
)
from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.snapshots import FULL, tiny_config
from hicache.types import Handle, Key

CONFIG = tiny_config(FULL, page_size=2, pages=6, write_policy=WritePolicy.WRITE_THROUGH)


def back_up(driver: Driver) -> Key:
    key = driver.key(driver.prompt([1, 2]))
    driver.put(key)
    driver.step()
    driver.complete(driver.pending()[0].ticket)
    driver.step()
    return key


def begin_load(driver: Driver) -> Handle:
    key = back_up(driver)
    driver.evict(FULL, 4)
    load = driver.load_back(key, driver.match(key))
    assert load, "HOST-5: there is room for a load"
    driver.step()
    return load.ticket


def load_step_by_step(driver: Driver) -> None:
    ticket = begin_load(driver)
    driver.read_ready_layers(ticket)
    for _ in range(2):
        driver.advance(driver.pending()[0].ticket)
        driver.read_ready_layers(ticket)
    driver.step()
    driver.read_ready_layers(ticket)
    driver.claim(ticket)


def load_once(driver: Driver) -> None:
    key = back_up(driver)
    driver.evict(FULL, 4)
    driver.load(key)


def fail_a_backup(driver: Driver) -> None:
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.step()
    driver.fail(driver.pending()[0].ticket, parts_done=1)
    driver.step()


def evict_under_a_load(driver: Driver) -> None:
    begin_load(driver)
    driver.evict_host(FULL, 4)


def evict_all(driver: Driver) -> None:
    back_up(driver)
    driver.evict_host(FULL, 4)


def lock_twice(driver: Driver) -> None:
    node = driver.match(back_up(driver)).best_match
    first, _ = driver.lock_host(node), driver.lock_host(node)
    driver.unlock_host(first)


def unlock_twice(driver: Driver) -> None:
    back_up(driver)
    driver.unlock_host(None)


def refuse(driver: Driver) -> None:
    key = back_up(driver)
    driver.evict(FULL, 4)
    driver.load_back(key, driver.match(key))


def drain(driver: Driver) -> None:
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.drain()


def reset_in_flight(driver: Driver) -> None:
    driver.put(driver.key(driver.prompt([1, 2])))
    driver.reset()


Verbs = Callable[[Driver], object]

DEFECTS: list[tuple[type[CacheAdapter], Verbs, str]] = [
    (CopiesOneLayer, back_up, "REQ-3: node of elements 0..2 .* on the host, .* pool kv, layer 1"),
    (ShowsTooSoon, load_step_by_step, "FLOW-2: advance: expected residency unchanged"),
    (GoesOnPending, back_up, "FLOW-4: complete: expected a transfer that has ended"),
    (SkipsALayer, load_step_by_step, "FLOW-2: advance: expected 1 layers, got 0"),
    (AllIsReady, load_step_by_step, "REQ-3: position 0 of a hit, pool kv, layer 0"),
    (NothingIsReady, load_step_by_step, r"HOST-9: layers of kv after a load: expected \[0, 1\], got \[\]"),
    (ReadyForAWhile, load_step_by_step, r"HOST-6: readable layers of kv: .*at least \[0, 1\] as before, got \[\]"),
    (LeaksItsTarget, fail_a_backup, "POOL-1: host pool of full: expected 12 slots with an owner"),
    (KeepsPins, back_up, "FLOW-7: .*no pins of full while nothing is in flight"),
    (EvictsSources, evict_under_a_load, "FLOW-1: source of transfer 0, load, full slot"),
    (EvictsNothing, evict_all, r"EVICT-8: .*more freed, as nodes \[1\] can still be evicted"),
    (EvictsInSecret, evict_all, "EVICT-1: .*freed counts equal to the growth of the host pools, {'full': 4}"),
    (MiscountsTheHost, drain, "LOCK-4: host size counters of full"),
    (UnlocksNothing, lock_twice, "LOCK-2: full slot 4 on the host, which 1 receipts .*expected 1 locks, got 2 locks"),
    (UnlocksOthers, lock_twice, "LOCK-2: full slot 4 on the host, which 1 receipts .*expected 1 locks, got 0 locks"),
    (UnlocksNothing, unlock_twice, "LOCK-6: unlock_host: expected an error"),
    (PromisesMore, load_once, "MATCH-12: match: expected whole pages past the anchor"),
    (CountsNothing, load_once, "MATCH-12: match: expected whole pages past the anchor, at most 0"),
    (LoadsLess, load_once, "FLOW-10: load_back of 4 elements: .*4 on the host alone, got 2"),
    (LoadsTheSameTwice, load_once, "HOST-4: load_back of 4 elements: expected distinct slots"),
    (RefusesAndLoads, refuse, "HOST-5: a refused load: expected 0 loads in flight, got 2"),
    (ClaimsLess, load_once, "FLOW-10: claim: expected 4 slots, got 2"),
    (ClaimsNothing, load_once, "FLOW-4: claim of a load that is done: expected slots"),
    (LosesLoads, load_once, "FLOW-10: claim without an injected failure: expected 4 slots"),
    (RunsAgain, load_step_by_step, "FLOW-4: a load that was running: expected a later phase"),
    (WaitsForNothing, drain, "FLOW-4: drain: expected nothing in flight"),
    (ResetsTheTreeAlone, reset_in_flight, "EVICT-9: reset: expected nothing cached and nothing in flight"),
]


NAMES = [f"{adapter.__name__}-{verbs.__name__}" for adapter, verbs, _ in DEFECTS]


@pytest.mark.parametrize(("adapter", "verbs", "message"), DEFECTS, ids=NAMES)
def test_a_defect_is_found(adapter: type[CacheAdapter], verbs: Verbs, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verbs(Driver(adapter(CONFIG), CONFIG))


SOUND = dict.fromkeys(verbs for _, verbs, _ in DEFECTS if verbs is not unlock_twice)


@pytest.mark.parametrize("verbs", SOUND)
def test_a_cache_without_a_defect_passes(verbs: Verbs) -> None:
    verbs(Driver(HostedCache(CONFIG), CONFIG))
