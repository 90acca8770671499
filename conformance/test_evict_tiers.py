"""EVICT-7, EVICT-8: what leaves the device stays on the host, and what leaves the host."""

from __future__ import annotations

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import StorageKind, TransferKind

from .scenario import (
    FORWARD,
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    allocate_all,
    best_match,
    capacity_for,
    drop_on_device,
    evict_all,
    evict_host,
    evict_inner,
    evict_inner_from_host,
    evicted_with,
    host_config,
    host_variant,
    key_of,
    lock,
    longer_prompt,
    put,
    put_and_back_up,
    put_on_both,
    put_on_host,
    tier_hits,
    unit,
    use,
)
from .storage_scenes import begin_prefetch, complete_job, fetching, put_in_storage_alone
from .transfers import bytes_moved, pending_transfer, slot_bytes, start_load
from .tree_view import (
    components_on_device,
    components_on_host,
    device_locks,
    device_slots,
    free_host_slots,
    free_slots,
    host_slots,
    nodes,
    prefixes,
    residency,
)

BACK = [WritePolicy.WRITE_BACK]
THROUGH = [WritePolicy.WRITE_THROUGH]
OLD, NEW = (1, 2), (3, 4)


# EVICT-7, EVICT-3, EVICT-2: nodes with a host copy leave the device and stay on the host; in which order.


@clause("EVICT-7", "FLOW-8")
def test_a_node_with_a_copy_is_demoted_whichever_component_is_evicted(driver: Driver) -> None:
    pages = key_of(driver, [1, 2])
    for component in driver.config.components:
        driver.reset()
        put_on_both(driver, [1, 2])
        evict_all(driver, component)
        left = {name for name in driver.config.components if device_slots(driver, name)}
        assert not left, f"EVICT-3: a leaf leaves the device whole; evicted for {component}, {left} is left"
        found = tier_hits(driver, [1, 2])
        assert found == (0, 2), (
            f"EVICT-7: evicted for {component}, both pages are on the host: expected (0, 2), got {found}"
        )
        driver.verify_state(pages, driver.load(pages))
        found = tier_hits(driver, [1, 2])
        assert found == (2, 0), (
            f"EVICT-7: demoted for {component} and loaded, both pages are back: expected (2, 0), got {found}"
        )


@clause("EVICT-7", "POOL-1")
def test_a_demotion_frees_the_device_slots_and_moves_no_host_slot(driver: Driver) -> None:
    put_on_both(driver, [1, 2], [3])
    below = {component: host_slots(driver, component) for component in driver.config.components}
    evict_all(driver)
    free = {component: len(pool.free) for component, pool in driver.snapshot().pools.items()}
    assert free == driver.config.capacity_tokens, f"EVICT-7: all of the device is free, got {free}"
    after = {component: host_slots(driver, component) for component in driver.config.components}
    assert after == below, f"EVICT-7: a demotion moved host slots from {below} to {after}"


@clause("POOL-5", "EVICT-7", components=(SWA,), needs=[Capability.HOST])
def test_slots_of_a_demoted_node_have_no_partners(driver: Driver) -> None:
    put_on_both(driver, [1, 2])
    old = driver.match(key_of(driver, [1, 2]), chunked=True).device_indices
    evict_all(driver)
    partners = driver.adapter.partners(old)
    assert not partners.any(), f"POOL-5: slots {old.tolist()} are free, their partners are {partners.tolist()}"
    for pages in ([3, 4], [5, 6]):
        put(driver, pages)
    driver.load(key_of(driver, [1, 2]))
    evict_all(driver)
    held_slots = {component: device_slots(driver, component) for component in (FULL, SWA)}
    assert held_slots == {FULL: {}, SWA: {}}, (
        f"POOL-5: expected everything to be evicted after slots were reused, left is {held_slots}"
    )


