"""EVICT-7, EVICT-8: what leaves the device stays on the host, and what leaves the host."""

from __future__ import annotations

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import StorageKind, TransferKind

from .scenario import FORWARD, FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .snapshot_values import free_slots, prefixes, residency
from .stored_prompts import fetching

BACK = [WritePolicy.WRITE_BACK]
THROUGH = [WritePolicy.WRITE_THROUGH]
OLD, NEW = (1, 2), (3, 4)


# EVICT-7, EVICT-3, EVICT-2: nodes with a host copy leave the device and stay on the host; in which order.


@clause("EVICT-7", "FLOW-8")
def test_a_node_with_a_copy_is_demoted_whichever_component_is_evicted(driver: Scenario) -> None:
    pages = driver.key_of([1, 2])
    for component in driver.config.components:
        driver.reset()
        driver.put_on_both([1, 2])
        driver.evict_all(component)
        left = {name for name in driver.config.components if driver.device_slots(name)}
        assert not left, f"EVICT-3: a leaf leaves the device whole; evicted for {component}, {left} is left"
        found = driver.tier_hits([1, 2])
        assert found == (0, 2), (
            f"EVICT-7: evicted for {component}, both pages are on the host: expected (0, 2), got {found}"
        )
        driver.verify_state(pages, driver.load(pages))
        found = driver.tier_hits([1, 2])
        assert found == (2, 0), (
            f"EVICT-7: demoted for {component} and loaded, both pages are back: expected (2, 0), got {found}"
        )


@clause("EVICT-7", "POOL-1")
def test_a_demotion_frees_the_device_slots_and_moves_no_host_slot(driver: Scenario) -> None:
    driver.put_on_both([1, 2], [3])
    below = {component: driver.host_slots(component) for component in driver.config.components}
    driver.evict_all()
    free = {component: len(pool.free) for component, pool in driver.snapshot().pools.items()}
    assert free == driver.config.capacity_tokens, f"EVICT-7: all of the device is free, got {free}"
    after = {component: driver.host_slots(component) for component in driver.config.components}
    assert after == below, f"EVICT-7: a demotion moved host slots from {below} to {after}"


@clause("POOL-5", "EVICT-7", components=(SWA,), needs=[Capability.HOST])
def test_slots_of_a_demoted_node_have_no_partners(driver: Scenario) -> None:
    driver.put_on_both([1, 2])
    old = driver.match(driver.key_of([1, 2]), chunked=True).device_indices
    driver.evict_all()
    partners = driver.adapter.partners(old)
    assert not partners.any(), f"POOL-5: slots {old.tolist()} are free, their partners are {partners.tolist()}"
    for pages in ([3, 4], [5, 6]):
        driver.put_pages(pages)
    driver.load(driver.key_of([1, 2]))
    driver.evict_all()
    held_slots = {component: driver.device_slots(component) for component in (FULL, SWA)}
    assert held_slots == {FULL: {}, SWA: {}}, (
        f"POOL-5: expected everything to be evicted after slots were reused, left is {held_slots}"
    )


@clause("EVICT-7", "FLOW-8", "EVICT-3", each=(SWA, MAMBA))
def test_data_that_an_inner_node_lost_on_the_device_is_on_the_host(driver: Scenario, component: str) -> None:
    """A tombstone on the device hits through its host copy, and has all components again after a load."""
    driver.drop_on_device(component)
    gone = set(driver.config.components) - driver.components_on_device(TOMBSTONE)
    assert gone == driver.evicted_with(component), (
        f"EVICT-4: {driver.evicted_with(component)} leaves an inner node, not {gone}"
    )
    missing = gone - driver.components_on_host(TOMBSTONE)
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    driver.best_match(driver.longer_prompt())
    found = driver.match(driver.key_of(TOMBSTONE), chunked=True)
    assert not len(found.device_indices), f"EVICT-3: {TOMBSTONE} has a gap on the device, and hits there"
    hits = found.component_host_hit_lengths[component], found.host_hit_length
    assert hits[0] > 0, f"FLOW-8: the {component} data of {TOMBSTONE} is a hit on the host, got {found}"
    assert hits[1] == 0, f"MATCH-12: its FULL data is on the device, yet {hits[1]} tokens are to be loaded"
    driver.verify_state(driver.key_of(TOMBSTONE), driver.load(driver.key_of(TOMBSTONE)))
    assert driver.tier_hits(TOMBSTONE) == (2, 0), (
        f"EVICT-7: loaded, it is whole: expected (2, 0), got {driver.tier_hits(TOMBSTONE)}"
    )


