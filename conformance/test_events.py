"""EVENT: the event log gives what is cached on each tier, by namespace; counters equal the bytes that were moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
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

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    drop_on_device,
    evict_all,
    evict_host,
    find,
    has,
    insert_fresh,
    key_of,
    lock,
    put,
    put_and_back_up,
    put_on_both,
    put_on_host,
    window_pages,
)
from .storage_scenes import (
    PAIR,
    PREFIXES,
    PROMPT,
    in_storage,
    pending_job,
    prefetch,
    put_in_storage,
    put_in_storage_alone,
    store,
)
from .transfers import (
    STAGES,
    Stage,
    bytes_moved,
    bytes_on_host,
    pending_transfer,
    queue_load,
    slot_bytes,
    transfer_bytes,
    transfer_views,
)
from .tree_view import free_device_slots, free_host_slots, host_slots, tokens_of_prefix

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


def cached_blocks(driver: Driver) -> Blocks:
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


def _blocks(driver: Driver, namespace: Namespace, prefix: bytes) -> Sequence[str]:
    tokens = tokens_of_prefix(prefix, bigram=driver.config.bigram)
    return driver.adapter.page_hashes(driver.key(tokens, namespace))


# EVENT-1, EVENT-2: the log gives what is cached on the device, by namespace.


@clause("EVENT-1", bigram=True)
def test_the_log_gives_the_residency_after_each_verb(driver: Driver) -> None:
    longer = list(range(1, 4 + window_pages(driver.config)))
    receipts: list[object] = []
    steps: dict[str, Callable[[], object]] = {
        "insert": lambda: put(driver, [1, 2, 3]),
        "insert beside it, with a split": lambda: put(driver, [1, 2, 9]),
        "split by a match": lambda: driver.match(key_of(driver, [1, 8])),
        "the same again": lambda: insert_fresh(driver, [1, 2, 3]),
        "insert below it": lambda: put(driver, longer),
        "lock": lambda: receipts.append(lock(driver, longer)),
        "evict around the lock": lambda: evict_all(driver, *reversed(driver.config.components)),
        "insert over what was evicted": lambda: insert_fresh(driver, [1, 2, 9]),
        "insert what the window has left": lambda: put(driver, [7, *longer], passed=1),
        "unlock": lambda: driver.unlock(receipts.pop()),
        "evict a page": lambda: driver.evict(FULL, driver.config.page_size),
        "reset": driver.reset,
        "insert after the reset": lambda: put(driver, [1, 2, 3]),
        "evict all": lambda: evict_all(driver),
    }
    for name, step in steps.items():
        step()
        found, expected = replay(driver.adapter.events()), cached_blocks(driver)
        assert found == expected, f"EVENT-1: after {name}: too much {found - expected}, missing {expected - found}"
    assert not replay(driver.adapter.events()), "EVENT-1: all was evicted at the end"


@clause("EVENT-1", needs=[Capability.REQUESTS], bigram=True)
def test_the_log_gives_the_residency_while_requests_run(driver: Driver) -> None:
    prompt = driver.prompt(range(1, 5 + window_pages(driver.config)))
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
def test_nothing_is_reported_before_it_is_cached(driver: Driver) -> None:
    slots = driver.allocate(2 * driver.config.page_size)
    assert slots is not None, "POOL-3: an empty cache has room for two pages"
    driver.write(key_of(driver, [1, 2]), slots, 0)
    driver.match(key_of(driver, [1, 2]))
    admission = driver.admit(key_of(driver, [3, 4, 5]))
    assert admission is not None, "REQ-5: a short request fits"
    driver.extend(admission.request, [7])
    assert not driver.adapter.events(), f"EVENT-1: nothing is cached so far, got {driver.adapter.events()}"
    driver.abort(admission.request)
    driver.free(slots)
    assert not driver.adapter.events(), f"EVENT-1: nothing was ever cached, got {driver.adapter.events()}"


@clause("EVENT-1", bigram=True)
def test_the_log_only_grows(driver: Driver) -> None:
    seen = tuple(driver.adapter.events())
    for step in (lambda: put(driver, [1, 2]), lambda: put(driver, [1, 3]), lambda: evict_all(driver), driver.reset):
        step()
        events = tuple(driver.adapter.events())
        assert events[: len(seen)] == seen, f"EVENT-1: the log began {seen}, and now begins {events[: len(seen)]}"
        seen = events


@clause("EVENT-1")
def test_a_tombstone_is_reported_for_its_component_alone(driver: Driver) -> None:
    prompt = list(range(1, 4 + window_pages(driver.config)))
    put(driver, [1, 2])
    put(driver, prompt)
    find(driver, prompt)
    for component in (MAMBA, SWA):
        if has(driver, component):
            seen = len(driver.adapter.events())
            driver.evict(component, 1)
            fresh = driver.adapter.events()[seen:]
            kinds = {event.kind for event in fresh}
            assert kinds == {EventKind.REMOVED}, f"EVENT-1: an eviction of {component} removes, got {fresh}"
            assert FULL not in {event.component for event in fresh}, f"EVENT-1: FULL data stayed, got {fresh}"


@clause("EVENT-2", needs=[Capability.NAMESPACES, Capability.HASHES, Capability.SNAPSHOT], bigram=True)
def test_events_name_their_namespace(driver: Driver) -> None:
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
def test_an_eviction_in_one_namespace_is_not_reported_for_another(driver: Driver) -> None:
    key, other = key_of(driver, [1, 2]), driver.key(driver.prompt([1, 2]), OTHER)
    driver.put(key)
    driver.put(other)
    receipt = driver.lock(driver.match(other).device_anchor)
    evict_all(driver, FULL)
    removed = {event.namespace for event in driver.adapter.events() if event.kind is EventKind.REMOVED}
    assert removed == {SHARED}, f"EVENT-2: {OTHER} was locked, removed of {removed}"
    assert replay(driver.adapter.events()) == cached_blocks(driver), "EVENT-2: the other's blocks are there"
    driver.unlock(receipt)


# EVENT-1, EVENT-2: the log gives what is cached on each tier.

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


# EVENT-2: the counters of each direction equal the bytes that were moved.


@clause("EVENT-2", "FLOW-6", needs=[Capability.COUNTERS])
def test_the_bytes_counted_for_each_direction_are_the_bytes_moved(driver: Driver) -> None:
    expected = dict.fromkeys(TransferKind, 0)
    put_and_back_up(driver, WHOLE[:2])
    expected[TransferKind.BACKUP] = bytes_on_host(driver)
    for _ in range(2):
        put(driver, WHOLE)
        require_counts(driver, expected)
    put_on_host(driver, WHOLE)
    expected[TransferKind.BACKUP] = bytes_moved(driver, TransferKind.BACKUP)
    for pages in (WHOLE[:2], WHOLE):
        load = queue_load(driver, pages)
        require_counts(driver, expected)
        driver.claim(load.ticket)
    assert all(expected.values()), f"EVENT-2: expected bytes in each direction, got {expected}"


def require_counts(driver: Driver, expected: dict[TransferKind, int]) -> None:
    """Add the bytes of the transfers under way to the expected ones, drain, and compare with the counters."""
    for kind in TransferKind:
        for one in transfer_views(driver, kind):
            expected[kind] += transfer_bytes(driver, one)
    driver.drain()
    found = {kind: bytes_moved(driver, kind) for kind in TransferKind}
    assert found == expected, f"EVENT-2: expected the moved bytes {expected}, got {found}"


@clause("EVENT-2", needs=[Capability.COUNTERS, Capability.HOST], page_sizes=[16])
def test_a_component_alone_counts_its_own_bytes(driver: Driver) -> None:
    for component in (SWA, MAMBA):
        if not has(driver, component):
            continue
        driver.reset()
        drop_on_device(driver, component)
        before = bytes_moved(driver, TransferKind.LOAD)
        free = free_device_slots(driver)
        driver.load(key_of(driver, TOMBSTONE))
        brought = {name: count - free_device_slots(driver)[name] for name, count in free.items()}
        assert brought[FULL] == 0, f"HOST-5: {component} was to come alone, came {brought}"
        expected, found = slot_bytes(driver, brought), bytes_moved(driver, TransferKind.LOAD) - before
        assert found == expected, f"EVENT-2: {brought} slots were loaded: expected {expected} bytes, got {found}"


@clause("EVENT-2", "EVICT-7", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_BACK])
def test_bytes_that_an_eviction_backs_up_are_counted(driver: Driver) -> None:
    put(driver, WHOLE)
    size = driver.config.page_size
    free = free_host_slots(driver)
    evict_all(driver)
    taken = {name: count - free_host_slots(driver)[name] for name, count in free.items()}
    assert taken[FULL] == len(WHOLE) * size, f"EVICT-7: four pages are on the host, got {taken}"
    expected, found = slot_bytes(driver, taken), bytes_moved(driver, TransferKind.BACKUP)
    assert found == expected, f"EVENT-2: {taken} slots were backed up: expected {expected} bytes, got {found}"


@clause("EVENT-2", "FLOW-3", needs=[Capability.COUNTERS], write_policies=[WritePolicy.WRITE_THROUGH], page_sizes=[16])
def test_a_backup_below_a_failed_one_is_not_counted(driver: Driver) -> None:
    for pages in (WHOLE[:2], WHOLE):
        put(driver, pages)
        driver.step()
    parent, child = driver.pending(TransferKind.BACKUP)
    driver.complete(child.ticket)
    driver.fail(parent.ticket, parts_done=0)
    driver.step()
    found = bytes_moved(driver, TransferKind.BACKUP)
    assert found == 0, f"EVENT-2: the host has nothing: expected 0 bytes to be counted as backed up, got {found}"
    put(driver, WHOLE)
    driver.drain()
    expected, found = bytes_on_host(driver), bytes_moved(driver, TransferKind.BACKUP)
    assert found == expected, f"EVENT-2: both were backed up again: expected {expected} bytes, got {found}"


# EVENT-1, EVENT-2, CONF-5: events and counters of storage match the objects in storage.


NEEDS = [Capability.EVENTS, Capability.STORAGE, Capability.HOST, Capability.SNAPSHOT]
COUNTED = [Capability.COUNTERS, Capability.STORAGE]


def reported(driver: Driver, tier: Tier = Tier.STORAGE) -> list[Event]:
    """The events of a tier."""
    return [event for event in driver.adapter.events() if event.tier is tier]


def bytes_in_store(driver: Driver) -> int:
    """The number of bytes in the store."""
    return sum(map(len, store(driver).objects.values()))


@clause("EVENT-1", needs=[*NEEDS, Capability.STEPPED], write_policies=[WritePolicy.WRITE_THROUGH])
def test_nothing_is_reported_before_storage_has_it(driver: Driver) -> None:
    put(driver, PAIR)
    driver.step()
    driver.complete_all()
    pending = pending_job(driver, StorageKind.STORE)
    for _ in range(pending.units):
        assert not reported(driver), f"EVENT-1: storage has not answered: expected no events, got {reported(driver)}"
        driver.advance(pending.ticket)
    driver.step()
    events = {event.component for event in reported(driver)}
    assert events == set(driver.config.components), (
        f"EVENT-1: storage has all components: expected events of all, got {events}"
    )


@clause("EVENT-1", needs=NEEDS)
def test_blocks_that_are_reported_as_stored_are_in_storage(driver: Driver) -> None:
    put_in_storage(driver, *PREFIXES)
    for component in driver.config.components:
        events = {block for event in reported(driver) if event.component == component for block in event.blocks}
        there = in_storage(driver, PROMPT)[COMPONENT_POOL[component]]
        assert len(events) == sum(there), (
            f"EVENT-1: {component}: expected {sum(there)} reported blocks, got {len(events)}"
        )


@clause("EVENT-1", needs=NEEDS)
def test_prefetched_blocks_are_reported_on_the_host(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    for component in driver.config.components:
        events = [event for event in reported(driver, Tier.HOST) if event.component == component]
        blocks = [block for event in events for block in event.blocks]
        assert all(event.kind is EventKind.STORED for event in events), f"EVENT-1: all is new on the host, got {events}"
        held = len(host_slots(driver, component))
        assert len(blocks) == len(set(blocks)) == held, (
            f"EVENT-1: expected events of {held} pages of {component}, got {events}"
        )


@clause("EVENT-1", "FLOW-12", needs=NEEDS)
def test_a_clear_is_reported(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
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
def test_bytes_are_counted_in_each_direction_for_all_pools(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
    persisted, there = driver.adapter.counters()["bytes_stored"], bytes_in_store(driver)
    assert persisted == there, f"EVENT-2: expected {there} bytes to be counted as stored, got {persisted}"
    driver.restart()
    assert driver.adapter.counters()["bytes_prefetched"] == 0, "EVENT-2: nothing was prefetched yet: expected 0 bytes"
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    fetched, read = driver.adapter.counters()["bytes_prefetched"], bytes_read(driver)
    assert fetched == read, f"EVENT-2: expected {read} bytes to be counted as prefetched, got {fetched}"


@clause("EVENT-2", needs=COUNTED)
def test_a_prefetch_that_brings_nothing_counts_no_bytes(driver: Driver) -> None:
    put_in_storage_alone(driver, PAIR)
    put(driver, PAIR)
    evict_all(driver, FULL)
    driver.drain()
    assert prefetch(driver, PROMPT) == 0, "FETCH-4: past the pair nothing is in storage"
    counters = driver.adapter.counters()
    assert counters["bytes_prefetched"] == 0, f"EVENT-2: nothing came, counted are {counters['bytes_prefetched']} bytes"


def bytes_read(driver: Driver) -> int:
    """The number of bytes of all objects that were requested."""
    keys = [key for call in store(driver).calls if call.verb == "get" for key in call.keys]
    return sum(len(store(driver).objects[key]) for key in keys)