def require_loss_of_one_tier(driver: Driver, component: str) -> None:
    """A tombstone on the device hits through its host copy, and has all components again after a load."""
    drop_on_device(driver, component)
    gone = set(driver.config.components) - components_on_device(driver, TOMBSTONE)
    assert gone == evicted_with(driver, component), (
        f"EVICT-4: {evicted_with(driver, component)} leaves an inner node, not {gone}"
    )
    missing = gone - components_on_host(driver, TOMBSTONE)
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    best_match(driver, longer_prompt(driver))
    found = driver.match(key_of(driver, TOMBSTONE), chunked=True)
    assert not len(found.device_indices), f"EVICT-3: {TOMBSTONE} has a gap on the device, and hits there"
    hits = found.component_host_hit_lengths[component], found.host_hit_length
    assert hits[0] > 0, f"FLOW-8: the {component} data of {TOMBSTONE} is a hit on the host, got {found}"
    assert hits[1] == 0, f"MATCH-12: its FULL data is on the device, yet {hits[1]} tokens are to be loaded"
    driver.verify_state(key_of(driver, TOMBSTONE), driver.load(key_of(driver, TOMBSTONE)))
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"EVICT-7: loaded, it is whole: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-8", "EVICT-3", components=(SWA,))
def test_swa_data_that_an_inner_node_lost_on_the_device_is_on_the_host(driver: Driver) -> None:
    require_loss_of_one_tier(driver, SWA)


@clause("EVICT-7", "FLOW-8", "EVICT-3", components=(MAMBA,))
def test_a_state_that_an_inner_node_lost_on_the_device_is_on_the_host(driver: Driver) -> None:
    require_loss_of_one_tier(driver, MAMBA)


@clause("EVICT-3", "EVICT-7")
def test_a_node_whose_children_are_on_the_host_alone_is_a_leaf_of_the_device(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_both(driver, TOMBSTONE, longer_prompt(driver))
        driver.evict(FULL, 1)
        assert device_slots(driver, FULL).keys() == prefixes(*TOMBSTONE), (
            "EVICT-2: the deepest node leaves the device first"
        )
        evict_all(driver, component)
        left = {name for name in driver.config.components if device_slots(driver, name)}
        assert not left, f"EVICT-3: no child is on the device: with {component} all goes, {left} is left"
        found = tier_hits(driver, longer_prompt(driver))
        assert found == (0, len(longer_prompt(driver))), (
            f"FLOW-8: all of it is on the host: expected {(0, len(longer_prompt(driver)))}, got {found}"
        )


@clause("EVICT-5", "EVICT-7")
def test_nodes_are_demoted_from_the_leaves_up(driver: Driver) -> None:
    chain = (1, 2, 3, 4)
    put_on_both(driver, *(chain[:count] for count in range(1, 5)))
    for count in (3, 2, 1, 0):
        driver.evict(FULL, 1)
        left, expected = device_slots(driver, FULL).keys(), prefixes(*chain[:count])
        assert left == expected, f"EVICT-5: {4 - count} evictions leave {expected} on the device, left is {left}"
        assert tier_hits(driver, chain) == (count, 4 - count), (
            f"FLOW-8: got {tier_hits(driver, chain)} after {4 - count}"
        )


@clause("EVICT-2", needs=[Capability.HOST], page_sizes=[16])
def test_a_use_of_a_demoted_node_counts_as_a_use_of_its_parent(driver: Driver) -> None:
    put_on_both(driver, [1], [7], [1, 2])
    for pages in ([7], [1, 2]):
        driver.match(key_of(driver, pages))
    receipt = lock(driver, [7])
    driver.match(key_of(driver, [1, 2]))
    driver.evict(FULL, 1)
    driver.unlock(receipt)
    assert device_slots(driver, FULL).keys() == {(1,), (7,)}, (
        f"EVICT-2: 7 was locked, left is {device_slots(driver, FULL).keys()}"
    )
    driver.evict(FULL, 1)
    left = device_slots(driver, FULL).keys()
    assert left == {(1,)}, f"EVICT-2: 1 was used with 1, 2, after 7, so that 7 goes first; left is {left}"


@clause("EVICT-7", executors=[ExecutorKind.STEPPED], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_node_without_a_copy_is_removed(driver: Driver) -> None:
    put(driver, [1, 2])
    driver.step()
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    evict_all(driver)
    assert not nodes(driver), f"EVICT-7: there is no copy of 1, 2, and it stays in the tree: {nodes(driver).keys()}"
    assert tier_hits(driver, [1, 2]) == (0, 0), (
        f"FLOW-3: nothing of it is left: expected (0, 0), got {tier_hits(driver, [1, 2])}"
    )


# EVICT-7: with write_back a victim without a host copy is backed up before it leaves the device, or stays there.


@clause("EVICT-7", write_policies=BACK)
def test_a_victim_is_backed_up_within_the_call_whichever_component_is_evicted(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put(driver, NEW)
        driver.drain()
        assert not host_slots(driver, FULL), f"HOST-1: nothing is copied before it leaves: {host_slots(driver, FULL)}"
        result = driver.evict(component, driver.config.capacity_tokens[component])
        assert result.refused == 0, f"EVICT-7: the host is empty, yet {result}"
        assert tier_hits(driver, NEW) == (0, 2), (
            f"EVICT-7: both pages went to the host: expected (0, 2), got {tier_hits(driver, NEW)}"
        )
        driver.verify_state(key_of(driver, NEW), driver.load(key_of(driver, NEW)))
        assert tier_hits(driver, NEW) == (2, 0), (
            f"FLOW-8: both pages came back: expected (2, 0), got {tier_hits(driver, NEW)}"
        )


@clause("EVICT-7", "EVICT-5", write_policies=BACK)
def test_a_child_is_demoted_while_its_parent_stays_on_the_device(driver: Driver) -> None:
    chain = (1, 2, 3)
    for count in (1, 2, 3):
        put(driver, chain[:count])
    for count in (2, 1, 0):
        driver.evict(FULL, 1)
        assert tier_hits(driver, chain) == (count, 3 - count), (
            f"EVICT-7: {count} pages stay: expected {(count, 3 - count)}, got {tier_hits(driver, chain)}"
        )
        below, expected = host_slots(driver, FULL).keys(), prefixes(*chain) - prefixes(*chain[:count])
        assert below == expected, f"EVICT-7: {expected} was to be on the host, got {below}"


@clause("EVICT-7", "FLOW-4", write_policies=BACK)
def test_a_victim_stays_when_no_room_can_be_made_on_the_host(driver: Driver) -> None:
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 1)}) as small:
        put_on_host(small, OLD)
        receipt = small.lock_host(best_match(small, OLD))
        put(small, NEW)
        for component in small.config.components:
            result = small.evict(component, 1)
            counts = result.victims, result.refused, result.freed[component]
            assert counts == (0, 1, 0), f"EVICT-7: victims, refused, freed for {component}: {result}"
            found = tier_hits(small, OLD), tier_hits(small, NEW)
            assert found == ((0, 2), (2, 0)), f"EVICT-7: each stays where it is, got {found}"
        assert small.allocate(small.config.capacity_tokens[FULL]) is None, "EVICT-7: a part of the device cannot leave"
        small.unlock_host(receipt)
        evict_all(small)
        found = tier_hits(small, OLD), tier_hits(small, NEW)
        assert found == ((0, 0), (0, 2)), f"EVICT-7: there is room again, in place of the older one, got {found}"


