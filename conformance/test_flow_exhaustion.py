"""FLOW-4: retries are bounded, and without free slots the verbs return None and change nothing."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .scenario import (
    FULL,
    MAMBA,
    admit,
    allocate_all,
    best_match,
    decode,
    evict_all,
    key_of,
    lock,
    put,
    put_on_both,
    put_on_host,
    tier_hits,
)
from .transfers import pending_transfer
from .tree_view import device_slots, host_slots, prefixes

WHOLE = (1, 2, 3)
USES = 10
"""Uses of a prompt: more than the retries that a backup may have."""


@clause("FLOW-4", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_that_always_fails_is_tried_three_times(driver: Driver) -> None:
    tries = 0
    for _ in range(USES):
        put(driver, WHOLE)
        driver.step()
        for one in driver.pending():
            driver.fail(one.ticket, parts_done=0)
            tries += 1
        driver.step()
    assert 1 < tries < USES, (
        f"FLOW-4: {USES} uses, each backup failed: expected more than 1 and less than {USES} tries, got {tries}"
    )
    assert tier_hits(driver, WHOLE) == (3, 0), (
        f"FLOW-3: it is on the device still: expected (3, 0), got {tier_hits(driver, WHOLE)}"
    )
    evict_all(driver)
    assert not device_slots(driver, FULL), (
        f"FLOW-4: it has no copy and can go, {device_slots(driver, FULL).keys()} is left"
    )


@clause("FLOW-4", write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_that_failed_once_is_retried_with_the_next_use(driver: Driver) -> None:
    put(driver, WHOLE)
    driver.step()
    driver.fail(pending_transfer(driver, TransferKind.BACKUP).ticket, parts_done=0)
    driver.step()
    put(driver, WHOLE)
    driver.drain()
    assert host_slots(driver, FULL).keys() == prefixes(*WHOLE), "FLOW-4: the next use backs it up"


@clause("FLOW-4", needs=[Capability.SIZES], page_sizes=[16])
def test_nothing_is_loaded_while_callers_hold_the_whole_device(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    key = key_of(driver, WHOLE)
    mine = allocate_all(driver)
    for _ in range(3):
        answers = driver.load_back(key, driver.match(key)), driver.allocate(driver.config.page_size)
        assert answers == (None, None), (
            f"FLOW-4: the device is full: neither a load nor an allocation: expected {(None, None)}, got {answers}"
        )
        driver.step()
    assert tier_hits(driver, WHOLE) == (0, 3), (
        f"FLOW-4: it waits on the host: expected (0, 3), got {tier_hits(driver, WHOLE)}"
    )
    driver.free(mine)
    driver.load(key)
    assert tier_hits(driver, WHOLE) == (3, 0), (
        f"FLOW-4: there is room again: expected (3, 0), got {tier_hits(driver, WHOLE)}"
    )


@clause("FLOW-4", components=(MAMBA,), page_sizes=[16])
def test_nothing_is_loaded_while_callers_hold_all_states(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    key = key_of(driver, WHOLE)
    states = list(iter(driver.allocate_state, None))
    assert driver.load_back(key, driver.match(key)) is None, (
        f"FLOW-4: callers hold all {len(states)} states: expected None"
    )
    assert tier_hits(driver, WHOLE) == (0, 3), (
        f"FLOW-4: it waits on the host: expected (0, 3), got {tier_hits(driver, WHOLE)}"
    )
    for state in states:
        driver.free_state(state)
    driver.verify_state(key, driver.load(key))
    assert tier_hits(driver, WHOLE) == (3, 0), (
        f"FLOW-4: there is room again: expected (3, 0), got {tier_hits(driver, WHOLE)}"
    )


@clause("FLOW-4", "LOCK-5")
def test_when_everything_is_locked_on_both_tiers_no_verb_raises(driver: Driver) -> None:
    put_on_both(driver, WHOLE)
    on_device, on_host = lock(driver, WHOLE), driver.lock_host(best_match(driver, WHOLE))
    for component in driver.config.components:
        for evict in (driver.evict, driver.evict_host):
            result = evict(component, 1)
            if component == FULL:
                assert result.victims == 0, f"LOCK-5: all is locked, yet {evict.__name__} took {result}"
    assert driver.allocate(driver.config.capacity_tokens[FULL]) is None, "POOL-3: a part of the device is locked"
    driver.drain()
    driver.unlock(on_device)
    driver.unlock_host(on_host)
    evict_all(driver)
    assert tier_hits(driver, WHOLE) == (0, 3), (
        f"FLOW-4: released, it can leave the device: expected (0, 3), got {tier_hits(driver, WHOLE)}"
    )


@clause("FLOW-4", needs=[Capability.REQUESTS], write_policies=[WritePolicy.WRITE_THROUGH])
def test_backups_are_acknowledged_while_requests_only_decode(driver: Driver) -> None:
    driver.finish(admit(driver, WHOLE).request)
    decoding = admit(driver, [8])
    driver.step()
    for page in (9, 10, 11):
        decode(driver, decoding, [page])
        driver.complete_all()
    missing = prefixes(*WHOLE) - host_slots(driver, FULL).keys()
    assert not missing, f"FLOW-4: a request decodes and each step is taken, yet {missing} is not on the host"
    driver.abort(decoding.request)
