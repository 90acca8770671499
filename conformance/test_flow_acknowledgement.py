"""FLOW-2, FLOW-4: a transfer counts once, when all its layers have moved and a step takes it over."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind, TransferPhase

from .checks import refused
from .scenario import FULL, put, put_on_host, tier_hits
from .transfers import bytes_moved, bytes_on_device, bytes_on_host, pending_transfer, queue_load, start_load
from .tree_view import device_slots, host_slots

WHOLE = (1, 2, 3)


@clause("FLOW-2", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_backup_is_on_the_host_when_all_layers_moved_and_a_step_took_it_over(driver: Driver) -> None:
    put(driver, WHOLE)
    driver.step()
    backup = pending_transfer(driver, TransferKind.BACKUP)
    for layer in range(backup.layers):
        driver.advance(backup.ticket)
        if layer + 1 < backup.layers:
            driver.step()
        copied = {name for name in driver.config.components if host_slots(driver, name)}
        assert not copied, f"FLOW-2: {layer + 1} of {backup.layers} layers moved, and {copied} is on the host"
    driver.step()
    for component in driver.config.components:
        on_device, on_host = device_slots(driver, component).keys(), host_slots(driver, component).keys()
        assert on_host == on_device, f"FLOW-2: all of {component} arrived: {on_device}, the host has {on_host}"


@clause("FLOW-2")
def test_a_load_is_on_the_device_when_all_layers_moved_and_a_step_took_it_over(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    load = start_load(driver, WHOLE)
    transfer = pending_transfer(driver, TransferKind.LOAD)
    for layer in range(transfer.layers):
        driver.advance(transfer.ticket)
        driver.read_ready_layers(load.ticket)
        if layer + 1 < transfer.layers:
            driver.step()
        found = tier_hits(driver, WHOLE), driver.load_phase(load.ticket)
        assert found == ((0, 3), TransferPhase.RUNNING), f"FLOW-2: {layer + 1} layers of {transfer.layers}: {found}"
    driver.step()
    found = tier_hits(driver, WHOLE), driver.load_phase(load.ticket)
    assert found == ((3, 0), TransferPhase.DONE), f"FLOW-2: all layers arrived and were taken over, got {found}"
    driver.claim(load.ticket)


@clause("FLOW-4")
def test_a_transfer_that_has_ended_does_not_end_again(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    load = start_load(driver, WHOLE)
    ticket = pending_transfer(driver, TransferKind.LOAD).ticket
    driver.complete(ticket)
    for when in ("it had ended", "it was taken over"):
        with refused(driver, "FLOW-4", f"a second completion after {when}"):
            driver.adapter.complete(ticket)
        with refused(driver, "FLOW-4", f"one more layer after {when}"):
            driver.adapter.advance(ticket)
        with refused(driver, "FLOW-4", f"a failure after {when}"):
            driver.adapter.fail(ticket, 0)
        driver.step()
    driver.claim(load.ticket)


@clause("FLOW-4")
def test_a_load_is_claimed_or_abandoned_once(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    for end in (driver.claim, driver.abandon):
        load = start_load(driver, WHOLE)
        with refused(driver, "FLOW-4", "a claim of a load that has not ended"):
            driver.adapter.claim(load.ticket)
        driver.drain()
        end(load.ticket)
        for verb in (driver.adapter.claim, driver.adapter.abandon, driver.adapter.load_phase):
            with refused(driver, "FLOW-4", f"{verb.__name__} of a ticket after {end.__name__}"):
                verb(load.ticket)
        driver.evict(FULL, driver.config.capacity_tokens[FULL])


@clause("FLOW-4")
def test_a_load_becomes_done_once_and_stays_done(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    assert driver.load_phase(load.ticket) is TransferPhase.QUEUED, "FLOW-4: a load begins with the next step"
    ended = []
    for act in (driver.step, driver.step, driver.complete_all, driver.step, driver.drain):
        act()
        ended.append(driver.load_phase(load.ticket) is TransferPhase.DONE)
    assert ended == [False, False, True, True, True], f"FLOW-4: done when it was completed and taken over, got {ended}"
    driver.claim(load.ticket)


@clause("FLOW-2", "EVENT-2", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_THROUGH])
def test_bytes_of_a_backup_are_counted_once_when_it_is_taken_over(driver: Driver) -> None:
    put(driver, WHOLE)
    counts = [bytes_moved(driver, TransferKind.BACKUP)]
    driver.step()
    driver.complete(pending_transfer(driver, TransferKind.BACKUP).ticket)
    counts.append(bytes_moved(driver, TransferKind.BACKUP))
    for _ in range(3):
        driver.step()
        counts.append(bytes_moved(driver, TransferKind.BACKUP))
    expected = [0, 0] + 3 * [bytes_on_host(driver)]
    assert counts == expected, f"EVENT-2: bytes backed up over time: expected {expected}, got {counts}"


@clause("FLOW-2", "EVENT-2", needs=[Capability.COUNTERS])
def test_bytes_of_a_load_are_counted_once_when_it_is_taken_over(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    before = bytes_moved(driver, TransferKind.LOAD)
    load = start_load(driver, WHOLE)
    driver.complete(pending_transfer(driver, TransferKind.LOAD).ticket)
    counts = [bytes_moved(driver, TransferKind.LOAD) - before]
    for _ in range(3):
        driver.step()
        counts.append(bytes_moved(driver, TransferKind.LOAD) - before)
    driver.claim(load.ticket)
    expected = [0] + 3 * [bytes_on_device(driver)]
    assert counts == expected, f"EVENT-2: bytes loaded over time: expected {expected}, got {counts}"