@clause("EVICT-7", "FLOW-3", write_policies=BACK)
def test_a_victim_stays_when_its_copy_fails(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put(driver, NEW)
        driver.adapter.fail_waits(1)
        result = driver.evict(component, 1)
        assert (result.victims, result.refused) == (0, 1), f"EVICT-7: the copy failed, and the victim stays: {result}"
        assert tier_hits(driver, NEW) == (2, 0), (
            f"EVICT-7: it is on the device still: expected (2, 0), got {tier_hits(driver, NEW)}"
        )
        free, capacity = free_host_slots(driver), host_config(driver.config).capacity_tokens
        assert free == capacity, f"FLOW-3: nothing came to the host: of {capacity} are free {free}"
        driver.evict(component, 1)
        assert tier_hits(driver, NEW) == (0, 2), (
            f"FLOW-4: the next eviction backs it up: expected (0, 2), got {tier_hits(driver, NEW)}"
        )


@clause("FLOW-4", "EVICT-7", write_policies=BACK)
def test_a_victim_whose_copy_failed_three_times_is_dropped(driver: Driver) -> None:
    put(driver, NEW)
    refused = 0
    while nodes(driver) and refused < 10:
        driver.adapter.fail_waits(1)
        refused += driver.evict(FULL, 1).refused
    assert refused in (2, 3), f"FLOW-4: after three copies that failed it is dropped, it stayed {refused} times"
    assert not nodes(driver), f"EVICT-7: it has no copy and is dropped, left is {nodes(driver).keys()}"


@clause("EVICT-7", "FLOW-4", write_policies=BACK)
def test_a_node_larger_than_the_host_is_dropped_with_its_descendants(driver: Driver) -> None:
    below = (*NEW, 5)
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 1, 1)}) as small:
        put(small, NEW)
        put(small, below)
        small.evict(FULL, 1)
        assert tier_hits(small, below) == (2, 1), (
            f"EVICT-7: page 5 alone fits on the host: expected (2, 1), got {tier_hits(small, below)}"
        )
        receipt = small.lock_host(best_match(small, below))
        result = small.evict(FULL, 1)
        assert (result.victims, result.refused) == (0, 1), f"LOCK-7: what is below is locked on the host, yet {result}"
        small.unlock_host(receipt)
        result = small.evict(FULL, 1)
        assert (result.victims, result.refused) == (1, 0), f"EVICT-7: the host could never take {NEW}: {result}"
        assert not nodes(small), f"EVICT-7: {below} goes with {NEW}, left is {nodes(small).keys()}"
        free = free_host_slots(small)
        assert free == host_config(small.config).capacity_tokens, f"POOL-1: the host is empty, free are {free}"