@clause("EVICT-3", "EVICT-7")
def test_a_node_whose_children_are_on_the_host_alone_is_a_leaf_of_the_device(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_on_both(TOMBSTONE, driver.longer_prompt())
        driver.evict(FULL, 1)
        assert driver.device_slots(FULL).keys() == prefixes(*TOMBSTONE), (
            "EVICT-2: the deepest node leaves the device first"
        )
        driver.evict_all(component)
        left = {name for name in driver.config.components if driver.device_slots(name)}
        assert not left, f"EVICT-3: no child is on the device: with {component} all goes, {left} is left"
        found = driver.tier_hits(driver.longer_prompt())
        assert found == (0, len(driver.longer_prompt())), (
            f"FLOW-8: all of it is on the host: expected {(0, len(driver.longer_prompt()))}, got {found}"
        )


@clause("EVICT-5", "EVICT-7")
def test_nodes_are_demoted_from_the_leaves_up(driver: Scenario) -> None:
    chain = (1, 2, 3, 4)
    driver.put_on_both(*(chain[:count] for count in range(1, 5)))
    for count in (3, 2, 1, 0):
        driver.evict(FULL, 1)
        left, expected = driver.device_slots(FULL).keys(), prefixes(*chain[:count])
        assert left == expected, f"EVICT-5: {4 - count} evictions leave {expected} on the device, left is {left}"
        assert driver.tier_hits(chain) == (count, 4 - count), f"FLOW-8: got {driver.tier_hits(chain)} after {4 - count}"


@clause("EVICT-2", needs=[Capability.HOST], page_sizes=[16])
def test_a_use_of_a_demoted_node_counts_as_a_use_of_its_parent(driver: Scenario) -> None:
    driver.put_on_both([1], [7], [1, 2])
    for pages in ([7], [1, 2]):
        driver.match(driver.key_of(pages))
    receipt = driver.lock_pages([7])
    driver.match(driver.key_of([1, 2]))
    driver.evict(FULL, 1)
    driver.unlock(receipt)
    assert driver.device_slots(FULL).keys() == {(1,), (7,)}, (
        f"EVICT-2: 7 was locked, left is {driver.device_slots(FULL).keys()}"
    )
    driver.evict(FULL, 1)
    left = driver.device_slots(FULL).keys()
    assert left == {(1,)}, f"EVICT-2: 1 was used with 1, 2, after 7, so that 7 goes first; left is {left}"


@clause("EVICT-7", executors=[ExecutorKind.STEPPED], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_node_without_a_copy_is_removed(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.step()
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    driver.evict_all()
    assert not driver.nodes(), f"EVICT-7: there is no copy of 1, 2, and it stays in the tree: {driver.nodes().keys()}"
    assert driver.tier_hits([1, 2]) == (0, 0), (
        f"FLOW-3: nothing of it is left: expected (0, 0), got {driver.tier_hits([1, 2])}"
    )


# EVICT-7: with write_back a victim without a host copy is backed up before it leaves the device, or stays there.


@clause("EVICT-7", write_policies=BACK)
def test_a_victim_is_backed_up_within_the_call_whichever_component_is_evicted(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_pages(NEW)
        driver.drain()
        assert not driver.host_slots(FULL), f"HOST-1: nothing is copied before it leaves: {driver.host_slots(FULL)}"
        result = driver.evict(component, driver.config.capacity_tokens[component])
        assert result.refused == 0, f"EVICT-7: the host is empty, yet {result}"
        assert driver.tier_hits(NEW) == (0, 2), (
            f"EVICT-7: both pages went to the host: expected (0, 2), got {driver.tier_hits(NEW)}"
        )
        driver.verify_state(driver.key_of(NEW), driver.load(driver.key_of(NEW)))
        assert driver.tier_hits(NEW) == (2, 0), (
            f"FLOW-8: both pages came back: expected (2, 0), got {driver.tier_hits(NEW)}"
        )


@clause("EVICT-7", "EVICT-5", write_policies=BACK)
def test_a_child_is_demoted_while_its_parent_stays_on_the_device(driver: Scenario) -> None:
    chain = (1, 2, 3)
    for count in (1, 2, 3):
        driver.put_pages(chain[:count])
    for count in (2, 1, 0):
        driver.evict(FULL, 1)
        assert driver.tier_hits(chain) == (count, 3 - count), (
            f"EVICT-7: {count} pages stay: expected {(count, 3 - count)}, got {driver.tier_hits(chain)}"
        )
        below, expected = driver.host_slots(FULL).keys(), prefixes(*chain) - prefixes(*chain[:count])
        assert below == expected, f"EVICT-7: {expected} was to be on the host, got {below}"


@clause("EVICT-7", "FLOW-4", write_policies=BACK)
def test_a_victim_stays_when_no_room_can_be_made_on_the_host(driver: Scenario) -> None:
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(2, 1)}) as small:
        small.put_on_host(OLD)
        receipt = small.lock_host(small.best_match(OLD))
        small.put_pages(NEW)
        for component in small.config.components:
            result = small.evict(component, 1)
            counts = result.victims, result.refused, result.freed[component]
            assert counts == (0, 1, 0), f"EVICT-7: victims, refused, freed for {component}: {result}"
            found = small.tier_hits(OLD), small.tier_hits(NEW)
            assert found == ((0, 2), (2, 0)), f"EVICT-7: each stays where it is, got {found}"
        assert small.allocate(small.config.capacity_tokens[FULL]) is None, "EVICT-7: a part of the device cannot leave"
        small.unlock_host(receipt)
        small.evict_all()
        found = small.tier_hits(OLD), small.tier_hits(NEW)
        assert found == ((0, 0), (0, 2)), f"EVICT-7: there is room again, in place of the older one, got {found}"


@clause("EVICT-7", "FLOW-3", write_policies=BACK)
def test_a_victim_stays_when_its_copy_fails(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_pages(NEW)
        driver.adapter.fail_waits(1)
        result = driver.evict(component, 1)
        assert (result.victims, result.refused) == (0, 1), f"EVICT-7: the copy failed, and the victim stays: {result}"
        assert driver.tier_hits(NEW) == (2, 0), (
            f"EVICT-7: it is on the device still: expected (2, 0), got {driver.tier_hits(NEW)}"
        )
        free, capacity = driver.free_host_slots(), driver.host_config.capacity_tokens
        assert free == capacity, f"FLOW-3: nothing came to the host: of {capacity} are free {free}"
        driver.evict(component, 1)
        assert driver.tier_hits(NEW) == (0, 2), (
            f"FLOW-4: the next eviction backs it up: expected (0, 2), got {driver.tier_hits(NEW)}"
        )


@clause("FLOW-4", "EVICT-7", write_policies=BACK)
def test_a_victim_whose_copy_failed_three_times_is_dropped(driver: Scenario) -> None:
    driver.put_pages(NEW)
    refused = 0
    while driver.nodes() and refused < 10:
        driver.adapter.fail_waits(1)
        refused += driver.evict(FULL, 1).refused
    assert refused in (2, 3), f"FLOW-4: after three copies that failed it is dropped, it stayed {refused} times"
    assert not driver.nodes(), f"EVICT-7: it has no copy and is dropped, left is {driver.nodes().keys()}"


@clause("EVICT-7", "FLOW-4", write_policies=BACK)
def test_a_node_larger_than_the_host_is_dropped_with_its_descendants(driver: Scenario) -> None:
    below = (*NEW, 5)
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(1, 1)}) as small:
        small.put_pages(NEW)
        small.put_pages(below)
        small.evict(FULL, 1)
        assert small.tier_hits(below) == (2, 1), (
            f"EVICT-7: page 5 alone fits on the host: expected (2, 1), got {small.tier_hits(below)}"
        )
        receipt = small.lock_host(small.best_match(below))
        result = small.evict(FULL, 1)
        assert (result.victims, result.refused) == (0, 1), f"LOCK-7: what is below is locked on the host, yet {result}"
        small.unlock_host(receipt)
        result = small.evict(FULL, 1)
        assert (result.victims, result.refused) == (1, 0), f"EVICT-7: the host could never take {NEW}: {result}"
        assert not small.nodes(), f"EVICT-7: {below} goes with {NEW}, left is {small.nodes().keys()}"
        free = small.free_host_slots()
        assert free == small.host_config.capacity_tokens, f"POOL-1: the host is empty, free are {free}"


@clause("EVICT-7", "EVICT-8", write_policies=BACK)
def test_host_copies_of_device_data_are_evicted_for_new_backups(driver: Scenario) -> None:
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(2, 1)}) as small:
        small.put_on_host(OLD)
        small.put_pages(NEW)
        leaving, staying = NEW, OLD
        for _ in range(6):
            small.load(small.key_of(staying))
            small.evict(FULL, 1)
            found = small.tier_hits(staying), small.tier_hits(leaving)
            assert found == ((2, 0), (0, 2)), f"EVICT-7: {staying} gives up its copy for {leaving}, got {found}"
            leaving, staying = staying, leaving


