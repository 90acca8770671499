"""The driver over a small cache with two tiers: transfers, reads, and records of loads and locks."""

from __future__ import annotations

import pytest

from hicache.config import WritePolicy
from hicache.errors import ReceiptError
from hicache.testing.driving.driver import Driver
from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.snapshots import FULL, tiny_config
from hicache.types import Handle, Key, MatchResult, Pool, TransferKind, TransferPhase

CONFIG = tiny_config(FULL, page_size=2, pages=6, write_policy=WritePolicy.WRITE_THROUGH)


@pytest.fixture
def driver() -> Driver:
    return Driver(HostedCache(CONFIG), CONFIG)


def prompt(driver: Driver, *pages: int) -> Key:
    return driver.key(driver.prompt(pages))


def backed_up(driver: Driver, *pages: int) -> Key:
    """A prompt that is on both tiers."""
    key = prompt(driver, *pages)
    driver.put(key)
    driver.drain()
    return key


def on_the_host(driver: Driver, *pages: int) -> Key:
    """A prompt that is only on the host."""
    key = backed_up(driver, *pages)
    driver.evict(FULL, 2 * len(pages))
    return key


def started(driver: Driver, key: Key) -> tuple[MatchResult, Handle]:
    """The match of a prompt, and the ticket of its started load."""
    found = driver.match(key)
    load = driver.load_back(key, found)
    assert load, "HOST-5: there is room on the device"
    driver.step()
    return found, load.ticket


def test_a_backup_moves_layer_by_layer(driver: Driver) -> None:
    driver.put(prompt(driver, 1, 2))
    assert not driver.pending(), "a backup starts with a step"
    driver.step()
    (backup,) = driver.pending()
    shown = (backup.kind, backup.parts, backup.layers, backup.layers_done)
    assert shown == (TransferKind.BACKUP, 2, 2, 0), f"two pages in one transfer of two layers, got {shown}"
    driver.advance(backup.ticket)
    assert driver.pending()[0].layers_done == 1, f"one layer was moved, got {driver.pending()}"
    driver.complete_all()
    free = driver.adapter.host_sizes()[FULL].free
    assert free == 8, f"HOST-1: 4 of 12 host slots hold the backup, {free} are free"


def test_a_load_is_read_as_it_arrives(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2, 3)
    found, ticket = started(driver, key)
    assert found.host_hit_length == 6, f"MATCH-12: expected 6 tokens on the host alone, got {found.host_hit_length}"
    read = [driver.read_ready_layers(ticket)[Pool.KV]]
    (load,) = driver.pending()
    driver.advance(load.ticket)
    read.append(driver.read_ready_layers(ticket)[Pool.KV])
    driver.complete(load.ticket)
    phases = [driver.load_phase(ticket)]
    driver.step()
    phases.append(driver.load_phase(ticket))
    read.append(driver.read_ready_layers(ticket)[Pool.KV])
    assert read == [0, 1, 2], f"HOST-6: expected 0, 1 and 2 layers to be ready, got {read}"
    assert phases == [TransferPhase.RUNNING, TransferPhase.DONE], f"a load ends with a step, got {phases}"
    receipt = driver.lock(found.best_match)
    slots = driver.claim(ticket)
    assert slots is not None, "FLOW-10: expected slots, as no failure was injected"
    assert len(slots) == 6, f"FLOW-10: expected 6 slots, got {slots}"
    driver.unlock(receipt)
    assert not driver.loads, f"expected no open load after the claim, got {driver.loads}"


def test_a_load_in_one_call(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    found = driver.load(key)
    assert len(found.device_indices) == 4, f"FLOW-10: 4 tokens were on the host, {len(found.device_indices)} came"
    again = driver.load(key)
    assert len(again.device_indices) == 4, "with nothing to load the first match is the answer"
    assert driver.load_back(key, again) is None, "HOST-5: there is nothing to load"


def test_a_load_that_is_refused_leaves_nothing(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    assert driver.load_back(key, driver.match(key), quota=2) is None, "HOST-5: 4 tokens are above a quota of 2"


def test_a_load_that_fails_delivers_nothing(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    _, ticket = started(driver, key)
    driver.fail(driver.pending()[0].ticket, parts_done=1)
    driver.step()
    assert driver.load_phase(ticket) is TransferPhase.FAILED, f"got {driver.load_phase(ticket)}"
    assert not driver.read_ready_layers(ticket), "nothing is read of a load that failed"
    assert driver.claim(ticket) is None, "FLOW-3: nothing was delivered"
    found = driver.match(key)
    lengths = (len(found.device_indices), found.host_hit_length)
    assert lengths == (2, 2), f"FLOW-3: the first part came, the second is on the host still, got {lengths}"


def test_slots_that_are_loaded_too_late_are_kept_for_their_readers(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    _, ticket = started(driver, key)
    driver.put(key)
    driver.drain()
    host = driver.snapshot().host
    assert host, "the cache has a host tier"
    assert len(host.kept[FULL]) == 4, f"INS-3: the tree took the fresh slots, and {host.kept} are kept"
    driver.abandon(ticket)
    driver.evict(FULL, 12)


def test_the_host_is_evicted(driver: Driver) -> None:
    key = backed_up(driver, 1, 2, 3)
    receipt = driver.lock_host(driver.match(key).best_match)
    assert driver.evict_host(FULL, 12).freed[FULL] == 0, "EVICT-8: the leaf of the host is locked"
    driver.unlock_host(receipt)
    freed = [driver.evict_host(FULL, tokens).freed[FULL] for tokens in (2, 12)]
    assert freed == [2, 4], f"EVICT-1: expected 2 tokens and then the other 4, got {freed}"


def test_a_host_lock_on_what_is_not_there_holds_the_device(driver: Driver) -> None:
    key = prompt(driver, 1, 2)
    receipt = driver.lock_host(driver.put(key).node)
    driver.step()
    driver.fail(driver.pending()[0].ticket, parts_done=0)
    driver.drain()
    freed = driver.evict(FULL, 12).freed[FULL]
    assert freed == 0, f"LOCK-7: the node is on the device alone, and locked; {freed} tokens were freed"
    driver.unlock_host(receipt)
    assert driver.evict(FULL, 12).freed[FULL] == 4, "LOCK-7: the lock was released"


def test_a_reset_ends_loads_and_host_locks(driver: Driver) -> None:
    key = on_the_host(driver, 1, 2)
    _, ticket = started(driver, key)
    receipt = driver.lock_host(driver.match(key).best_match)
    driver.put(prompt(driver, 3))
    driver.reset()
    assert not driver.loads, "EVICT-9: expected no open load"
    with pytest.raises(ReceiptError):
        driver.unlock_host(receipt)
    with pytest.raises(KeyError):
        driver.load_phase(ticket)
    free = [sizes[FULL].free for sizes in (driver.adapter.sizes(), driver.adapter.host_sizes())]
    assert free == [12, 12], f"EVICT-9: both tiers are empty, free are {free}"