@clause("EVICT-7", "EVICT-8", write_policies=BACK)
def test_host_copies_of_device_data_are_evicted_for_new_backups(driver: Driver) -> None:
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 1)}) as small:
        put_on_host(small, OLD)
        put(small, NEW)
        leaving, staying = NEW, OLD
        for _ in range(6):
            small.load(key_of(small, staying))
            small.evict(FULL, 1)
            found = tier_hits(small, staying), tier_hits(small, leaving)
            assert found == ((2, 0), (0, 2)), f"EVICT-7: {staying} gives up its copy for {leaving}, got {found}"
            leaving, staying = staying, leaving


@clause("EVICT-7", "LOCK-2", "FLOW-3", write_policies=BACK, needs=[Capability.SIZES])
def test_backups_during_an_eviction_leave_the_locks_of_callers_unchanged(driver: Driver) -> None:
    put(driver, OLD)
    receipt = lock(driver, OLD)
    before = device_locks(driver), {name: size.protected for name, size in driver.adapter.sizes().items()}
    for pages in (NEW, (*OLD, 7)):
        put(driver, pages)
    for fails in (1, 0):
        driver.adapter.fail_waits(fails)
        evict_all(driver)
        driver.step()
        after = device_locks(driver), {name: size.protected for name, size in driver.adapter.sizes().items()}
        assert after == before, f"LOCK-2: one receipt holds {before}, after an eviction {after}"
    driver.unlock(receipt)


@clause("EVICT-7", "FLOW-8", write_policies=BACK, needs=[Capability.SIZES])
def test_an_allocation_backs_up_what_it_displaces(driver: Driver) -> None:
    put(driver, OLD)
    put(driver, NEW)
    slots = allocate_all(driver)
    assert host_slots(driver, FULL), "EVICT-7: the oldest prompt was displaced and had no copy; the host has nothing"
    driver.free(slots)
    for pages in (OLD, NEW):
        driver.load(key_of(driver, pages))
        assert tier_hits(driver, pages) == (2, 0), (
            f"FLOW-8: {pages} is there again: expected (2, 0), got {tier_hits(driver, pages)}"
        )


# EVICT-7, FLOW-8: with write_back, SWA data and states of inner nodes are backed up before they leave the device.


def require_copy_first(driver: Driver, component: str) -> None:
    """The first two pages are backed up before they lose a component, and can be loaded."""
    put(driver, TOMBSTONE)
    put(driver, longer_prompt(driver))
    refused = evict_inner(driver, component).refused
    gone = set(driver.config.components) - components_on_device(driver, TOMBSTONE)
    assert (gone, refused) == (evicted_with(driver, component), 0), f"EVICT-4: gone is {gone}, {refused} victims stayed"
    missing = gone - components_on_host(driver, TOMBSTONE)
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    driver.verify_state(key_of(driver, TOMBSTONE), driver.load(key_of(driver, TOMBSTONE)))
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"FLOW-8: it came back: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-8", components=(SWA,), write_policies=BACK)
def test_swa_data_of_an_inner_node_is_backed_up_first(driver: Driver) -> None:
    require_copy_first(driver, SWA)


@clause("EVICT-7", "FLOW-8", components=(MAMBA,), write_policies=BACK)
def test_a_state_of_an_inner_node_is_backed_up_first(driver: Driver) -> None:
    require_copy_first(driver, MAMBA)


@clause("EVICT-7", "FLOW-8", write_policies=THROUGH, executors=[ExecutorKind.STEPPED], page_sizes=[16])
def test_with_write_back_an_inner_node_loses_nothing_without_a_copy(driver: Driver) -> None:
    # A quick run has no configuration with write_back and several components.
    for component in driver.config.components[1:]:
        with host_variant(driver, host={"write_policy": WritePolicy.WRITE_BACK}) as back:
            require_copy_first(back, component)