@clause("EVICT-7", "LOCK-2", "FLOW-3", write_policies=BACK, needs=[Capability.SIZES])
def test_backups_during_an_eviction_leave_the_locks_of_callers_unchanged(driver: Scenario) -> None:
    driver.put_pages(OLD)
    receipt = driver.lock_pages(OLD)
    before = driver.locks_on_device(), {name: size.protected for name, size in driver.adapter.sizes().items()}
    for pages in (NEW, (*OLD, 7)):
        driver.put_pages(pages)
    for fails in (1, 0):
        driver.adapter.fail_waits(fails)
        driver.evict_all()
        driver.step()
        after = driver.locks_on_device(), {name: size.protected for name, size in driver.adapter.sizes().items()}
        assert after == before, f"LOCK-2: one receipt holds {before}, after an eviction {after}"
    driver.unlock(receipt)


@clause("EVICT-7", "FLOW-8", write_policies=BACK, needs=[Capability.SIZES])
def test_an_allocation_backs_up_what_it_displaces(driver: Scenario) -> None:
    driver.put_pages(OLD)
    driver.put_pages(NEW)
    slots = driver.allocate_all()
    assert driver.host_slots(FULL), "EVICT-7: the oldest prompt was displaced and had no copy; the host has nothing"
    driver.free(slots)
    for pages in (OLD, NEW):
        driver.load(driver.key_of(pages))
        assert driver.tier_hits(pages) == (2, 0), (
            f"FLOW-8: {pages} is there again: expected (2, 0), got {driver.tier_hits(pages)}"
        )


