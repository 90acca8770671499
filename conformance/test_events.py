"""EVENT: the event log gives what is cached on each tier, by namespace; counters equal the bytes that were moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import (
    COMPONENT_POOL,
    SHARED,
    Component,
    Event,
    EventKind,
    Namespace,
    StorageKind,
    Tier,
    TransferKind,
)

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .snapshot_values import tokens_of_prefix
from .stored_prompts import PAIR, PREFIXES, PROMPT
from .transfer_phases import PHASES, Phase

OTHER = Namespace(lora=None, salt="other", tenant=None)
WHOLE = (1, 2, 3, 4)


# An event log, replayed as by a consumer that sees nothing else, and the blocks that a snapshot shows.


Blocks: TypeAlias = set[tuple[str, str, Namespace, str]]
"""Tier, component, namespace and block of everything that is cached."""


def replay(events: Iterable[Event]) -> Blocks:
    """The blocks that are cached after these events. Each block is stored once before it is removed once."""
    present: Blocks = set()
    for number, event in enumerate(events):
        blocks = {(event.tier.value, event.component, event.namespace, block) for block in event.blocks}
        assert len(blocks) == len(event.blocks) > 0, f"EVENT-1: expected distinct blocks in event {number}, got {event}"
        if event.kind is EventKind.STORED:
            assert not blocks & present, f"EVENT-1: event {number} stores blocks that are stored already: {event}"
            present |= blocks
        else:
            assert blocks <= present, f"EVENT-1: event {number} removes blocks that are not stored: {event}"
            present -= blocks
    return present


def cached_blocks(driver: Scenario) -> Blocks:
    """The blocks that a snapshot shows, named by the cache's own page hashes. KEY-4 says how these are made."""
    snapshot, page = driver.snapshot(), driver.config.page_size
    found: Blocks = set()
    for number, node in enumerate(snapshot.nodes):
        blocks = _blocks(driver, node.namespace, snapshot.prefix(number))[node.start // page :]
        by_tier = {Tier.DEVICE: node.slots}
        if snapshot.host is not None:
            by_tier[Tier.HOST] = snapshot.host.nodes[number].slots
        for tier, held in by_tier.items():
            for component, slots in held.items():
                own = blocks[-1:] if component == Component.MAMBA else blocks
                if slots is not None:
                    found.update((tier.value, component, node.namespace, block) for block in own)
    return found


def _blocks(driver: Scenario, namespace: Namespace, prefix: bytes) -> Sequence[str]:
    tokens = tokens_of_prefix(prefix, bigram=driver.config.bigram)
    return driver.adapter.page_hashes(driver.key(tokens, namespace))


# EVENT-1, EVENT-2: the log gives what is cached on the device, by namespace.


@clause("EVENT-1", bigram=True)
def test_the_log_gives_the_residency_after_each_verb(driver: Scenario) -> None:
    longer = list(range(1, 4 + driver.window_pages))
    receipts: list[object] = []
    steps: dict[str, Callable[[], object]] = {
        "insert": lambda: driver.put_pages([1, 2, 3]),
        "insert beside it, with a split": lambda: driver.put_pages([1, 2, 9]),
        "split by a match": lambda: driver.match(driver.key_of([1, 8])),
        "the same again": lambda: driver.insert_fresh([1, 2, 3]),
        "insert below it": lambda: driver.put_pages(longer),
        "lock": lambda: receipts.append(driver.lock_pages(longer)),
        "evict around the lock": lambda: driver.evict_all(*reversed(driver.config.components)),
        "insert over what was evicted": lambda: driver.insert_fresh([1, 2, 9]),
        "insert what the window has left": lambda: driver.put_pages([7, *longer], passed=1),
        "unlock": lambda: driver.unlock(receipts.pop()),
        "evict a page": lambda: driver.evict(FULL, driver.config.page_size),
        "reset": driver.reset,
        "insert after the reset": lambda: driver.put_pages([1, 2, 3]),
        "evict all": driver.evict_all,
    }
    for name, step in steps.items():
        step()
        found, expected = replay(driver.adapter.events()), cached_blocks(driver)
        assert found == expected, f"EVENT-1: after {name}: too much {found - expected}, missing {expected - found}"
    assert not replay(driver.adapter.events()), "EVENT-1: all was evicted at the end"


@clause("EVENT-1", needs=[Capability.REQUESTS], bigram=True)
def test_the_log_gives_the_residency_while_requests_run(driver: Scenario) -> None:
    prompt = driver.prompt(range(1, 5 + driver.window_pages))
    for end in (driver.finish, driver.abort):
        admission = driver.admit(driver.key(prompt))
        assert admission is not None, "REQ-5: a request fits an empty cache"
        driver.checkpoint(admission.request, len(prompt) - driver.config.page_size)
        driver.checkpoint(admission.request, len(prompt))
        for token in (7, 8, 9):
            driver.extend(admission.request, [token] * driver.config.page_size)
        assert replay(driver.adapter.events()) == cached_blocks(driver), "EVENT-1: while the request runs"
        end(admission.request)
        assert replay(driver.adapter.events()) == cached_blocks(driver), f"EVENT-1: after {end.__name__}"


@clause("EVENT-1", needs=[Capability.REQUESTS], bigram=True)
def test_nothing_is_reported_before_it_is_cached(driver: Scenario) -> None:
    slots = driver.allocate(2 * driver.config.page_size)
    assert slots is not None, "POOL-3: an empty cache has room for two pages"
    driver.write(driver.key_of([1, 2]), slots, 0)
    driver.match(driver.key_of([1, 2]))
    admission = driver.admit(driver.key_of([3, 4, 5]))
    assert admission is not None, "REQ-5: a short request fits"
    driver.extend(admission.request, [7])
    assert not driver.adapter.events(), f"EVENT-1: nothing is cached so far, got {driver.adapter.events()}"
    driver.abort(admission.request)
    driver.free(slots)
    assert not driver.adapter.events(), f"EVENT-1: nothing was ever cached, got {driver.adapter.events()}"


@clause("EVENT-1", bigram=True)
def test_the_log_only_grows(driver: Scenario) -> None:
    seen = tuple(driver.adapter.events())
    for step in (
        lambda: driver.put_pages([1, 2]),
        lambda: driver.put_pages([1, 3]),
        driver.evict_all,
        driver.reset,
    ):
        step()
        events = tuple(driver.adapter.events())
        assert events[: len(seen)] == seen, f"EVENT-1: the log began {seen}, and now begins {events[: len(seen)]}"
        seen = events


@clause("EVENT-1")
def test_a_tombstone_is_reported_for_its_component_alone(driver: Scenario) -> None:
    prompt = list(range(1, 4 + driver.window_pages))
    driver.put_pages([1, 2])
    driver.put_pages(prompt)
    driver.find(prompt)
    for component in (MAMBA, SWA):
        if driver.has(component):
            seen = len(driver.adapter.events())
            driver.evict(component, 1)
            fresh = driver.adapter.events()[seen:]
            kinds = {event.kind for event in fresh}
            assert kinds == {EventKind.REMOVED}, f"EVENT-1: an eviction of {component} removes, got {fresh}"
            assert FULL not in {event.component for event in fresh}, f"EVENT-1: FULL data stayed, got {fresh}"


@clause("EVENT-2", needs=[Capability.NAMESPACES, Capability.HASHES, Capability.SNAPSHOT], bigram=True)
def test_events_name_their_namespace(driver: Scenario) -> None:
    tokens = driver.prompt([1, 2])
    blocks: dict[Namespace, set[str]] = {}
    for namespace in (SHARED, OTHER):
        seen = len(driver.adapter.events())
        driver.put(driver.key(tokens, namespace))
        fresh = driver.adapter.events()[seen:]
        assert {event.namespace for event in fresh} == {namespace}, f"EVENT-2: only {namespace} was cached, got {fresh}"
        blocks[namespace] = {block for event in fresh for block in event.blocks}
    assert not blocks[SHARED] & blocks[OTHER], f"EVENT-2: the same blocks under two salts: {blocks}"
    assert replay(driver.adapter.events()) == cached_blocks(driver), "EVENT-2: both are there"


@clause("EVENT-2", needs=[Capability.NAMESPACES, Capability.HASHES, Capability.SNAPSHOT], bigram=True)
def test_an_eviction_in_one_namespace_is_not_reported_for_another(driver: Scenario) -> None:
    key, other = driver.key_of([1, 2]), driver.key(driver.prompt([1, 2]), OTHER)
    driver.put(key)
    driver.put(other)
    receipt = driver.lock(driver.match(other).device_anchor)
    driver.evict_all(FULL)
    removed = {event.namespace for event in driver.adapter.events() if event.kind is EventKind.REMOVED}
    assert removed == {SHARED}, f"EVENT-2: {OTHER} was locked, removed of {removed}"
    assert replay(driver.adapter.events()) == cached_blocks(driver), "EVENT-2: the other's blocks are there"
    driver.unlock(receipt)


# EVENT-1, EVENT-2: the log gives what is cached on each tier.

ON_HOST = [Capability.HOST]
THROUGH = [WritePolicy.WRITE_THROUGH]


def require_log(driver: Scenario, when: str) -> None:
    """The replayed log equals what the snapshot shows, on each tier."""
    found, expected = replay(driver.adapter.events()), cached_blocks(driver)
    assert found == expected, f"EVENT-1: {when}: too much {found - expected}, missing {expected - found}"


def fresh(driver: Scenario, seen: int) -> list[tuple[EventKind, Tier]]:
    """The kind and the tier of each event after the first so many."""
    return [(event.kind, event.tier) for event in driver.adapter.events()[seen:]]


def blocks(events: list[Event], tier: Tier, component: str) -> set[str]:
    """The blocks of a component that some events store on a tier."""
    stored = [
        event for event in events if (event.kind, event.tier, event.component) == (EventKind.STORED, tier, component)
    ]
    return {block for event in stored for block in event.blocks}


@clause("EVENT-1", needs=ON_HOST, write_policies=WritePolicy)
def test_the_log_gives_the_residency_of_each_tier_after_each_verb(driver: Scenario) -> None:
    longer = list(range(1, 4 + driver.window_pages))
    held: list[object] = []
    steps: dict[str, Callable[[], object]] = {
        "insert": lambda: driver.put_pages([1, 2, 3]),
        "insert again": lambda: driver.put_pages([1, 2, 3]),
        "step": driver.step,
        "insert beside it, with a split": lambda: driver.put_pages([1, 2, 9]),
        "drain": driver.drain,
        "insert below it": lambda: driver.put_pages(longer),
        "insert below it again": lambda: driver.put_pages(longer),
        "drain again": driver.drain,
        "lock": lambda: held.append(driver.lock_pages(longer)),
        "evict around the lock": lambda: driver.evict_all(*reversed(driver.config.components)),
        "unlock": lambda: driver.unlock(held.pop()),
        "evict all": driver.evict_all,
        "load": lambda: driver.load(driver.key_of(longer)),
        "lock on the host": lambda: held.append(driver.lock_host(driver.best_match(longer))),
        "evict the host around the lock": lambda: driver.evict_all_host(*reversed(driver.config.components)),
        "unlock on the host": lambda: driver.unlock_host(held.pop()),
        "evict what was loaded": driver.evict_all,
        "insert over what was evicted": lambda: driver.insert_fresh(longer),
        "split by a match": lambda: driver.match(driver.key_of([*longer[:-1], 8])),
        "evict a page on the host": lambda: driver.evict_host(FULL, 1),
        "reset": driver.reset,
        "insert after the reset": lambda: driver.put_pages([1, 2, 3]),
        "drain after the reset": driver.drain,
        "evict all after it": driver.evict_all,
        "evict all on the host": driver.evict_all_host,
    }
    for name, step in steps.items():
        step()
        require_log(driver, f"after {name}")
    assert not replay(driver.adapter.events()), "EVENT-1: all was evicted at the end"


@clause("EVENT-1", "FLOW-2", write_policies=THROUGH)
def test_a_backup_is_reported_when_a_step_takes_it_over(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    seen = len(driver.adapter.events())
    driver.step()
    driver.advance(driver.pending_transfer(TransferKind.BACKUP).ticket)
    driver.complete(driver.pending_transfer(TransferKind.BACKUP).ticket)
    assert not fresh(driver, seen), f"EVENT-1: the copy was not taken over, and {fresh(driver, seen)} was reported"
    driver.step()
    assert set(fresh(driver, seen)) == {(EventKind.STORED, Tier.HOST)}, f"EVENT-1: got {fresh(driver, seen)}"
    require_log(driver, "after a backup")


@clause("EVENT-1", "FLOW-3")
def test_a_load_is_reported_when_a_step_takes_it_over_and_not_if_it_fails(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    seen = len(driver.adapter.events())
    for is_failure in (True, False):
        load = driver.queue_load(WHOLE)
        driver.step()
        ticket = driver.pending_transfer(TransferKind.LOAD).ticket
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
def test_a_demotion_is_reported_for_the_device_alone(driver: Scenario) -> None:
    driver.put_on_both(WHOLE)
    seen = len(driver.adapter.events())
    driver.evict_all()
    assert set(fresh(driver, seen)) == {(EventKind.REMOVED, Tier.DEVICE)}, f"EVENT-1: got {fresh(driver, seen)}"
    seen = len(driver.adapter.events())
    driver.evict_all_host()
    assert set(fresh(driver, seen)) == {(EventKind.REMOVED, Tier.HOST)}, f"EVENT-1: got {fresh(driver, seen)}"


@clause("EVENT-1", "INS-8", "FLOW-5", needs=[Capability.HASHES], write_policies=THROUGH, page_sizes=[16])
@PHASES
def test_both_parts_of_a_node_that_is_split_while_it_is_copied_are_reported(driver: Scenario, phase: Phase) -> None:
    driver.put_pages(WHOLE)
    phase(driver, TransferKind.BACKUP)
    for pages in (2, 1, 3):
        driver.match(driver.key_of([*WHOLE[:pages], 9]), chunked=True)
    driver.drain()
    found = blocks(list(driver.adapter.events()), Tier.HOST, FULL)
    expected = set(driver.adapter.page_hashes(driver.key_of(WHOLE)))
    assert found == expected, f"EVENT-1: the copy covers all of {WHOLE}: missing {expected - found}"
    require_log(driver, "after a split while it was copied")


@clause("KEY-5", "EVENT-1", needs=[Capability.HOST, Capability.HASHES], page_sizes=[16])
def test_a_child_is_reported_under_its_parents_hashes_before_these_are_copied(driver: Scenario) -> None:
    driver.put_pages(WHOLE[:2])
    driver.put_pages(WHOLE)
    events = list(driver.adapter.events())
    expected = set(driver.adapter.page_hashes(driver.key_of(WHOLE)))
    found = blocks(events, Tier.DEVICE, FULL)
    assert found == expected, f"KEY-5: each page has its hash as soon as it is cached: {expected}, got {found}"
    assert set(driver.adapter.page_hashes(driver.key_of(WHOLE))) == expected, "KEY-6: hashes are the same each time"
    require_log(driver, "before anything was copied")
    driver.drain()
    require_log(driver, "after all was copied")


@clause("EVENT-2", needs=[Capability.HOST, Capability.NAMESPACES, Capability.HASHES], page_sizes=[16])
def test_events_of_host_copies_name_their_namespace(driver: Scenario) -> None:
    for namespace in (SHARED, OTHER):
        for _ in range(2):
            driver.put(driver.key(driver.prompt(WHOLE), namespace))
        driver.drain()
    driver.evict_all()
    named: dict[Namespace, set[str]] = {SHARED: set(), OTHER: set()}
    for event in driver.adapter.events():
        named[event.namespace].update(event.blocks if event.tier is Tier.HOST else ())
    assert all(named.values()), f"EVENT-2: both are on the host, reported are {named}"
    assert not named[SHARED] & named[OTHER], f"EVENT-2: the same blocks under two salts: {named}"
    require_log(driver, "with two namespaces on the host")


# EVENT-2: the counters of each direction equal the bytes that were moved.


@clause("EVENT-2", "FLOW-6", needs=[Capability.COUNTERS])
def test_the_bytes_counted_for_each_direction_are_the_bytes_moved(driver: Scenario) -> None:
    expected = dict.fromkeys(TransferKind, 0)
    driver.put_and_back_up(WHOLE[:2])
    expected[TransferKind.BACKUP] = driver.bytes_on_host()
    for _ in range(2):
        driver.put_pages(WHOLE)
        require_counts(driver, expected)
    driver.put_on_host(WHOLE)
    expected[TransferKind.BACKUP] = driver.bytes_moved(TransferKind.BACKUP)
    for pages in (WHOLE[:2], WHOLE):
        load = driver.queue_load(pages)
        require_counts(driver, expected)
        driver.claim(load.ticket)
    assert all(expected.values()), f"EVENT-2: expected bytes in each direction, got {expected}"


def require_counts(driver: Scenario, expected: dict[TransferKind, int]) -> None:
    """Add the bytes of the transfers under way to the expected ones, drain, and compare with the counters."""
    for kind in TransferKind:
        for one in driver.transfer_views(kind):
            expected[kind] += driver.transfer_bytes(one)
    driver.drain()
    found = {kind: driver.bytes_moved(kind) for kind in TransferKind}
    assert found == expected, f"EVENT-2: expected the moved bytes {expected}, got {found}"


@clause("EVENT-2", needs=[Capability.COUNTERS, Capability.HOST], page_sizes=[16])
def test_a_component_alone_counts_its_own_bytes(driver: Scenario) -> None:
    for component in (SWA, MAMBA):
        if not driver.has(component):
            continue
        driver.reset()
        driver.drop_on_device(component)
        before = driver.bytes_moved(TransferKind.LOAD)
        free = driver.free_device_slots()
        driver.load(driver.key_of(TOMBSTONE))
        brought = {name: count - driver.free_device_slots()[name] for name, count in free.items()}
        assert brought[FULL] == 0, f"HOST-5: {component} was to come alone, came {brought}"
        expected, found = driver.slot_bytes(brought), driver.bytes_moved(TransferKind.LOAD) - before
        assert found == expected, f"EVENT-2: {brought} slots were loaded: expected {expected} bytes, got {found}"


@clause("EVENT-2", "EVICT-7", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_BACK])
def test_bytes_that_an_eviction_backs_up_are_counted(driver: Scenario) -> None:
    driver.put_pages(WHOLE)
    size = driver.config.page_size
    free = driver.free_host_slots()
    driver.evict_all()
    taken = {name: count - driver.free_host_slots()[name] for name, count in free.items()}
    assert taken[FULL] == len(WHOLE) * size, f"EVICT-7: four pages are on the host, got {taken}"
    expected, found = driver.slot_bytes(taken), driver.bytes_moved(TransferKind.BACKUP)
    assert found == expected, f"EVENT-2: {taken} slots were backed up: expected {expected} bytes, got {found}"


@clause("EVENT-2", "FLOW-3", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_below_a_failed_one_is_not_counted(driver: Scenario) -> None:
    for pages in (WHOLE[:2], WHOLE):
        driver.put_pages(pages)
        driver.step()
    parent, child = driver.pending(TransferKind.BACKUP)
    driver.complete(child.ticket)
    driver.fail(parent.ticket, parts_done=0)
    driver.step()
    found = driver.bytes_moved(TransferKind.BACKUP)
    assert found == 0, f"EVENT-2: the host has nothing: expected 0 bytes to be counted as backed up, got {found}"
    driver.put_pages(WHOLE)
    driver.drain()
    expected, found = driver.bytes_on_host(), driver.bytes_moved(TransferKind.BACKUP)
    assert found == expected, f"EVENT-2: both were backed up again: expected {expected} bytes, got {found}"


# EVENT-1, EVENT-2, CONF-5: events and counters of storage match the objects in storage.


NEEDS = [Capability.EVENTS, Capability.STORAGE, Capability.HOST, Capability.SNAPSHOT]
COUNTED = [Capability.COUNTERS, Capability.STORAGE]


def reported(driver: Scenario, tier: Tier = Tier.STORAGE) -> list[Event]:
    """The events of a tier."""
    return [event for event in driver.adapter.events() if event.tier is tier]


def bytes_in_store(driver: Scenario) -> int:
    """The number of bytes in the store."""
    return sum(map(len, driver.store().objects.values()))


@clause("EVENT-1", needs=[*NEEDS, Capability.STEPPED], write_policies=[WritePolicy.WRITE_THROUGH])
def test_nothing_is_reported_before_storage_has_it(driver: Scenario) -> None:
    driver.put_pages(PAIR)
    driver.step()
    driver.complete_all()
    pending = driver.pending_job(StorageKind.STORE)
    for _ in range(pending.units):
        assert not reported(driver), f"EVENT-1: storage has not answered: expected no events, got {reported(driver)}"
        driver.advance(pending.ticket)
    driver.step()
    events = {event.component for event in reported(driver)}
    assert events == set(driver.config.components), (
        f"EVENT-1: storage has all components: expected events of all, got {events}"
    )


@clause("EVENT-1", needs=NEEDS)
def test_blocks_that_are_reported_as_stored_are_in_storage(driver: Scenario) -> None:
    driver.put_in_storage(*PREFIXES)
    for component in driver.config.components:
        events = {block for event in reported(driver) if event.component == component for block in event.blocks}
        there = driver.in_storage(PROMPT)[COMPONENT_POOL[component]]
        assert len(events) == sum(there), (
            f"EVENT-1: {component}: expected {sum(there)} reported blocks, got {len(events)}"
        )


@clause("EVENT-1", needs=NEEDS)
def test_prefetched_blocks_are_reported_on_the_host(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    for component in driver.config.components:
        events = [event for event in reported(driver, Tier.HOST) if event.component == component]
        blocks = [block for event in events for block in event.blocks]
        assert all(event.kind is EventKind.STORED for event in events), f"EVENT-1: all is new on the host, got {events}"
        held = len(driver.host_slots(component))
        assert len(blocks) == len(set(blocks)) == held, (
            f"EVENT-1: expected events of {held} pages of {component}, got {events}"
        )


@clause("EVENT-1", "FLOW-12", needs=NEEDS)
def test_a_clear_is_reported(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    before = len(reported(driver))
    assert driver.clear_storage(), "FLOW-12: nothing is under way"
    events = reported(driver)
    stored = {(event.component, block) for event in events[:before] for block in event.blocks}
    removed = {(event.component, block) for event in events[before:] for block in event.blocks}
    assert all(event.kind is EventKind.REMOVED for event in events[before:]), (
        f"EVENT-1: expected only removals after a clear, got {events[before:]}"
    )
    assert removed <= stored, f"EVENT-1: removed and never stored: {removed - stored}"
    assert removed == stored, f"EVENT-1: all nodes are in the tree still, and unreported is {stored - removed}"


@clause("EVENT-2", "CONF-5", needs=COUNTED)
def test_bytes_are_counted_in_each_direction_for_all_pools(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    persisted, there = driver.adapter.counters()["bytes_stored"], bytes_in_store(driver)
    assert persisted == there, f"EVENT-2: expected {there} bytes to be counted as stored, got {persisted}"
    driver.restart()
    assert driver.adapter.counters()["bytes_prefetched"] == 0, "EVENT-2: nothing was prefetched yet: expected 0 bytes"
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    fetched, read = driver.adapter.counters()["bytes_prefetched"], bytes_read(driver)
    assert fetched == read, f"EVENT-2: expected {read} bytes to be counted as prefetched, got {fetched}"


@clause("EVENT-2", needs=COUNTED)
def test_a_prefetch_that_brings_nothing_counts_no_bytes(driver: Scenario) -> None:
    driver.put_in_storage_alone(PAIR)
    driver.put_pages(PAIR)
    driver.evict_all(FULL)
    driver.drain()
    assert driver.prefetch_pages(PROMPT) == 0, "FETCH-4: past the pair nothing is in storage"
    counters = driver.adapter.counters()
    assert counters["bytes_prefetched"] == 0, f"EVENT-2: nothing came, counted are {counters['bytes_prefetched']} bytes"


def bytes_read(driver: Scenario) -> int:
    """The number of bytes of all objects that were requested."""
    keys = [key for call in driver.store().calls if call.verb == "get" for key in call.keys]
    return sum(len(driver.store().objects[key]) for key in keys)