def require_copy_of_the_rest(driver: Driver, component: str) -> None:
    """The host has the FULL data already: only the lacking components are backed up."""
    require_copy_first(driver, component)
    full = host_slots(driver, FULL)
    evict_host(driver, component)
    assert host_slots(driver, FULL) == full, (
        f"EVICT-8: expected {component} alone to leave the host, but FULL data changed"
    )
    free, before = free_host_slots(driver), bytes_moved(driver, TransferKind.BACKUP)
    refused = evict_inner(driver, component).refused
    assert refused == 0, f"EVICT-7: there is room on the host, yet {refused} victims stayed"
    missing = evicted_with(driver, component) - components_on_host(driver, TOMBSTONE)
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    taken = {name: count - free_host_slots(driver)[name] for name, count in free.items()}
    assert taken[FULL] == 0, f"FLOW-6: the host had the FULL data, and took more: {taken}"
    copied, expected = bytes_moved(driver, TransferKind.BACKUP) - before, slot_bytes(driver, taken)
    assert copied == expected, f"FLOW-6: {taken} were copied, which are {expected} bytes, counted are {copied}"
    driver.verify_state(key_of(driver, TOMBSTONE), driver.load(key_of(driver, TOMBSTONE)))
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"FLOW-8: it came back: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-8", components=(SWA,), write_policies=BACK, needs=[Capability.COUNTERS])
def test_swa_data_alone_is_backed_up_where_the_host_has_the_rest(driver: Driver) -> None:
    require_copy_of_the_rest(driver, SWA)


@clause("EVICT-7", "FLOW-8", components=(MAMBA,), write_policies=BACK, needs=[Capability.COUNTERS])
def test_a_state_alone_is_backed_up_where_the_host_has_the_rest(driver: Driver) -> None:
    require_copy_of_the_rest(driver, MAMBA)


def require_refusal(driver: Driver, component: str) -> None:
    """An inner node loses nothing while the host has no room for it."""
    pages = len(TOMBSTONE)
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, pages, 1)}) as small:
        put_on_host(small, [8, 9])
        receipt = small.lock_host(best_match(small, [8, 9]))
        for prompt in (TOMBSTONE, longer_prompt(small)):
            put(small, prompt)
        before = {name: device_slots(small, name) for name in small.config.components}
        refused = evict_inner(small, component).refused
        after = {name: device_slots(small, name) for name in small.config.components}
        assert after == before, f"EVICT-7: without room on the host {before} stays, it became {after}"
        assert refused >= 1, (
            f"EVICT-7: {component} of {TOMBSTONE} stayed: expected at least one refused victim, got {refused}"
        )
        small.unlock_host(receipt)
        refused = evict_inner(small, component).refused
        assert TOMBSTONE not in device_slots(small, component), f"EVICT-7: there is room now, {refused} victims stayed"
        assert TOMBSTONE in host_slots(small, component), f"FLOW-8: {component} left the device for the host"


@clause("EVICT-7", "FLOW-4", components=(SWA,), write_policies=BACK)
def test_swa_data_stays_where_the_host_has_no_room(driver: Driver) -> None:
    require_refusal(driver, SWA)


@clause("EVICT-7", "FLOW-4", components=(MAMBA,), write_policies=BACK)
def test_a_state_stays_where_the_host_has_no_room(driver: Driver) -> None:
    require_refusal(driver, MAMBA)


@clause("EVICT-7", "EVICT-1", write_policies=BACK)
def test_a_victim_that_stays_does_not_stop_the_next(driver: Driver) -> None:
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 1)}) as small:
        put_on_host(small, OLD)
        receipt = small.lock_host(best_match(small, OLD))
        for component in small.config.components:
            small.load(key_of(small, OLD))
            put(small, NEW)
            small.match(key_of(small, OLD))
            result = small.evict(component, unit(small, component))
            assert (result.victims, result.refused) == (1, 1), f"EVICT-1: {NEW} stays, {OLD} goes instead: {result}"
            found = tier_hits(small, OLD), tier_hits(small, NEW)
            assert found == ((0, 2), (2, 0)), f"EVICT-7: {OLD} has a copy, {NEW} cannot have one, got {found}"
        small.unlock_host(receipt)
        evict_all(small)
        assert host_slots(small, FULL).keys() == prefixes(*NEW), f"EVICT-8: got {host_slots(small, FULL).keys()}"