# EVICT-7, FLOW-8: with write_back, SWA data and states of inner nodes are backed up before they leave the device.


def require_copy_first(driver: Scenario, component: str) -> None:
    """The first two pages are backed up before they lose a component, and can be loaded."""
    driver.put_pages(TOMBSTONE)
    driver.put_pages(driver.longer_prompt())
    refused = driver.evict_inner(component).refused
    gone = set(driver.config.components) - driver.components_on_device(TOMBSTONE)
    assert (gone, refused) == (driver.evicted_with(component), 0), f"EVICT-4: gone is {gone}, {refused} victims stayed"
    missing = gone - driver.components_on_host(TOMBSTONE)
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    driver.verify_state(driver.key_of(TOMBSTONE), driver.load(driver.key_of(TOMBSTONE)))
    assert driver.tier_hits(TOMBSTONE) == (2, 0), (
        f"FLOW-8: it came back: expected (2, 0), got {driver.tier_hits(TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-8", components=(SWA,), write_policies=BACK)
def test_swa_data_of_an_inner_node_is_backed_up_first(driver: Scenario) -> None:
    require_copy_first(driver, SWA)


@clause("EVICT-7", "FLOW-8", components=(MAMBA,), write_policies=BACK)
def test_a_state_of_an_inner_node_is_backed_up_first(driver: Scenario) -> None:
    require_copy_first(driver, MAMBA)


@clause("EVICT-7", "FLOW-8", write_policies=THROUGH, executors=[ExecutorKind.STEPPED], page_sizes=[16])
def test_with_write_back_an_inner_node_loses_nothing_without_a_copy(driver: Scenario) -> None:
    # A quick run has no configuration with write_back and several components.
    for component in driver.config.components[1:]:
        with driver.host_variant(host={"write_policy": WritePolicy.WRITE_BACK}) as back:
            require_copy_first(back, component)


