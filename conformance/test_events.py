"""EVENT: the event log gives what is cached, by namespace.

Counters of transferred bytes are tested with the host tier: on one tier nothing is transferred.
"""

from __future__ import annotations

from collections.abc import Callable

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, EventKind, Namespace

from .event_log import cached_blocks, replay
from .scenario import FULL, MAMBA, SWA, evict_all, find, has, insert_fresh, key_of, lock, put, window_pages

OTHER = Namespace(lora=None, salt="other", tenant=None)


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