# EVICT-8, EVICT-5: which nodes the host evicts, in which order, and which components.


CHAIN = (1, 2, 3, 4)
LEAVES = (1, 2, 3, 4)


@clause("EVICT-8", "EVICT-5")
def test_the_host_evicts_from_the_leaves_up(driver: Driver) -> None:
    put_on_host(driver, *(CHAIN[:count] for count in range(1, len(CHAIN) + 1)))
    for count in range(len(CHAIN) - 1, -1, -1):
        driver.evict_host(FULL, 1)
        left, expected = host_slots(driver, FULL).keys(), prefixes(*CHAIN[:count])
        assert left == expected, f"EVICT-8: {len(CHAIN) - count} evictions leave {expected}, they left {left}"
        assert nodes(driver).keys() == expected, f"EVICT-8: nodes {nodes(driver).keys()} are left of {expected}"
        assert tier_hits(driver, CHAIN) == (0, count), (
            f"MATCH-1: {count} pages are left: expected {(0, count)}, got {tier_hits(driver, CHAIN)}"
        )


@clause("EVICT-8", "EVICT-5", page_sizes=[16], executors=[ExecutorKind.STEPPED])
def test_copies_of_device_data_leave_the_host_from_the_leaves_up(driver: Driver) -> None:
    put_on_both(driver, *(CHAIN[:count] for count in range(1, len(CHAIN) + 1)))
    for count in range(len(CHAIN) - 1, -1, -1):
        driver.evict_host(FULL, 1)
        left, expected = host_slots(driver, FULL).keys(), prefixes(*CHAIN[:count])
        assert left == expected, f"EVICT-8: {len(CHAIN) - count} evictions leave copies of {expected}, they left {left}"


@clause("EVICT-8", "EVICT-5")
def test_a_node_with_a_child_on_the_host_stays_however_old_it_is(driver: Driver) -> None:
    put_on_host(driver, [1], [1, 2], [7])
    driver.match(key_of(driver, [1, 2]), chunked=True)
    driver.evict_host(FULL, 1)
    left = host_slots(driver, FULL).keys()
    assert left == {(1,), (1, 2)}, f"EVICT-8: 7 is the leaf that was not used, so that it goes; left is {left}"
    driver.evict_host(FULL, 1)
    left = host_slots(driver, FULL).keys()
    assert left == {(1,)}, f"EVICT-8: 1 has a child on the host, which goes before it; left is {left}"


@clause("EVICT-8")
def test_a_leaf_leaves_the_host_with_all_its_components(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1], [2])
        free = free_host_slots(driver)
        result = driver.evict_host(component, 1)
        expected = {name: unit(driver, name) for name in driver.config.components}
        gained = {name: count - free[name] for name, count in free_host_slots(driver).items()}
        assert (result.freed, gained) == (expected, expected), (
            f"EVICT-8: a leaf of one page that goes for {component} frees {expected}, got {result} and gained {gained}"
        )
        assert nodes(driver).keys() == {(2,)}, f"EVICT-8: 1 is on no tier any more, left is {nodes(driver).keys()}"


@clause("EVICT-8", "EVICT-1")
def test_a_host_eviction_frees_the_whole_pages_that_were_asked_for(driver: Driver) -> None:
    for component in driver.config.components:
        size = unit(driver, component)
        for asked in sorted({0, 1, size + 1, 3 * size}):
            driver.reset()
            put_on_host(driver, *([page] for page in LEAVES))
            expected = -(-asked // size)
            result = driver.evict_host(component, asked)
            found = result.freed[component], result.victims
            assert found == (expected * size, expected), (
                f"EVICT-1: {asked} of {component} asked in leaves of {size}: {expected} victims suffice, got {result}"
            )
            left = sorted(host_slots(driver, FULL))
            assert left == [(page,) for page in LEAVES[expected:]], f"EVICT-8: the oldest go first, left is {left}"


@clause("EVICT-8", page_sizes=[16])
def test_the_host_evicts_nodes_without_device_data_before_copies(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1], [2], [3])
        driver.load(key_of(driver, [1]))
        for page in (2, 3):
            driver.match(key_of(driver, [page]), chunked=True)
        order = []
        for _ in range(3):
            driver.evict_host(component, 1)
            order.append(sorted(host_slots(driver, component)))
        expected = [[(1,), (3,)], [(1,)], []]
        assert order == expected, f"EVICT-8: of {component}, 1 is on the device too: expected {expected}, got {order}"


