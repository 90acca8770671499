"""EVENT: the event log gives what is cached on each tier."""

from __future__ import annotations

from collections.abc import Callable

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Event, EventKind, Namespace, Tier, TransferKind

from .event_log import cached_blocks, replay
from .scenario import (
    FULL,
    best_match,
    evict_all,
    evict_host,
    insert_fresh,
    key_of,
    lock,
    put,
    put_on_both,
    put_on_host,
    window_pages,
)
from .transfers import STAGES, Stage, pending_transfer, queue_load

WHOLE = (1, 2, 3, 4)
OTHER = Namespace(lora=None, salt="other", tenant=None)
ON_HOST = [Capability.HOST]
THROUGH = [WritePolicy.WRITE_THROUGH]


def require_log(driver: Driver, when: str) -> None:
    """The replayed log equals what the snapshot shows, on each tier."""
    found, expected = replay(driver.adapter.events()), cached_blocks(driver)
    assert found == expected, f"EVENT-1: {when}: too much {found - expected}, missing {expected - found}"


def fresh(driver: Driver, seen: int) -> list[tuple[EventKind, Tier]]:
    """The kind and the tier of each event after the first so many."""
    return [(event.kind, event.tier) for event in driver.adapter.events()[seen:]]


def blocks(events: list[Event], tier: Tier, component: str) -> set[str]:
    """The blocks of a component that some events store on a tier."""
    stored = [
        event for event in events if (event.kind, event.tier, event.component) == (EventKind.STORED, tier, component)
    ]
    return {block for event in stored for block in event.blocks}


@clause("EVENT-1", needs=ON_HOST, write_policies=WritePolicy)
def test_the_log_gives_the_residency_of_each_tier_after_each_verb(driver: Driver) -> None:
    longer = list(range(1, 4 + window_pages(driver.config)))
    held: list[object] = []
    steps: dict[str, Callable[[], object]] = {
        "insert": lambda: put(driver, [1, 2, 3]),
        "insert again": lambda: put(driver, [1, 2, 3]),
        "step": driver.step,
        "insert beside it, with a split": lambda: put(driver, [1, 2, 9]),
        "drain": driver.drain,
        "insert below it": lambda: put(driver, longer),
        "insert below it again": lambda: put(driver, longer),
        "drain again": driver.drain,
        "lock": lambda: held.append(lock(driver, longer)),
        "evict around the lock": lambda: evict_all(driver, *reversed(driver.config.components)),
        "unlock": lambda: driver.unlock(held.pop()),
        "evict all": lambda: evict_all(driver),
        "load": lambda: driver.load(key_of(driver, longer)),
        "lock on the host": lambda: held.append(driver.lock_host(best_match(driver, longer))),
        "evict the host around the lock": lambda: evict_host(driver, *reversed(driver.config.components)),
        "unlock on the host": lambda: driver.unlock_host(held.pop()),
        "evict what was loaded": lambda: evict_all(driver),
        "insert over what was evicted": lambda: insert_fresh(driver, longer),
        "split by a match": lambda: driver.match(key_of(driver, [*longer[:-1], 8])),
        "evict a page on the host": lambda: driver.evict_host(FULL, 1),
        "reset": driver.reset,
        "insert after the reset": lambda: put(driver, [1, 2, 3]),
        "drain after the reset": driver.drain,
        "evict all after it": lambda: evict_all(driver),
        "evict all on the host": lambda: evict_host(driver),
    }
    for name, step in steps.items():
        step()
        require_log(driver, f"after {name}")
    assert not replay(driver.adapter.events()), "EVENT-1: all was evicted at the end"


@clause("EVENT-1", "FLOW-2", write_policies=THROUGH)
def test_a_backup_is_reported_when_a_step_takes_it_over(driver: Driver) -> None:
    put(driver, WHOLE)
    seen = len(driver.adapter.events())
    driver.step()
    driver.advance(pending_transfer(driver, TransferKind.BACKUP).ticket)
    driver.complete(pending_transfer(driver, TransferKind.BACKUP).ticket)
    assert not fresh(driver, seen), f"EVENT-1: the copy was not taken over, and {fresh(driver, seen)} was reported"
    driver.step()
    assert set(fresh(driver, seen)) == {(EventKind.STORED, Tier.HOST)}, f"EVENT-1: got {fresh(driver, seen)}"
    require_log(driver, "after a backup")


