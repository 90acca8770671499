"""LOCK-1 to LOCK-6, LOCK-8, LOCK-10 to LOCK-12: what a lock on the device holds, and what its release undoes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Component

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .snapshot_values import prefixes

# LOCK-1, LOCK-4, LOCK-5, LOCK-6, LOCK-8: what a lock holds, and that locked data is neither evicted nor moved.


def expected_locks(driver: Scenario, pages: tuple[int, ...]) -> Counter[tuple[str, tuple[int, ...]]]:
    """The locks of one receipt at the end of some pages whose last window is a node of its own."""
    holds = {
        FULL: prefixes(*pages),
        SWA: prefixes(*pages) - prefixes(*pages[: -driver.window_pages or None]),
        MAMBA: {pages},
    }
    return Counter({(component, prefix): 1 for component in driver.config.components for prefix in holds[component]})


@clause("LOCK-1", bigram=True)
def test_a_lock_holds_the_path_the_window_and_the_state(driver: Scenario) -> None:
    pages = tuple(range(1, driver.window_pages + 4))
    for prompt in (pages[:2], pages, (1, 9)):
        driver.put_pages(prompt)
    receipt = driver.lock_pages(pages)
    found, expected = driver.all_locks(), expected_locks(driver, pages)
    driver.unlock(receipt)
    assert found == expected, f"LOCK-1: a lock on {pages} must hold {expected}, it holds {found}"
    assert not driver.all_locks(), f"LOCK-2: released, it still holds {driver.all_locks()}"


@clause("LOCK-1", components=(SWA,))
def test_a_lock_on_a_prompt_shorter_than_the_window_holds_swa_to_the_root(driver: Scenario) -> None:
    pages = tuple(range(1, max(2, driver.window_pages)))
    driver.put_pages(pages)
    receipt = driver.lock_pages(pages)
    found = {prefix for component, prefix in driver.all_locks() if component == SWA}
    driver.unlock(receipt)
    assert found == prefixes(*pages), f"LOCK-1: all of {pages} lies in the window, held is {found}"


@clause("LOCK-1")
def test_a_lock_on_the_root_holds_nothing(driver: Scenario) -> None:
    driver.put_pages([1])
    receipt = driver.lock(driver.match(driver.key_of([])).device_anchor)
    assert not driver.all_locks(), f"LOCK-1: there is nothing from the root to the root, held are {driver.all_locks()}"
    driver.evict_all()
    driver.unlock(receipt)
    assert driver.hit_pages([1]) == 0, "LOCK-1: a lock on the root kept what is below it"


@clause("LOCK-1", needs=[Capability.SNAPSHOT])
def test_a_removed_node_cannot_be_locked(driver: Scenario) -> None:
    driver.put_pages([1])
    handle = driver.find([1])
    driver.evict_all()
    with driver.refused("LOCK-1", "a lock on an evicted node"):
        driver.adapter.lock(handle)


@clause("LOCK-4", bigram=True)
def test_the_first_lock_and_the_last_release_change_the_sizes_once(driver: Scenario) -> None:
    size, window = driver.config.page_size, driver.window_pages
    pages = tuple(range(1, window + 3))
    driver.put_pages(pages)
    tokens = {FULL: len(pages) * size, SWA: window * size, MAMBA: 1}
    stored = {FULL: len(pages) * size, SWA: len(pages) * size, MAMBA: 1}
    unlocked = {name: (stored[name], 0) for name in driver.config.components}
    locked = {name: (stored[name] - tokens[name], tokens[name]) for name in driver.config.components}
    seen = [_sizes(driver)]
    receipts = []
    for _ in range(2):
        receipts.append(driver.lock_pages(pages))
        seen.append(_sizes(driver))
    for receipt in receipts:
        driver.unlock(receipt)
        seen.append(_sizes(driver))
    expected = [unlocked, locked, locked, locked, unlocked]
    assert seen == expected, f"LOCK-4: (evictable, protected) over lock, lock, release, release: {expected}, got {seen}"


@clause("LOCK-4", bigram=True)
def test_a_shared_path_is_counted_once(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2])
    driver.put_pages([1, 3])
    size = driver.config.page_size
    receipts = [driver.lock_pages(pages) for pages in ([1, 2], [1, 3])]
    protected = driver.adapter.sizes()[FULL].protected
    assert protected == 3 * size, f"LOCK-4: two prompts of 2 pages share one: 3 pages protected, got {protected}"
    driver.unlock(receipts[0])
    protected = driver.adapter.sizes()[FULL].protected
    assert protected == 2 * size, f"LOCK-4: the other prompt holds its 2 pages, got {protected}"
    driver.unlock(receipts[1])


@clause("LOCK-5", bigram=True)
def test_locked_data_survives_any_eviction(driver: Scenario) -> None:
    pages = [1, 2, 3]
    driver.put_pages([1])
    driver.put_pages(pages)
    driver.put_pages([8])
    receipt = driver.lock_pages(pages)
    for component in driver.config.components:
        result = driver.evict(component, driver.config.capacity_tokens[component])
        assert driver.hit_pages(pages) == 3, f"LOCK-5: evicting {component} ({result}) took what is locked"
    assert driver.hit_pages([8]) == 0, "EVICT-1: what is not locked was to go"
    driver.unlock(receipt)
    driver.evict_all()
    assert driver.hit_pages(pages) == 0, "LOCK-2: released, it can be evicted again"


@clause("LOCK-5", "POOL-3", needs=[Capability.SIZES], bigram=True)
def test_locked_data_survives_any_allocation(driver: Scenario) -> None:
    pages, size = [1, 2, 3], driver.config.page_size
    driver.put_pages(pages)
    receipt = driver.lock_pages(pages)
    paged = [component for component in driver.config.components if component != Component.MAMBA]
    room = min(driver.adapter.sizes()[name].free + driver.adapter.sizes()[name].evictable for name in paged)
    assert driver.allocate(room + size) is None, f"LOCK-5: {room + size} slots were given, {room} are not locked"
    slots = driver.allocate(room)
    assert slots is not None, f"EVICT-1: {room} slots are free or evictable"
    assert driver.hit_pages(pages) == 3, "LOCK-5: an allocation took what is locked"
    driver.unlock(receipt)


@clause("LOCK-5", needs=[Capability.SNAPSHOT])
def test_an_insert_over_locked_data_moves_no_slot(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    receipt = driver.lock_pages([1, 2, 3])
    before = {component: driver.device_slots(component) for component in driver.config.components}
    driver.insert_fresh([1, 2, 3])
    after = {component: driver.device_slots(component) for component in driver.config.components}
    driver.unlock(receipt)
    assert after == before, f"LOCK-5: slots under a lock went from {before} to {after}"


@clause("LOCK-6", needs=[Capability.SNAPSHOT], bigram=True)
def test_releasing_twice_is_refused(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    first, second = driver.lock_pages([1, 2]), driver.lock_pages([1, 2])
    driver.unlock(first)
    with driver.refused("LOCK-6", "a second release"):
        driver.adapter.unlock(first)
    driver.unlock(second)
    for receipt in (first, second):
        with driver.refused("LOCK-6", "a second release, when nothing is locked"):
            driver.adapter.unlock(receipt)


@clause("LOCK-6", needs=[Capability.SNAPSHOT])
def test_a_receipt_of_another_cache_is_refused(driver: Scenario) -> None:
    other = Scenario(type(driver.adapter)(driver.config), driver.config)
    for each in (driver, other):
        each.put_pages([1, 2])
    own, foreign = driver.lock_pages([1, 2]), other.lock_pages([1, 2])
    with driver.refused("LOCK-6", "the receipt of another cache"):
        driver.adapter.unlock(foreign)
    driver.unlock(own)
    other.unlock(foreign)
    other.adapter.close()


@clause("LOCK-8", each=(SWA, MAMBA), bigram=True)
def test_full_is_locked_as_often_as_another_component(driver: Scenario, component: str) -> None:
    """Lock a tombstone once while it lacks a component, and twice after a recomputation."""
    handle = driver.make_tombstone(component)
    receipts = [driver.lock(handle)]
    driver.recompute()
    receipts += [driver.lock(handle), driver.lock(handle)]
    found = driver.all_locks()
    counts = {component: found[component, TOMBSTONE] for component in driver.config.components}
    expected = {name: 2 if name in driver.evicted_with(component) else 3 for name in driver.config.components}
    assert counts == expected, f"LOCK-8: expected {expected}, got {counts}"
    for receipt in receipts:
        driver.unlock(receipt)
    assert not driver.all_locks(), f"LOCK-2: released, {driver.all_locks()} is left"


def _sizes(driver: Scenario) -> dict[str, tuple[int, int]]:
    return {name: (sizes.evictable, sizes.protected) for name, sizes in driver.adapter.sizes().items()}


# LOCK-2, LOCK-3: a release undoes exactly what its lock did, also after other changes.


SHORT = (1, 2, 3)
LONG = (1, 2, 3, 4, 5, 6)


def split(driver: Scenario) -> None:
    """Matches end inside the locked nodes, and split them."""
    for pages in (LONG[:2], LONG[:5], LONG[:4], LONG[:1]):
        driver.match(driver.key_of(pages))


def branch(driver: Scenario) -> None:
    """Diverging prompts are cached."""
    for pages in ([*SHORT[:2], 7], [*LONG[:4], 7]):
        driver.put_pages(pages)


def grow(driver: Scenario) -> None:
    """A longer prompt is cached."""
    driver.put_pages([*LONG, 7, 8])


def evict(driver: Scenario) -> None:
    """Everything that is not locked is evicted."""
    driver.put_pages([9])
    driver.evict_all()


def duplicate(driver: Scenario) -> None:
    """The same prompts are inserted again from other slots, with and without SWA data of the first pages."""
    driver.insert_fresh(LONG)
    driver.insert_fresh(LONG, passed=2)


def share(driver: Scenario) -> None:
    """Other receipts are taken and released."""
    for pages in (LONG, SHORT):
        driver.unlock(driver.lock_pages(pages))


def everything(driver: Scenario) -> None:
    """All changes, one after the other."""
    for disturb in (grow, split, evict, duplicate, share, branch, evict):
        disturb(driver)


Disturb = Callable[[Scenario], None]


@clause("LOCK-2", page_sizes=[1, 16])
@pytest.mark.parametrize("disturb", [split, branch, grow, evict, duplicate, share], ids=lambda each: each.__name__)
def test_a_release_undoes_only_its_own_lock(driver: Scenario, disturb: Disturb) -> None:
    lock_disturb_release(driver, disturb)


@clause("LOCK-2", bigram=True)
def test_a_release_undoes_its_lock_whatever_happened(driver: Scenario) -> None:
    lock_disturb_release(driver, everything)


def lock_disturb_release(driver: Scenario, disturb: Disturb) -> None:
    """Take and release two locks, with a change in between that must not change any lock."""
    driver.put_pages(SHORT)
    driver.put_pages(LONG)
    long = driver.lock_pages(LONG)
    with_long = driver.all_locks()
    short = driver.lock_pages(SHORT)
    with_both = driver.all_locks()
    disturb(driver)
    assert driver.all_locks() == with_both, (
        f"LOCK-2: {disturb.__name__} changed locks from {with_both} to {driver.all_locks()}"
    )
    driver.unlock(long)
    expected, found = with_both - with_long, driver.all_locks()
    assert found == expected, f"LOCK-2: after {disturb.__name__} and a release expected {expected}, got {found}"
    driver.unlock(short)
    assert not driver.all_locks(), f"LOCK-2: after {disturb.__name__} and both releases {driver.all_locks()} is left"


@clause("LOCK-2", needs=[Capability.SIZES], bigram=True)
def test_locks_taken_and_released_in_any_order_leave_nothing(driver: Scenario) -> None:
    driver.put_pages(SHORT)
    driver.put_pages(LONG)
    first = [driver.lock_pages(LONG), driver.lock_pages(SHORT)]
    split(driver)
    second = [driver.lock_pages(LONG), driver.lock_pages(SHORT)]
    for receipt in (first[1], second[0]):
        driver.unlock(receipt)
    branch(driver)
    for receipt in (first[0], second[1]):
        driver.unlock(receipt)
    protected = {name: sizes.protected for name, sizes in driver.adapter.sizes().items()}
    assert not any(protected.values()), f"LOCK-2: nothing is locked, protected are {protected}"


@clause("LOCK-2", components=(SWA,))
def test_a_temporary_lock_leaves_the_window_of_another_request(driver: Scenario) -> None:
    driver.put_pages(SHORT)
    driver.put_pages(LONG)
    driver.put_pages([*LONG, 7])
    receipt = driver.lock_pages(SHORT)
    before = driver.all_locks()
    for pages in (LONG, [*LONG, 7]):
        driver.unlock(driver.lock_pages(pages))
        assert driver.all_locks() == before, (
            f"LOCK-2: a temporary lock on {pages} changed {before} to {driver.all_locks()}"
        )
    driver.unlock(receipt)


@clause("LOCK-3", each=(SWA, MAMBA), bigram=True)
def test_data_that_a_lock_skipped_stays_unlocked(driver: Scenario, component: str) -> None:
    """Lock a tombstone, recompute its data, lock again, release in the order of the locks."""
    handle = driver.make_tombstone(component)
    receipt = driver.lock(handle)
    assert driver.all_locks()[FULL, TOMBSTONE] == 1, f"LOCK-1: FULL data of {TOMBSTONE} is there and was to be locked"
    skipped = driver.all_locks()[component, TOMBSTONE]
    driver.recompute()
    second = driver.lock(handle)
    driver.unlock(receipt)
    counts = skipped, driver.all_locks()[component, TOMBSTONE]
    driver.unlock(second)
    assert counts == (0, 1), f"LOCK-3: {component} locks at the tombstone, then by the second lock alone: {counts}"
    assert not driver.all_locks(), f"LOCK-3: both are released, {driver.all_locks()} is left"


@clause("LOCK-3", "LOCK-2", components=(SWA,))
def test_a_window_lock_that_a_tombstone_shortened_stays_short(driver: Scenario) -> None:
    driver.put_pages(driver.longer_prompt()[:3])
    behind = driver.find(driver.longer_prompt()[:3])
    driver.make_tombstone(SWA)
    receipt = driver.lock(behind)
    before = driver.all_locks()
    assert before[SWA, TOMBSTONE] == 0, f"LOCK-1: a tombstone has no SWA data to lock: expected 0, got {before}"
    driver.recompute()
    other = driver.lock(behind)
    driver.unlock(receipt)
    left = driver.all_locks()
    driver.unlock(other)
    assert left[SWA, (1, 2, 3)] == 1, f"LOCK-3: the second lock holds page 3 once: expected 1, got {left}"
    assert not driver.all_locks(), f"LOCK-3: all is released, {driver.all_locks()} is left"


# LOCK-10, LOCK-11: locks that release a part early, or leave it out.


def locks_of(driver: Scenario, component: str) -> Counter[tuple[int, ...]]:
    """The locks of one component, by prefix."""
    return Counter({prefix: count for (name, prefix), count in driver.all_locks().items() if name == component})


@clause("LOCK-10", bigram=True)
def test_a_window_is_released_before_the_rest(driver: Scenario) -> None:
    pages = range(1, driver.window_pages + 4)
    driver.put_pages(pages[:2])
    driver.put_pages(pages)
    receipt = driver.lock_pages(pages)
    full = driver.adapter.sizes()[FULL]
    left = driver.unlock_window(receipt)
    sizes = driver.adapter.sizes()
    assert sizes[FULL] == full, f"LOCK-10: FULL stays locked: expected {full}, got {sizes[FULL]}"
    assert not sizes[SWA].protected, f"LOCK-10: the window was released: expected 0 protected, got {sizes[SWA]}"
    driver.evict_all()
    sizes = driver.adapter.sizes()
    assert sizes[FULL].protected == full.protected, f"LOCK-10: FULL was evicted: expected {full}, got {sizes[FULL]}"
    assert sizes[SWA].free == driver.config.capacity_tokens[SWA], f"LOCK-10: the window was to go: {sizes[SWA]}"
    driver.unlock(left)
    driver.evict_all()
    sizes = driver.adapter.sizes()
    assert sizes[FULL].free == driver.config.capacity_tokens[FULL], f"LOCK-2: released, all can go: {sizes[FULL]}"


@clause("LOCK-10", "LOCK-6", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_window_is_released_once(driver: Scenario) -> None:
    driver.put_pages(LONG)
    first, second = driver.lock_pages(LONG), driver.lock_pages(LONG)
    window = Counter(dict.fromkeys(locks_of(driver, SWA), 1))
    for _ in range(2):
        first = driver.unlock_window(first)
    assert locks_of(driver, SWA) == window, f"LOCK-10: the other lock holds {window}, got {locks_of(driver, SWA)}"
    driver.unlock(first)
    held = driver.all_locks()
    assert held == expected_locks(driver, LONG), f"LOCK-10: the other lock holds what it held, got {held}"
    driver.unlock(second)
    assert not driver.all_locks(), f"LOCK-2: both are released, {driver.all_locks()} is left"


@clause("LOCK-10", "LOCK-2", "LOCK-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_the_rest_of_a_lock_is_released_whatever_happened(driver: Scenario) -> None:
    """The window is released and evicted, the nodes are split, and another request computes and locks it again."""
    driver.put_pages(SHORT)
    driver.put_pages(LONG)
    left = driver.unlock_window(driver.lock_pages(LONG))
    full = locks_of(driver, FULL)
    for disturb in (grow, split, evict, duplicate, branch, evict):
        disturb(driver)
        found = locks_of(driver, FULL)
        assert found == full, f"LOCK-10: after {disturb.__name__} FULL is locked as before: {full}, got {found}"
    driver.insert_fresh(LONG)
    second = driver.lock_pages(LONG)
    driver.unlock(left)
    held = driver.all_locks()
    assert held == expected_locks(driver, LONG), f"LOCK-3: the second lock holds what it took, got {held}"
    driver.unlock(second)
    assert not driver.all_locks(), f"LOCK-2: both are released, {driver.all_locks()} is left"


@clause("LOCK-11", bigram=True)
def test_a_lock_can_leave_out_the_state(driver: Scenario) -> None:
    driver.put_pages(LONG)
    receipt = driver.lock_without_state(driver.find(LONG))
    found, expected = driver.all_locks(), expected_locks(driver, LONG)
    del expected[MAMBA, LONG]
    assert found == expected, f"LOCK-11: expected the locks {expected}, got {found}"
    driver.evict_all()
    left = {name for name in driver.config.components if LONG in driver.device_slots(name)}
    assert left == {*driver.config.components} - {MAMBA}, f"LOCK-11: the state alone was to go, {left} is left"
    driver.unlock(receipt)
    assert not driver.all_locks(), f"LOCK-2: released, {driver.all_locks()} is left"


@clause("LOCK-11", "LOCK-2", bigram=True)
def test_a_lock_without_the_state_leaves_that_of_another_lock(driver: Scenario) -> None:
    driver.put_pages(LONG)
    whole, without = driver.lock_pages(LONG), driver.lock_without_state(driver.find(LONG))
    driver.unlock(without)
    found = driver.all_locks()
    assert found == expected_locks(driver, LONG), f"LOCK-11: the other lock holds what it held, got {found}"
    driver.unlock(whole)


# LOCK-2, LOCK-3, LOCK-5: device locks on nodes whose data is demoted and loaded back.


HOST = [Capability.HOST]


@clause("LOCK-3", "LOCK-2", each=(SWA, MAMBA), needs=HOST)
def test_data_that_was_loaded_under_a_lock_is_not_released_with_it(driver: Scenario, component: str) -> None:
    """Lock a tombstone, load its data back, lock again, release in the order of the locks."""
    driver.drop_on_device(component)
    receipt = driver.lock(best_of_tombstone(driver))
    skipped = driver.locks_on_device()[component, TOMBSTONE]
    driver.load(driver.key_of(TOMBSTONE))
    assert TOMBSTONE in driver.device_slots(component), f"FLOW-10: {component} of {TOMBSTONE} was loaded"
    second = driver.lock(best_of_tombstone(driver))
    driver.unlock(receipt)
    counts = skipped, driver.locks_on_device()[component, TOMBSTONE]
    driver.unlock(second)
    assert counts == (0, 1), f"LOCK-3: {component} locks at the tombstone, then by the second lock alone: {counts}"
    assert not driver.locks_on_device(), f"LOCK-3: both are released, {driver.locks_on_device()} is left"


def best_of_tombstone(driver: Scenario) -> object:
    """The node of the first two pages, whose components are valid on the two tiers together."""
    return driver.match(driver.key_of(TOMBSTONE), chunked=True).best_match


@clause("LOCK-4", "LOCK-5", "EVICT-3", each=(SWA, MAMBA), needs=HOST)
def test_data_that_was_loaded_under_a_lock_can_be_evicted_and_the_leaf_stays(driver: Scenario, component: str) -> None:
    """A lock skipped a component of a device leaf: after a load it can be evicted again, and the leaf stays."""
    driver.drop_on_device(component)
    receipt = driver.lock(best_of_tombstone(driver))
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    driver.load(driver.key_of(TOMBSTONE))
    sizes = driver.adapter.sizes()[component]
    count = sum(map(len, driver.device_slots(component).values()))
    assert sizes.evictable + sizes.protected == count, f"LOCK-4: {count} slots of {component} are cached, sizes {sizes}"
    assert sizes.evictable > 0, f"LOCK-4: no lock holds what was loaded of {component}: {sizes}"
    full = driver.device_slots(FULL)
    driver.evict_all(component)
    left = driver.components_on_device(TOMBSTONE)
    expected = set(driver.config.components) - driver.evicted_with(component)
    assert left == expected, f"EVICT-3: {TOMBSTONE} is locked without its {component}: {expected} stays, not {left}"
    assert driver.device_slots(FULL) == full, f"LOCK-5: {full} was locked, the device has {driver.device_slots(FULL)}"
    driver.unlock(receipt)
    driver.evict_all()
    assert not driver.device_slots(FULL), (
        f"LOCK-2: released, all may leave the device, left is {driver.device_slots(FULL).keys()}"
    )
    driver.best_match(driver.longer_prompt())


@clause("LOCK-5", "LOCK-2", needs=HOST)
def test_locked_device_data_stays_when_the_host_loses_its_copy(driver: Scenario) -> None:
    driver.put_on_both(TOMBSTONE, driver.longer_prompt())
    receipt = driver.lock_pages(driver.longer_prompt())
    before, locked = driver.device_slots(FULL), driver.locks_on_device()
    for component in driver.config.components:
        driver.evict_host(component, driver.config.capacity_tokens[component])
        driver.evict_all(component)
    assert driver.device_slots(FULL) == before, (
        f"LOCK-5: {before} is locked, the device has {driver.device_slots(FULL)}"
    )
    assert driver.locks_on_device() == locked, f"LOCK-2: locks {locked} became {driver.locks_on_device()}"
    pages = len(driver.longer_prompt())
    assert driver.tier_hits(driver.longer_prompt()) == (pages, 0), "LOCK-5: all of it is hit on the device"
    driver.unlock(receipt)


@clause("LOCK-12", "LOCK-5")
def test_a_node_on_the_host_alone_is_locked_there(driver: Scenario) -> None:
    driver.put_on_host(TOMBSTONE, driver.longer_prompt())
    receipt = driver.lock(driver.best_match(driver.longer_prompt()))
    pages = len(driver.longer_prompt())
    for component in driver.config.components:
        driver.evict_all_host(component)
        driver.evict_all(component)
        hits = driver.tier_hits(driver.longer_prompt())
        assert hits == (0, pages), (
            f"LOCK-12: evicting {component} took what is locked: expected {(0, pages)}, got {hits}"
        )
    driver.unlock(receipt)
    assert not driver.locks_on_host(), f"LOCK-2: released, {driver.locks_on_host()} is left on the host"
    driver.evict_all_host()
    hits = driver.tier_hits(driver.longer_prompt())
    assert hits == (0, 0), f"LOCK-12: released, all can be evicted: expected (0, 0), got {hits}"


@clause("LOCK-12", "LOCK-3")
def test_a_lock_of_a_demoted_node_holds_its_path_and_nothing_that_is_loaded(driver: Scenario) -> None:
    driver.put_on_both(TOMBSTONE, driver.longer_prompt())
    held = driver.lock_pages(TOMBSTONE)
    driver.evict_all()
    expected = driver.locks_on_device()
    receipt = driver.lock(driver.best_match(driver.longer_prompt()))
    driver.unlock(held)
    assert driver.locks_on_device() == expected, f"LOCK-12: the path holds {expected}, got {driver.locks_on_device()}"
    driver.load(driver.key_of(driver.longer_prompt()))
    assert driver.locks_on_device() == expected, f"LOCK-12: nothing was loaded locked, got {driver.locks_on_device()}"
    driver.evict_all()
    left = driver.device_slots(FULL).keys()
    assert left == prefixes(*TOMBSTONE), f"LOCK-12: expected the path {prefixes(*TOMBSTONE)} to stay, got {left}"
    driver.unlock(receipt)
    locks = driver.locks_on_device(), driver.locks_on_host()
    assert locks == ({}, {}), f"LOCK-2: released, {locks} is left"
    driver.evict_all()
    assert not driver.device_slots(FULL), f"LOCK-2: released, all may leave, left is {driver.device_slots(FULL)}"