@clause("EVICT-8")
def test_evicting_a_host_copy_leaves_the_device_unchanged(driver: Driver) -> None:
    put_on_both(driver, [1, 2], [3])
    before = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    for component in reversed(driver.config.components):
        evict_host(driver, component)
        assert not host_slots(driver, component), f"EVICT-8: copies of {component} can be given up, and were not"
        after = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
        assert after == before, f"EVICT-8: an eviction of {component} on the host changed the device"
    assert tier_hits(driver, [1, 2]) == (2, 0), (
        f"EVICT-8: 2 pages are on the device: expected (2, 0), got {tier_hits(driver, [1, 2])}"
    )


@clause("EVICT-8", "EVICT-6")
def test_one_eviction_can_empty_the_host(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1], [1, 2, 3], [1, 2, 4], [5, 6])
        driver.match(key_of(driver, [5, 9]), chunked=True)
        evict_host(driver, component)
        left = nodes(driver).keys()
        assert not left, f"EVICT-8: nothing is locked or on the device, and evicting {component} left {left}"
        free, capacity = free_host_slots(driver), host_config(driver.config).capacity_tokens
        assert free == capacity, f"EVICT-8: all of {capacity} is free, got {free}"


@clause("EVICT-6", "EVICT-8", components=(MAMBA,))
def test_an_ancestor_without_a_state_is_removed_with_its_last_child(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [7])
    driver.match(key_of(driver, [1, 9]), chunked=True)
    assert (1,) in nodes(driver), f"MATCH-8: the match that ended after page 1 splits there: {nodes(driver).keys()}"
    driver.match(key_of(driver, [7]), chunked=True)
    driver.evict_host(FULL, 1)
    assert nodes(driver).keys() == {(7,)}, f"EVICT-6: 1 can end no match and goes with 2, left {nodes(driver).keys()}"
    assert not device_slots(driver, FULL), "the scenario needs an empty device"


# EVICT-12: what a transfer brings, in the order of eviction.


@clause("EVICT-12", "EVICT-2", needs=[Capability.STEPPED], page_sizes=[16])
def test_the_end_of_a_load_is_no_use(driver: Driver) -> None:
    put_on_host(driver, [1], [2])
    driver.load(key_of(driver, [2]))
    load = start_load(driver, [1])
    use(driver, [2])
    driver.complete(pending_transfer(driver, TransferKind.LOAD).ticket)
    driver.step()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
    driver.evict(FULL, 1)
    left = device_slots(driver, FULL).keys()
    assert left == {(2,)}, f"EVICT-12: 2 was used after the match of 1, which was loaded since: expected 2, got {left}"


@clause("EVICT-12", "EVICT-8", needs=[Capability.STORAGE, Capability.STEPPED_STORAGE], page_sizes=[16])
def test_what_a_prefetch_brought_was_used_when_it_came(driver: Driver) -> None:
    put_in_storage_alone(driver, [1])
    put_on_host(driver, [2])
    ticket = begin_prefetch(driver, [1])
    fetching(driver)
    driver.match(key_of(driver, [2]))
    complete_job(driver, StorageKind.PREFETCH)
    driver.drain()
    came = driver.check_prefetch(ticket)
    assert came == driver.config.page_size, f"FETCH-4: page 1 is in storage: expected its tokens, got {came}"
    driver.evict_host(FULL, 1)
    left = host_slots(driver, FULL).keys()
    assert left == {(1,)}, f"EVICT-12: 1 came to the host after the use of 2: expected 1, got {left}"


# EVICT-8, EVICT-3, EVICT-4: which components leave the host with the SWA data or the state of an inner node.


def require_gap(driver: Driver, component: str) -> None:
    """An inner node on the host loses a component and those after it, and the longer prompt still hits."""
    put_on_host(driver, TOMBSTONE, longer_prompt(driver))
    evict_inner_from_host(driver, component)
    left, expected = (
        components_on_host(driver, TOMBSTONE),
        set(driver.config.components) - evicted_with(driver, component),
    )
    assert left == expected, f"EVICT-4: {component} of an inner node left the host: {expected} stays, not {left}"
    assert host_slots(driver, FULL).keys() == prefixes(*longer_prompt(driver)), "EVICT-3: FULL data left the host"
    found = tier_hits(driver, longer_prompt(driver)), tier_hits(driver, TOMBSTONE)
    expected_reach = (0, len(longer_prompt(driver))), (0, 0)
    assert found == expected_reach, f"EVICT-3: the longer prompt hits, the gap does not: {expected_reach}, got {found}"