@clause("EVENT-1", "FLOW-3")
def test_a_load_is_reported_when_a_step_takes_it_over_and_not_if_it_fails(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    seen = len(driver.adapter.events())
    for is_failure in (True, False):
        load = queue_load(driver, WHOLE)
        driver.step()
        ticket = pending_transfer(driver, TransferKind.LOAD).ticket
        if is_failure:
            driver.fail(ticket, parts_done=0)
        else:
            driver.complete(ticket)
        assert not fresh(driver, seen), f"EVENT-1: nothing was taken over, and {fresh(driver, seen)} was reported"
        driver.step()
        driver.claim(load.ticket)
        expected = set() if is_failure else {(EventKind.STORED, Tier.DEVICE)}
        assert set(fresh(driver, seen)) == expected, (
            f"EVENT-1: failed: {is_failure}: expected {expected}, got {fresh(driver, seen)}"
        )


@clause("EVENT-1", needs=ON_HOST, page_sizes=[16])
def test_a_demotion_is_reported_for_the_device_alone(driver: Driver) -> None:
    put_on_both(driver, WHOLE)
    seen = len(driver.adapter.events())
    evict_all(driver)
    assert set(fresh(driver, seen)) == {(EventKind.REMOVED, Tier.DEVICE)}, f"EVENT-1: got {fresh(driver, seen)}"
    seen = len(driver.adapter.events())
    evict_host(driver)
    assert set(fresh(driver, seen)) == {(EventKind.REMOVED, Tier.HOST)}, f"EVENT-1: got {fresh(driver, seen)}"


@clause("EVENT-1", "INS-8", "FLOW-5", needs=[Capability.HASHES], write_policies=THROUGH, page_sizes=[16])
@STAGES
def test_both_parts_of_a_node_that_is_split_while_it_is_copied_are_reported(driver: Driver, stage: Stage) -> None:
    put(driver, WHOLE)
    stage(driver, TransferKind.BACKUP)
    for pages in (2, 1, 3):
        driver.match(key_of(driver, [*WHOLE[:pages], 9]), chunked=True)
    driver.drain()
    found = blocks(list(driver.adapter.events()), Tier.HOST, FULL)
    expected = set(driver.adapter.page_hashes(key_of(driver, WHOLE)))
    assert found == expected, f"EVENT-1: the copy covers all of {WHOLE}: missing {expected - found}"
    require_log(driver, "after a split while it was copied")


@clause("KEY-5", "EVENT-1", needs=[Capability.HOST, Capability.HASHES], page_sizes=[16])
def test_a_child_is_reported_under_its_parents_hashes_before_these_are_copied(driver: Driver) -> None:
    put(driver, WHOLE[:2])
    put(driver, WHOLE)
    events = list(driver.adapter.events())
    expected = set(driver.adapter.page_hashes(key_of(driver, WHOLE)))
    found = blocks(events, Tier.DEVICE, FULL)
    assert found == expected, f"KEY-5: each page has its hash as soon as it is cached: {expected}, got {found}"
    assert set(driver.adapter.page_hashes(key_of(driver, WHOLE))) == expected, "KEY-6: hashes are the same each time"
    require_log(driver, "before anything was copied")
    driver.drain()
    require_log(driver, "after all was copied")


@clause("EVENT-2", needs=[Capability.HOST, Capability.NAMESPACES, Capability.HASHES], page_sizes=[16])
def test_events_of_host_copies_name_their_namespace(driver: Driver) -> None:
    for namespace in (SHARED, OTHER):
        for _ in range(2):
            driver.put(driver.key(driver.prompt(WHOLE), namespace))
        driver.drain()
    evict_all(driver)
    named: dict[Namespace, set[str]] = {SHARED: set(), OTHER: set()}
    for event in driver.adapter.events():
        named[event.namespace].update(event.blocks if event.tier is Tier.HOST else ())
    assert all(named.values()), f"EVENT-2: both are on the host, reported are {named}"
    assert not named[SHARED] & named[OTHER], f"EVENT-2: the same blocks under two salts: {named}"
    require_log(driver, "with two namespaces on the host")