@clause("EVICT-7", "FLOW-8", each=(SWA, MAMBA), write_policies=BACK, needs=[Capability.COUNTERS])
def test_one_component_is_backed_up_where_the_host_has_the_rest(driver: Scenario, component: str) -> None:
    """The host has the FULL data already: only the lacking components are backed up."""
    require_copy_first(driver, component)
    full = driver.host_slots(FULL)
    driver.evict_all_host(component)
    assert driver.host_slots(FULL) == full, (
        f"EVICT-8: expected {component} alone to leave the host, but FULL data changed"
    )
    free, before = driver.free_host_slots(), driver.bytes_moved(TransferKind.BACKUP)
    refused = driver.evict_inner(component).refused
    assert refused == 0, f"EVICT-7: there is room on the host, yet {refused} victims stayed"
    missing = driver.evicted_with(component) - driver.components_on_host(TOMBSTONE)
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    taken = {name: count - driver.free_host_slots()[name] for name, count in free.items()}
    assert taken[FULL] == 0, f"FLOW-6: the host had the FULL data, and took more: {taken}"
    copied, expected = driver.bytes_moved(TransferKind.BACKUP) - before, driver.slot_bytes(taken)
    assert copied == expected, f"FLOW-6: {taken} were copied, which are {expected} bytes, counted are {copied}"
    driver.verify_state(driver.key_of(TOMBSTONE), driver.load(driver.key_of(TOMBSTONE)))
    assert driver.tier_hits(TOMBSTONE) == (2, 0), (
        f"FLOW-8: it came back: expected (2, 0), got {driver.tier_hits(TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-4", each=(SWA, MAMBA), write_policies=BACK)
def test_data_stays_where_the_host_has_no_room(driver: Scenario, component: str) -> None:
    """An inner node loses nothing while the host has no room for it."""
    pages = len(TOMBSTONE)
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(pages, 1)}) as small:
        small.put_on_host([8, 9])
        receipt = small.lock_host(small.best_match([8, 9]))
        for prompt in (TOMBSTONE, small.longer_prompt()):
            small.put_pages(prompt)
        before = {name: small.device_slots(name) for name in small.config.components}
        refused = small.evict_inner(component).refused
        after = {name: small.device_slots(name) for name in small.config.components}
        assert after == before, f"EVICT-7: without room on the host {before} stays, it became {after}"
        assert refused >= 1, (
            f"EVICT-7: {component} of {TOMBSTONE} stayed: expected at least one refused victim, got {refused}"
        )
        small.unlock_host(receipt)
        refused = small.evict_inner(component).refused
        assert TOMBSTONE not in small.device_slots(component), f"EVICT-7: there is room now, {refused} victims stayed"
        assert TOMBSTONE in small.host_slots(component), f"FLOW-8: {component} left the device for the host"


@clause("EVICT-7", "EVICT-1", write_policies=BACK)
def test_a_copy_that_has_come_makes_room_for_the_next(driver: Scenario) -> None:
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(2, 1)}) as small:
        for prompt in (OLD, NEW):
            small.put_pages(prompt)
        result = small.evict(FULL, 4 * small.config.page_size)
        assert (result.victims, result.refused) == (2, 0), (
            f"EVICT-7: the host has room for {NEW} once {OLD} leaves it: expected two victims, got {result}"
        )
        found = small.tier_hits(OLD), small.tier_hits(NEW)
        assert found == ((0, 0), (0, 2)), f"EVICT-8: expected {NEW} alone on the host, got {found}"


@clause("EVICT-7", "EVICT-1", write_policies=BACK)
def test_a_victim_that_stays_does_not_stop_the_next(driver: Scenario) -> None:
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(2, 1)}) as small:
        small.put_on_host(OLD)
        receipt = small.lock_host(small.best_match(OLD))
        for component in small.config.components:
            small.load(small.key_of(OLD))
            small.put_pages(NEW)
            small.match(small.key_of(OLD))
            result = small.evict(component, small.unit(component))
            assert (result.victims, result.refused) == (1, 1), f"EVICT-1: {NEW} stays, {OLD} goes instead: {result}"
            found = small.tier_hits(OLD), small.tier_hits(NEW)
            assert found == ((0, 2), (2, 0)), f"EVICT-7: {OLD} has a copy, {NEW} cannot have one, got {found}"
        small.unlock_host(receipt)
        small.evict_all()
        assert small.host_slots(FULL).keys() == prefixes(*NEW), f"EVICT-8: got {small.host_slots(FULL).keys()}"