@clause("EVICT-8", "EVICT-3", "EVICT-4", "MATCH-1", components=(SWA,))
def test_swa_data_of_an_inner_node_leaves_a_gap_on_the_host(driver: Driver) -> None:
    require_gap(driver, SWA)


@clause("EVICT-8", "EVICT-3", "EVICT-4", "MATCH-1", components=(MAMBA,))
def test_the_state_of_an_inner_node_leaves_a_gap_on_the_host(driver: Driver) -> None:
    require_gap(driver, MAMBA)


@clause("LOCK-5", "LOCK-7", "EVICT-8", components=(SWA,), write_policies=THROUGH, page_sizes=[16])
def test_a_host_lock_holds_a_node_that_loses_what_came_after_the_lock(driver: Driver) -> None:
    put_on_both(driver, OLD)
    evict_host(driver, SWA)
    receipt = driver.lock_host(best_match(driver, OLD))
    put_and_back_up(driver, OLD)
    evict_all(driver)
    evict_host(driver, SWA)
    left = components_on_host(driver, OLD)
    assert left == {FULL}, f"LOCK-5: FULL is locked, the rest came after the lock: expected FULL to stay, got {left}"
    driver.unlock_host(receipt)
    assert not nodes(driver), (
        f"EVICT-6: no match can end there, nothing is locked: expected no node, got {nodes(driver)}"
    )


@clause("EVICT-6", "LOCK-5", "LOCK-7", components=(MAMBA,), write_policies=THROUGH, page_sizes=[16])
def test_an_ancestor_that_is_locked_on_the_host_stays_without_a_state(driver: Driver) -> None:
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    evict_inner_from_host(driver, MAMBA)
    receipt = driver.lock_host(best_match(driver, TOMBSTONE))
    evict_inner(driver, MAMBA)
    evict_all(driver)
    evict_host(driver)
    left = host_slots(driver, FULL).keys()
    assert left == prefixes(*TOMBSTONE), f"LOCK-5: {TOMBSTONE} is locked on the host: expected it alone, got {left}"
    driver.unlock_host(receipt)
    assert not nodes(driver), f"EVICT-6: it has no state and no lock: expected no node, got {nodes(driver)}"


def refilled(driver: Driver, component: str) -> None:
    """The components that the host lost are backed up with the next use, and no others."""
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    evict_inner_from_host(driver, component)
    before = {
        name: host_slots(driver, name) for name in set(driver.config.components) - evicted_with(driver, component)
    }
    put_and_back_up(driver, TOMBSTONE)
    assert components_on_host(driver, TOMBSTONE) == set(driver.config.components), (
        f"FLOW-8: {TOMBSTONE} is whole on the device and was used; the host has {components_on_host(driver, TOMBSTONE)}"
    )
    after = {name: host_slots(driver, name) for name in before}
    assert after == before, f"HOST-1: only what the host lacked was to be copied: {before} became {after}"
    evict_all(driver)
    assert tier_hits(driver, TOMBSTONE) == (0, 2), (
        f"FLOW-8: both pages are on the host: expected (0, 2), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("EVICT-8", "FLOW-8", components=(SWA,), write_policies=FORWARD)
def test_swa_data_that_left_the_host_is_backed_up_again(driver: Driver) -> None:
    refilled(driver, SWA)


@clause("EVICT-8", "FLOW-8", components=(MAMBA,), write_policies=FORWARD)
def test_a_state_that_left_the_host_is_backed_up_again(driver: Driver) -> None:
    refilled(driver, MAMBA)


@clause("EVICT-8", "EVICT-5")
def test_evicting_full_data_from_the_host_evicts_all_components_of_the_node(driver: Driver) -> None:
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    on_device = {component: device_slots(driver, component) for component in driver.config.components}
    driver.evict_host(FULL, 1)
    full = host_slots(driver, FULL).keys()
    assert prefixes(*longer_prompt(driver)) > full, f"EVICT-8: a leaf was to leave the host, {full} is left"
    for component in driver.config.components:
        alone = host_slots(driver, component).keys() - full
        assert not alone, f"EVICT-5: the host has {component} data of {alone} without FULL data"
        assert device_slots(driver, component) == on_device[component], f"EVICT-8: {component} left the device"