# EVICT-8, EVICT-5: which nodes the host evicts, in which order, and which components.


CHAIN = (1, 2, 3, 4)
LEAVES = (1, 2, 3, 4)


@clause("EVICT-8", "EVICT-5")
def test_the_host_evicts_from_the_leaves_up(driver: Scenario) -> None:
    driver.put_on_host(*(CHAIN[:count] for count in range(1, len(CHAIN) + 1)))
    for count in range(len(CHAIN) - 1, -1, -1):
        driver.evict_host(FULL, 1)
        left, expected = driver.host_slots(FULL).keys(), prefixes(*CHAIN[:count])
        assert left == expected, f"EVICT-8: {len(CHAIN) - count} evictions leave {expected}, they left {left}"
        assert driver.nodes().keys() == expected, f"EVICT-8: nodes {driver.nodes().keys()} are left of {expected}"
        assert driver.tier_hits(CHAIN) == (0, count), (
            f"MATCH-1: {count} pages are left: expected {(0, count)}, got {driver.tier_hits(CHAIN)}"
        )


@clause("EVICT-8", "EVICT-5", page_sizes=[16], executors=[ExecutorKind.STEPPED])
def test_copies_of_device_data_leave_the_host_from_the_leaves_up(driver: Scenario) -> None:
    driver.put_on_both(*(CHAIN[:count] for count in range(1, len(CHAIN) + 1)))
    for count in range(len(CHAIN) - 1, -1, -1):
        driver.evict_host(FULL, 1)
        left, expected = driver.host_slots(FULL).keys(), prefixes(*CHAIN[:count])
        assert left == expected, f"EVICT-8: {len(CHAIN) - count} evictions leave copies of {expected}, they left {left}"


@clause("EVICT-8", "EVICT-5")
def test_a_node_with_a_child_on_the_host_stays_however_old_it_is(driver: Scenario) -> None:
    driver.put_on_host([1], [1, 2], [7])
    driver.match(driver.key_of([1, 2]), chunked=True)
    driver.evict_host(FULL, 1)
    left = driver.host_slots(FULL).keys()
    assert left == {(1,), (1, 2)}, f"EVICT-8: 7 is the leaf that was not used, so that it goes; left is {left}"
    driver.evict_host(FULL, 1)
    left = driver.host_slots(FULL).keys()
    assert left == {(1,)}, f"EVICT-8: 1 has a child on the host, which goes before it; left is {left}"


@clause("EVICT-8")
def test_a_leaf_leaves_the_host_with_all_its_components(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_on_host([1], [2])
        free = driver.free_host_slots()
        result = driver.evict_host(component, 1)
        expected = {name: driver.unit(name) for name in driver.config.components}
        gained = {name: count - free[name] for name, count in driver.free_host_slots().items()}
        assert (result.freed, gained) == (expected, expected), (
            f"EVICT-8: a leaf of one page that goes for {component} frees {expected}, got {result} and gained {gained}"
        )
        assert driver.nodes().keys() == {(2,)}, f"EVICT-8: 1 is on no tier any more, left is {driver.nodes().keys()}"


@clause("EVICT-8", "EVICT-1")
def test_a_host_eviction_frees_the_whole_pages_that_were_asked_for(driver: Scenario) -> None:
    for component in driver.config.components:
        size = driver.unit(component)
        for asked in sorted({0, 1, size + 1, 3 * size}):
            driver.reset()
            driver.put_on_host(*([page] for page in LEAVES))
            expected = -(-asked // size)
            result = driver.evict_host(component, asked)
            found = result.freed[component], result.victims
            assert found == (expected * size, expected), (
                f"EVICT-1: {asked} of {component} asked in leaves of {size}: {expected} victims suffice, got {result}"
            )
            left = sorted(driver.host_slots(FULL))
            assert left == [(page,) for page in LEAVES[expected:]], f"EVICT-8: the oldest go first, left is {left}"


@clause("EVICT-8", page_sizes=[16])
def test_the_host_evicts_nodes_without_device_data_before_copies(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_on_host([1], [2], [3])
        driver.load(driver.key_of([1]))
        for page in (2, 3):
            driver.match(driver.key_of([page]), chunked=True)
        order = []
        for _ in range(3):
            driver.evict_host(component, 1)
            order.append(sorted(driver.host_slots(component)))
        expected = [[(1,), (3,)], [(1,)], []]
        assert order == expected, f"EVICT-8: of {component}, 1 is on the device too: expected {expected}, got {order}"


@clause("EVICT-8")
def test_evicting_a_host_copy_leaves_the_device_unchanged(driver: Scenario) -> None:
    driver.put_on_both([1, 2], [3])
    before = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    for component in reversed(driver.config.components):
        driver.evict_all_host(component)
        assert not driver.host_slots(component), f"EVICT-8: copies of {component} can be given up, and were not"
        after = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
        assert after == before, f"EVICT-8: an eviction of {component} on the host changed the device"
    assert driver.tier_hits([1, 2]) == (2, 0), (
        f"EVICT-8: 2 pages are on the device: expected (2, 0), got {driver.tier_hits([1, 2])}"
    )


@clause("EVICT-8", "EVICT-6")
def test_one_eviction_can_empty_the_host(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_on_host([1], [1, 2, 3], [1, 2, 4], [5, 6])
        driver.match(driver.key_of([5, 9]), chunked=True)
        driver.evict_all_host(component)
        left = driver.nodes().keys()
        assert not left, f"EVICT-8: nothing is locked or on the device, and evicting {component} left {left}"
        free, capacity = driver.free_host_slots(), driver.host_config.capacity_tokens
        assert free == capacity, f"EVICT-8: all of {capacity} is free, got {free}"


@clause("EVICT-6", "EVICT-8", components=(MAMBA,))
def test_an_ancestor_without_a_state_is_removed_with_its_last_child(driver: Scenario) -> None:
    driver.put_on_host([1, 2], [7])
    driver.match(driver.key_of([1, 9]), chunked=True)
    assert (1,) in driver.nodes(), f"MATCH-8: the match that ended after page 1 splits there: {driver.nodes().keys()}"
    driver.match(driver.key_of([7]), chunked=True)
    driver.evict_host(FULL, 1)
    assert driver.nodes().keys() == {(7,)}, f"EVICT-6: 1 can end no match and goes with 2, left {driver.nodes().keys()}"
    assert not driver.device_slots(FULL), "the scenario needs an empty device"


# EVICT-12: what a transfer brings, in the order of eviction.


@clause("EVICT-12", "EVICT-2", needs=[Capability.STEPPED], page_sizes=[16])
def test_the_end_of_a_load_is_no_use(driver: Scenario) -> None:
    driver.put_on_host([1], [2])
    driver.load(driver.key_of([2]))
    load = driver.start_load([1])
    driver.use([2])
    driver.complete(driver.pending_transfer(TransferKind.LOAD).ticket)
    driver.step()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    driver.evict(FULL, 1)
    left = driver.device_slots(FULL).keys()
    assert left == {(2,)}, f"EVICT-12: 2 was used after the match of 1, which was loaded since: expected 2, got {left}"


@clause("EVICT-12", "EVICT-8", needs=[Capability.STORAGE, Capability.STEPPED_STORAGE], page_sizes=[16])
def test_what_a_prefetch_brought_was_used_when_it_came(driver: Scenario) -> None:
    driver.put_in_storage_alone([1])
    driver.put_on_host([2])
    ticket = driver.begin_prefetch([1])
    fetching(driver)
    driver.match(driver.key_of([2]))
    driver.complete_job(StorageKind.PREFETCH)
    driver.drain()
    came = driver.check_prefetch(ticket)
    assert came == driver.config.page_size, f"FETCH-4: page 1 is in storage: expected its tokens, got {came}"
    driver.evict_host(FULL, 1)
    left = driver.host_slots(FULL).keys()
    assert left == {(1,)}, f"EVICT-12: 1 came to the host after the use of 2: expected 1, got {left}"


# EVICT-8, EVICT-3, EVICT-4: which components leave the host with the SWA data or the state of an inner node.


@clause("EVICT-8", "EVICT-3", "EVICT-4", "MATCH-1", each=(SWA, MAMBA))
def test_data_of_an_inner_node_leaves_a_gap_on_the_host(driver: Scenario, component: str) -> None:
    """An inner node on the host loses a component and those after it, and the longer prompt still hits."""
    driver.put_on_host(TOMBSTONE, driver.longer_prompt())
    driver.evict_inner_from_host(component)
    left, expected = (
        driver.components_on_host(TOMBSTONE),
        set(driver.config.components) - driver.evicted_with(component),
    )
    assert left == expected, f"EVICT-4: {component} of an inner node left the host: {expected} stays, not {left}"
    assert driver.host_slots(FULL).keys() == prefixes(*driver.longer_prompt()), "EVICT-3: FULL data left the host"
    found = driver.tier_hits(driver.longer_prompt()), driver.tier_hits(TOMBSTONE)
    expected_reach = (0, len(driver.longer_prompt())), (0, 0)
    assert found == expected_reach, f"EVICT-3: the longer prompt hits, the gap does not: {expected_reach}, got {found}"


@clause("LOCK-5", "LOCK-7", "EVICT-8", components=(SWA,), write_policies=THROUGH, page_sizes=[16])
def test_a_host_lock_holds_a_node_that_loses_what_came_after_the_lock(driver: Scenario) -> None:
    driver.put_on_both(OLD)
    driver.evict_all_host(SWA)
    receipt = driver.lock_host(driver.best_match(OLD))
    driver.put_and_back_up(OLD)
    driver.evict_all()
    driver.evict_all_host(SWA)
    left = driver.components_on_host(OLD)
    assert left == {FULL}, f"LOCK-5: FULL is locked, the rest came after the lock: expected FULL to stay, got {left}"
    driver.unlock_host(receipt)
    assert not driver.nodes(), (
        f"EVICT-6: no match can end there, nothing is locked: expected no node, got {driver.nodes()}"
    )


@clause("EVICT-6", "LOCK-5", "LOCK-7", components=(MAMBA,), write_policies=THROUGH, page_sizes=[16])
def test_an_ancestor_that_is_locked_on_the_host_stays_without_a_state(driver: Scenario) -> None:
    driver.put_on_both(TOMBSTONE, driver.longer_prompt())
    driver.evict_inner_from_host(MAMBA)
    receipt = driver.lock_host(driver.best_match(TOMBSTONE))
    driver.evict_inner(MAMBA)
    driver.evict_all()
    driver.evict_all_host()
    left = driver.host_slots(FULL).keys()
    assert left == prefixes(*TOMBSTONE), f"LOCK-5: {TOMBSTONE} is locked on the host: expected it alone, got {left}"
    driver.unlock_host(receipt)
    assert not driver.nodes(), f"EVICT-6: it has no state and no lock: expected no node, got {driver.nodes()}"


@clause("EVICT-8", "FLOW-8", each=(SWA, MAMBA), write_policies=FORWARD)
def test_data_that_left_the_host_is_backed_up_again(driver: Scenario, component: str) -> None:
    """The components that the host lost are backed up with the next use, and no others."""
    driver.put_on_both(TOMBSTONE, driver.longer_prompt())
    driver.evict_inner_from_host(component)
    before = {name: driver.host_slots(name) for name in set(driver.config.components) - driver.evicted_with(component)}
    driver.put_and_back_up(TOMBSTONE)
    assert driver.components_on_host(TOMBSTONE) == set(driver.config.components), (
        f"FLOW-8: {TOMBSTONE} is whole on the device and was used; the host has {driver.components_on_host(TOMBSTONE)}"
    )
    after = {name: driver.host_slots(name) for name in before}
    assert after == before, f"HOST-1: only what the host lacked was to be copied: {before} became {after}"
    driver.evict_all()
    assert driver.tier_hits(TOMBSTONE) == (0, 2), (
        f"FLOW-8: both pages are on the host: expected (0, 2), got {driver.tier_hits(TOMBSTONE)}"
    )


@clause("EVICT-8", "EVICT-5")
def test_evicting_full_data_from_the_host_evicts_all_components_of_the_node(driver: Scenario) -> None:
    driver.put_on_both(TOMBSTONE, driver.longer_prompt())
    on_device = {component: driver.device_slots(component) for component in driver.config.components}
    driver.evict_host(FULL, 1)
    full = driver.host_slots(FULL).keys()
    assert prefixes(*driver.longer_prompt()) > full, f"EVICT-8: a leaf was to leave the host, {full} is left"
    for component in driver.config.components:
        alone = driver.host_slots(component).keys() - full
        assert not alone, f"EVICT-5: the host has {component} data of {alone} without FULL data"
        assert driver.device_slots(component) == on_device[component], f"EVICT-8: {component} left the device"
