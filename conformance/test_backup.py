"""HOST-1 to HOST-3: when a node is backed up to the host, in which order, and when the backup counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Handle, Tier, TransferKind

from .scenario import FORWARD, FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .snapshot_values import Pages, prefixes

STEPPED = [ExecutorKind.STEPPED]
THROUGH = [WritePolicy.WRITE_THROUGH]
BACK = [WritePolicy.WRITE_BACK]


def backed_up(driver: Scenario) -> set[Pages]:
    """Drain, and return the prefixes whose FULL data is on the host."""
    driver.drain()
    return set(driver.host_slots(FULL))


def queued_backups(driver: Scenario) -> int:
    """The number of nodes whose backup is queued or running."""
    return len(driver.transfer_views(TransferKind.BACKUP))


def fail_pending(driver: Scenario, parts_done: int = 0) -> int:
    """Start what is queued, and let each transfer fail after its first parts; returns the number of transfers."""
    driver.step()
    pending = driver.pending()
    for one in pending:
        driver.fail(one.ticket, parts_done)
    driver.step()
    return len(pending)


# HOST-1: when each write policy backs a node up to the host.

SELECTIVE = [WritePolicy.WRITE_THROUGH_SELECTIVE]


@clause("HOST-1", write_policies=THROUGH)
def test_write_through_backs_up_what_an_insert_added(driver: Scenario) -> None:
    driver.insert_fresh([1, 2])
    assert backed_up(driver) == prefixes(1, 2), (
        f"HOST-1: its first use was the insert: expected {prefixes(1, 2)}, got {driver.host_slots(FULL)}"
    )
    driver.insert_fresh([1, 3])
    found, expected = backed_up(driver), prefixes(1, 2) | prefixes(1, 3)
    assert found == expected, f"HOST-1: {expected} was inserted, on the host is {found}"


@clause("HOST-1", write_policies=THROUGH, executors=STEPPED)
def test_an_insert_queues_the_backup_itself(driver: Scenario) -> None:
    driver.insert_fresh([1, 2])
    assert queued_backups(driver) == 1, (
        f"HOST-1: an insert asks for the backup at once, under way are {queued_backups(driver)}"
    )
    assert not driver.host_slots(FULL), f"FLOW-2: nothing was copied yet, got {driver.host_slots(FULL)}"


@clause("HOST-1", write_policies=SELECTIVE)
def test_selective_does_not_back_up_after_the_first_request(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    assert not backed_up(driver), f"HOST-1: no second request came, yet copied is {driver.host_slots(FULL)}"
    driver.put_pages([1, 2])
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: a second request came, copied is {driver.host_slots(FULL)}"


@clause("HOST-1", write_policies=SELECTIVE, executors=STEPPED)
def test_an_insert_queues_the_backup_of_the_nodes_that_its_request_hit(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([1, 2, 3])
    assert queued_backups(driver) == 1, (
        f"HOST-1: the insert of the second request asks at once: expected 1, got {queued_backups(driver)}"
    )
    found = backed_up(driver)
    assert found == prefixes(1, 2), f"HOST-1: 1, 2 were hit, 3 was not, copied is {found}"


@clause("HOST-1", "MATCH-9", write_policies=SELECTIVE, executors=STEPPED)
def test_a_match_queues_a_backup_in_the_next_step(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.drain()
    driver.match_prompt([1, 2])
    assert not queued_backups(driver), f"MATCH-9: a match starts nothing itself, got {queued_backups(driver)} backups"
    driver.step()
    assert queued_backups(driver) == 1, (
        f"HOST-1: the second request was a match, the step starts {queued_backups(driver)} backups"
    )
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: copied is {driver.host_slots(FULL)}"


@clause("HOST-1", write_policies=SELECTIVE)
def test_selective_backs_up_when_the_hits_reach_the_threshold(driver: Scenario) -> None:
    for threshold in (1, 2, 3):
        with driver.host_variant(host={"selective_hits": threshold}) as selective:
            selective.put_pages([1, 2])
            for request in range(1, threshold + 1):
                selective.match_prompt([1, 2])
                found, expected = backed_up(selective), prefixes(1, 2) if request == threshold else set()
                assert found == expected, f"HOST-1: {request} hits of {threshold}: {expected} is copied, not {found}"


@clause("HOST-1", "EVICT-2", write_policies=SELECTIVE)
def test_selective_counts_the_hits_of_each_node(driver: Scenario) -> None:
    with driver.host_variant(host={"selective_hits": 2}) as selective:
        for pages in ([1], [1, 2], [1, 3]):
            selective.insert_fresh(pages)
        selective.match_prompt([1, 2])
        assert not backed_up(selective), f"HOST-1: each was hit once, copied is {selective.host_slots(FULL)}"
        selective.match_prompt([1, 3])
        assert backed_up(selective) == {(1,)}, f"HOST-1: 1 was hit twice, copied is {selective.host_slots(FULL)}"
        selective.match_prompt([1, 3])
        found, expected = backed_up(selective), prefixes(1, 3)
        assert found == expected, f"HOST-1: 1, 3 was hit twice and 1, 2 once, copied is {found}"


@clause("HOST-1", "EVICT-2", write_policies=SELECTIVE)
def test_a_request_that_ends_inside_a_node_hits_the_part_before(driver: Scenario) -> None:
    driver.insert_fresh([1, 2, 3])
    driver.match_prompt([1, 2, 9])
    # With MAMBA there is no state where the two diverge, so that nothing was hit.
    found, expected = backed_up(driver), set() if driver.has(MAMBA) else prefixes(1, 2)
    assert found == expected, f"HOST-1: {expected} was hit, copied is {found}"


@clause("HOST-1", "EVICT-2", write_policies=SELECTIVE)
def test_a_backup_does_not_reset_the_hit_count(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    for request in range(1, 5):
        driver.match_prompt([1, 2])
        driver.drain()
        assert driver.hits() == {(1, 2): request}, f"EVICT-2: {request} requests matched, got {driver.hits()}"
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: copied is {driver.host_slots(FULL)}"


@clause("HOST-1", write_policies=SELECTIVE)
def test_the_chunks_of_a_prefill_are_not_counted_as_hits(driver: Scenario) -> None:
    driver.insert_fresh([1, 2])
    for _ in range(3):
        driver.find([1, 2])
        driver.step()
    assert not backed_up(driver), f"HOST-1: no further request came, copied is {driver.host_slots(FULL)}"
    driver.match_prompt([1, 2])
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: one came, copied is {driver.host_slots(FULL)}"


@clause("HOST-1", "EVICT-2", needs=[Capability.REQUESTS], write_policies=THROUGH, page_sizes=[16])
def test_a_request_in_chunks_is_one_hit(driver: Scenario) -> None:
    selective = {"write_policy": WritePolicy.WRITE_THROUGH_SELECTIVE, "selective_hits": 3}
    with driver.host_variant(host=selective) as cache:
        for hits in range(4):
            admission = cache.admit_pages([1, 2, 3, 4], tail=int(not cache.config.bigram))
            for count in (2, 3, 4):
                cache.checkpoint(admission.request, max(cache.tokens_in_pages(count), admission.cached_tokens))
            cache.finish(admission.request)
            found, expected = backed_up(cache), prefixes(1, 2, 3, 4) if hits == 3 else set()
            assert found == expected, (
                f"HOST-1: {hits} hits of 3, each in chunks: expected copies {expected}, got {found}"
            )


@clause("HOST-1", write_policies=BACK)
def test_write_back_backs_up_nothing_before_an_eviction(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([1, 2, 3])
    driver.match_prompt([1, 2, 3], requests=5)
    assert not backed_up(driver), f"HOST-1: nothing was evicted, copied is {driver.host_slots(FULL)}"
    driver.evict_all()
    left = driver.device_slots(FULL)
    assert not left, f"EVICT-1: nothing is locked, left is {left}"
    assert backed_up(driver) == prefixes(1, 2, 3), f"HOST-1: it left the device, copied is {driver.host_slots(FULL)}"


@clause("HOST-1", write_policies=BACK)
def test_write_back_backs_up_only_the_victims(driver: Scenario) -> None:
    for pages in ([1], [2], [3]):
        driver.put_pages(pages)
    driver.evict(FULL, 1)
    found = backed_up(driver)
    assert found == {(1,)}, f"HOST-1: 1 is the oldest and left the device, copied is {found}"


@clause("HOST-1", write_policies=BACK)
def test_an_allocation_that_evicts_writes_back(driver: Scenario) -> None:
    driver.put_pages([1])
    slots = driver.allocate(min(count for name, count in driver.config.capacity_tokens.items() if name != MAMBA))
    assert slots is not None, "EVICT-1: nothing is locked, the whole device can be allocated"
    found = backed_up(driver)
    assert found == {(1,)}, f"HOST-1: all of the device was wanted, so that 1 left it, copied is {found}"
    driver.free(slots)


# HOST-2: parents are backed up first, each node with all its components and once; without room nothing of it.


def use(driver: Scenario, pages: list[int]) -> None:
    """Use a prompt as often as the write policy needs to back it up."""
    driver.put_pages(pages)
    driver.put_pages(pages)


@contextmanager
def small_host(driver: Scenario, pages: int, states: int = 8) -> Iterator[tuple[Scenario, Handle]]:
    """A host of so many pages and states, on which a prompt of two pages and its state are locked."""
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(pages, states)}) as small:
        use(small, [8, 9])
        assert backed_up(small) == prefixes(8, 9), (
            f"HOST-1: 8, 9 are to be on the host: expected {prefixes(8, 9)}, got {small.host_slots(FULL)}"
        )
        yield small, small.lock_host(small.best_match([8, 9]))


@clause("HOST-2", "FLOW-3", write_policies=FORWARD, executors=STEPPED)
def test_parents_are_backed_up_before_their_children(driver: Scenario) -> None:
    for arrived in range(3):
        driver.reset()
        for pages in ([1], [1, 2], [1, 2, 3]):
            driver.insert_fresh(pages)
        fail_pending(driver)
        driver.match_prompt([1, 2, 3])
        driver.step()
        copy = driver.pending_transfer(TransferKind.BACKUP)
        assert copy.parts == 3, f"HOST-2: three nodes are to be copied, under way is {copy}"
        driver.fail(copy.ticket, parts_done=arrived)
        driver.step()
        found, expected = set(driver.host_slots(FULL)), prefixes(*range(1, arrived + 1))
        assert found == expected, (
            f"HOST-2: {arrived} copies arrived and are to be the first ones: expected {expected}, got {found}"
        )


@clause("HOST-2", write_policies=BACK)
def test_write_back_backs_up_a_child_whose_parent_stays(driver: Scenario) -> None:
    for pages in ([1], [1, 2]):
        driver.put_pages(pages)
    driver.evict(FULL, 1)
    found = backed_up(driver)
    assert found == {(1, 2)}, f"HOST-2: 2 left the device, 1 did not, copied is {found}"


@clause("HOST-2", write_policies=FORWARD, executors=STEPPED)
def test_a_node_is_backed_up_with_all_its_components(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.match_prompt([1, 2])
    driver.step()
    page = driver.config.page_size
    expected = {name: 1 if name == MAMBA else 2 * page for name in driver.config.components}
    found = driver.slots_under_way(TransferKind.BACKUP)
    assert found == expected, f"HOST-2: two pages and a state have no copy, {expected}, under way are {found}"


@clause("HOST-2", write_policies=FORWARD, executors=STEPPED)
def test_a_node_with_a_copy_is_not_backed_up_again(driver: Scenario) -> None:
    use(driver, [1, 2])
    driver.drain()
    before = driver.host_slots(FULL)
    use(driver, [1, 2])
    driver.match_prompt([1, 2])
    driver.step()
    assert not queued_backups(driver), f"HOST-2: all of 1, 2 has a copy, under way are {queued_backups(driver)} backups"
    use(driver, [1, 2, 3])
    found, page = driver.slots_under_way(TransferKind.BACKUP)[FULL], driver.config.page_size
    assert found == page, f"HOST-2: page 3 alone has none, under way are {found} tokens"
    driver.drain()
    after = driver.host_slots(FULL)
    assert before.items() <= after.items(), f"HOST-2: copies of 1, 2 moved from {before} to {after}"


@clause("HOST-2", write_policies=THROUGH, executors=STEPPED)
def test_a_node_that_is_being_backed_up_is_not_queued_again(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    for _ in range(2):
        use(driver, [1, 2])
        driver.step()
    assert queued_backups(driver) == 1, (
        f"HOST-2: 1, 2 is being backed up already: expected 1, got {queued_backups(driver)} backups"
    )


@clause("HOST-2", write_policies=THROUGH, executors=STEPPED, components=(MAMBA,))
def test_a_state_that_is_inserted_later_is_backed_up_alone(driver: Scenario) -> None:
    driver.put_pages(driver.longer_prompt())
    driver.insert_fresh([*TOMBSTONE, 99])
    driver.drain()
    require_alone(driver, MAMBA)


@clause("HOST-2", write_policies=THROUGH, executors=STEPPED, components=(SWA,))
def test_swa_data_that_is_inserted_later_is_backed_up_alone(driver: Scenario) -> None:
    driver.insert_fresh(driver.longer_prompt(), passed=len(TOMBSTONE))
    driver.drain()
    require_alone(driver, SWA)


def require_alone(driver: Scenario, component: str) -> None:
    """The tombstone lacks a component on both tiers; when it gets it, only the missing components are backed up."""
    on_host = driver.components_on_host(TOMBSTONE)
    assert FULL in on_host, f"HOST-1: the prefix {TOMBSTONE} is to be on the host, there is {on_host}"
    assert component not in on_host, f"INS-4: {TOMBSTONE} has no {component} data yet, the host has {on_host}"
    driver.insert_fresh(TOMBSTONE)
    moved = {name for name, count in driver.slots_under_way(TransferKind.BACKUP).items() if count}
    expected = set(driver.config.components) - on_host
    assert moved == expected, f"HOST-2: {expected} came later and is copied alone, under way is {moved}"
    assert component in moved, f"HOST-2: {component} of {TOMBSTONE} has no copy, under way is {moved}"
    driver.drain()
    missing = set(driver.config.components) - driver.components_on_host(TOMBSTONE)
    assert not missing, f"HOST-2: all of {TOMBSTONE} has a copy now, {missing} has none"


@clause("HOST-2", "FLOW-5", write_policies=THROUGH, executors=STEPPED, each=(SWA, MAMBA))
def test_the_host_copy_stays_while_another_component_is_backed_up(driver: Scenario, component: str) -> None:
    """A host copy that lost a component is backed up again, and the rest of it stays while the host evicts."""
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(2, 1)}) as small:
        small.put_pages([1, 2])
        small.drain()
        small.evict_all_host(component)
        left = small.components_on_host((1, 2))
        assert FULL in left, f"EVICT-8: {component} alone was to leave the host, of 1, 2 is left {left}"
        assert component not in left, f"EVICT-8: {component} was to leave the host, of 1, 2 is left {left}"
        small.put_pages([1, 2])
        assert queued_backups(small) == 1, (
            f"HOST-2: {component} of 1, 2 has no copy, under way are {queued_backups(small)} backups"
        )
        small.put_pages([3, 4])
        small.evict_all_host()
        small.drain()
        missing = set(small.config.components) - small.components_on_host((1, 2))
        assert not missing, f"HOST-2: expected all of 1, 2 on the host, {missing} is missing"


@clause("HOST-2", "FLOW-5", write_policies=THROUGH, executors=STEPPED)
def test_the_host_copy_of_a_parent_stays_while_its_child_is_backed_up(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.drain()
    driver.put_pages([1, 2])
    driver.evict_all_host()
    found = set(driver.host_slots(FULL))
    assert found == prefixes(1), f"FLOW-5: 2 is being backed up below 1: expected the copy of 1 to stay, got {found}"
    found = backed_up(driver)
    assert found == prefixes(1, 2), f"HOST-2: expected copies of 1 and 2, got {found}"


@clause("HOST-2", "EVICT-8", write_policies=FORWARD)
def test_a_backup_evicts_older_copies_from_the_host(driver: Scenario) -> None:
    with driver.host_variant(host={"capacity_tokens": driver.capacity_for(2, 2)}) as small:
        for pages in ([1], [2], [3]):
            use(small, pages)
            small.drain()
        found = set(small.host_slots(FULL))
        assert found == {(2,), (3,)}, f"HOST-2: the host has two pages, and 1 was used first, copied is {found}"


@clause("HOST-2", "POOL-1", needs=[Capability.COUNTERS], write_policies=FORWARD)
def test_a_backup_without_room_is_refused_and_takes_nothing(driver: Scenario) -> None:
    with small_host(driver, pages=3) as (small, receipt):
        before, refused = small.free_host_slots(), small.adapter.counters()["backups_refused"]
        on_device = small.device_slots(FULL)
        use(small, [1, 2])
        small.drain()
        assert small.free_host_slots() == before, (
            f"HOST-2: 1, 2 does not fit, yet of {before} is left {small.free_host_slots()}"
        )
        now = small.adapter.counters()["backups_refused"]
        assert now > refused, f"HOST-2: backups_refused was {refused}, and after a refusal it is {now}"
        left, expected = set(small.device_slots(FULL)), set(on_device) | prefixes(1, 2)
        assert left == expected, f"HOST-2: the device keeps {expected}, got {left}"
        small.unlock_host(receipt)


@clause("HOST-2", write_policies=FORWARD)
def test_nothing_is_backed_up_below_a_node_whose_backup_was_refused(driver: Scenario) -> None:
    with small_host(driver, pages=4) as (small, receipt):
        use(small, [1, 2, 3])
        use(small, [1, 2, 3, 4])
        small.step()
        moved = {slot for one in small.transfer_views(TransferKind.BACKUP) for slot in one.device[FULL].tolist()}
        below = small.device_slots(FULL)[1, 2, 3, 4]
        assert moved.isdisjoint(below), f"HOST-2: there is no room for 1, 2, 3, yet {below} of 4 is being copied"
        found = backed_up(small)
        gaps = {pages for pages in found if not prefixes(*pages) <= found}
        assert not gaps, f"HOST-2: there is no room for all of 1, 2, 3, and below a gap is {gaps}"
        assert (1, 2, 3, 4) not in found, f"HOST-2: there is no room for 1, 2, 3, yet 4 is among {found}"
        small.unlock_host(receipt)


@clause("HOST-2", "FLOW-4", write_policies=THROUGH, executors=STEPPED)
def test_nothing_is_backed_up_below_a_node_whose_backup_failed_too_often(driver: Scenario) -> None:
    for attempt in range(3):
        driver.put_pages([1])
        assert fail_pending(driver) == 1, (
            f"FLOW-4: 1 failed {attempt} times, and is to be tried again with its next use"
        )
    driver.put_pages([1, 2])
    driver.step()
    assert not queued_backups(driver), (
        f"HOST-2: 1 failed three times and has no copy, yet below it {queued_backups(driver)} is made"
    )
    found = driver.host_slots(FULL)
    assert not found, f"HOST-2: a copy below 1 could not be reached, yet the host has {found}"


@clause("HOST-2", write_policies=FORWARD)
def test_a_refused_backup_is_retried_with_the_next_use(driver: Scenario) -> None:
    with small_host(driver, pages=3) as (small, receipt):
        use(small, [1, 2])
        use(small, [1, 2, 3])
        small.drain()
        small.unlock_host(receipt)
        small.evict_host(FULL, 2 * small.config.page_size)
        assert not backed_up(small), (
            f"HOST-2: 1, 2, 3 was not used since: expected no backup, got {small.host_slots(FULL)}"
        )
        small.match_prompt([1, 2, 3])
        small.step()
        found = backed_up(small)
        assert found == prefixes(1, 2, 3), f"HOST-2: it was used and there is room, copied is {found}"


@clause("HOST-2", write_policies=FORWARD, components=(MAMBA,))
def test_a_node_is_not_backed_up_without_room_for_its_state(driver: Scenario) -> None:
    with small_host(driver, pages=8, states=1) as (small, receipt):
        before = small.free_host_slots()
        use(small, [1, 2])
        found = backed_up(small)
        assert found == prefixes(8, 9), f"HOST-2: there is no room for the state of 1, 2, copied is {found}"
        assert small.free_host_slots() == before, f"HOST-2: of {before} is left {small.free_host_slots()}"
        small.unlock_host(receipt)


@clause("HOST-2", write_policies=FORWARD, components=(SWA,))
def test_a_node_is_not_backed_up_without_room_for_its_swa_data(driver: Scenario) -> None:
    capacity = driver.capacity_for(pages=8, states=8) | {SWA: 3 * driver.config.page_size}
    with driver.host_variant(host={"capacity_tokens": capacity}) as small:
        use(small, [8, 9])
        small.drain()
        receipt, before = small.lock_host(small.best_match([8, 9])), small.free_host_slots()
        use(small, [1, 2])
        found = backed_up(small)
        assert found == prefixes(8, 9), f"HOST-2: there is no room for the window of 1, 2, copied is {found}"
        assert small.free_host_slots() == before, f"HOST-2: of {before} is left {small.free_host_slots()}"
        small.unlock_host(receipt)


# HOST-3: a node stays on the device until its backup is acknowledged; backups are acknowledged in order.

ATTEMPTS = 3
"""After so many failures the backup of a node is not retried."""


def start_copy(driver: Scenario, pages: list[int]) -> None:
    """Use a prompt as often as the write policy needs, and start its backup."""
    driver.put_pages(pages)
    driver.match_prompt(pages)
    driver.step()


def require_held(driver: Scenario, pages: list[int], when: str) -> None:
    """Eviction takes nothing from the device: these pages are pinned, and they are not on the host yet."""
    before = {name: driver.device_slots(name) for name in driver.config.components}
    driver.evict_all()
    after = {name: driver.device_slots(name) for name in driver.config.components}
    assert after == before, f"HOST-3: {when}, {pages} is pinned: expected an eviction to leave {before}, got {after}"
    found = driver.tier_hits(pages)
    assert found == (len(pages), 0), (
        f"HOST-3: {when}, {pages} is on the device alone: expected {(len(pages), 0)}, got {found}"
    )
    pinned = {prefix for name, prefix in driver.pins(Tier.DEVICE) if name == FULL}
    assert prefixes(*pages) <= pinned, f"HOST-3: {when}, expected {pages} to be pinned, got {pinned}"


@clause("HOST-3", "FLOW-1", write_policies=FORWARD)
def test_a_node_stays_until_its_copy_is_acknowledged(driver: Scenario) -> None:
    start_copy(driver, [1, 2])
    copy = driver.pending_transfer(TransferKind.BACKUP)
    for layer in range(copy.units):
        require_held(driver, [1, 2], f"{layer} of {copy.units} layers have moved")
        driver.advance(copy.ticket)
    require_held(driver, [1, 2], "all layers have moved and no step has acknowledged them")
    driver.step()
    assert not driver.pins(Tier.DEVICE), (
        f"HOST-3: the backup was acknowledged: expected no pins, got {driver.pins(Tier.DEVICE)}"
    )
    driver.evict_all()
    assert driver.tier_hits([1, 2]) == (0, 2), (
        f"EVICT-7: the backup was acknowledged: expected (0, 2) after an eviction, got {driver.tier_hits([1, 2])}"
    )


@clause("HOST-3", "FLOW-1", write_policies=THROUGH)
def test_a_node_is_pinned_from_the_insert_on(driver: Scenario) -> None:
    driver.insert_fresh([1, 2])
    require_held(driver, [1, 2], "the copy is queued and not started")


@clause("HOST-3", "FLOW-1", write_policies=FORWARD)
def test_an_allocation_does_not_get_slots_that_are_being_backed_up(driver: Scenario) -> None:
    page = driver.config.page_size
    with driver.host_variant(
        capacity_tokens={name: 2 if name == MAMBA else 2 * page for name in driver.config.components}
    ) as tiny:
        start_copy(tiny, [1, 2])
        slots = tiny.allocate(page)
        assert slots is None, f"HOST-3: all of the device is being backed up: expected None, got {slots}"
        tiny.drain()
        slots = tiny.allocate(page)
        assert slots is not None, "EVICT-7: the backup was acknowledged: expected slots, got None"
        tiny.free(slots)


@clause("HOST-3", write_policies=FORWARD)
def test_backups_are_acknowledged_in_the_order_in_which_they_started(driver: Scenario) -> None:
    for pages in ([1], [2], [3]):
        start_copy(driver, pages)
    first, second, third = driver.pending()
    expected: list[set[tuple[int, ...]]] = [set(), set(), {(1,), (2,), (3,)}]
    found = []
    for one in (third, second, first):
        driver.complete(one.ticket)
        driver.step()
        found.append(set(driver.host_slots(FULL)))
    assert found == expected, (
        f"HOST-3: the oldest backup ended last: expected on the host after each end {expected}, got {found}"
    )


@clause("HOST-3", "FLOW-1", write_policies=FORWARD)
def test_a_backup_that_ends_early_stays_pinned_until_older_ones_are_acknowledged(driver: Scenario) -> None:
    start_copy(driver, [1])
    start_copy(driver, [2])
    first, second = driver.pending()
    driver.complete(second.ticket)
    driver.step()
    require_held(driver, [2], "the copy ended before an older one")
    driver.fail(first.ticket, parts_done=0)
    driver.step()
    found = set(driver.host_slots(FULL))
    assert found == {(2,)}, f"HOST-3: the older copy failed and the other one did not, got on the host {found}"


@clause("HOST-3", "FLOW-4", write_policies=FORWARD)
def test_all_backups_that_one_step_starts_are_one_transfer(driver: Scenario) -> None:
    for pages in ([1], [1, 2], [3]):
        driver.put_pages(pages)
    for pages in ([1, 2], [3]):
        driver.match_prompt(pages)
    while queued_backups(driver):
        driver.drain()
    for pages in ([4], [5, 6], [7]):
        driver.put_pages(pages)
        driver.match_prompt(pages)
    driver.step()
    copy, parts = driver.pending_transfer(TransferKind.BACKUP), queued_backups(driver)
    assert copy.parts == parts == 3, (
        f"HOST-3: three nodes are one transfer of three parts, got {copy}, under way {parts}"
    )


@clause("HOST-3", "FLOW-3", "FLOW-4", write_policies=FORWARD)
def test_a_failed_backup_is_undone_and_retried(driver: Scenario) -> None:
    before = driver.free_host_slots()
    driver.put_pages([1, 2])
    driver.match_prompt([1, 2])
    assert fail_pending(driver) == 1, "HOST-1: the copy of 1, 2 was asked for"
    on_host, free = driver.host_slots(FULL), driver.free_host_slots()
    assert (on_host, free) == ({}, before), (
        f"FLOW-3: no copy arrived: on the host is {on_host}, free {free} of {before}"
    )
    assert not driver.pins(Tier.DEVICE), f"HOST-3: it has ended, pinned is {driver.pins(Tier.DEVICE)}"
    assert driver.tier_hits([1, 2]) == (2, 0), (
        f"FLOW-3: the device keeps 1, 2: expected (2, 0), got {driver.tier_hits([1, 2])}"
    )
    driver.step()
    assert not queued_backups(driver), (
        f"FLOW-4: it was not used since: expected no backups, got {queued_backups(driver)} backups"
    )
    driver.match_prompt([1, 2])
    driver.drain()
    found = set(driver.host_slots(FULL))
    assert found == prefixes(1, 2), f"FLOW-4: it was used again, got on the host {found}"


@clause("FLOW-4", write_policies=FORWARD)
def test_after_three_failures_a_backup_is_not_retried(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    tried = []
    for _ in range(ATTEMPTS + 2):
        driver.match_prompt([1, 2])
        tried.append(fail_pending(driver))
    expected = [1] * ATTEMPTS + [0] * 2
    assert tried == expected, f"FLOW-4: a copy may fail {ATTEMPTS} times, expected {expected} transfers, got {tried}"
    driver.put_pages([3])
    driver.match_prompt([3])
    driver.drain()
    found = set(driver.host_slots(FULL))
    assert found == {(3,)}, f"FLOW-4: expected other nodes to be backed up, got on the host {found}"


@clause("FLOW-4", write_policies=[WritePolicy.WRITE_BACK])
def test_a_victim_is_dropped_after_three_failed_backups(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    refusals = []
    for _ in range(ATTEMPTS + 1):
        driver.adapter.fail_waits(1)
        driver.failures += 1
        refusals.append(driver.evict(FULL, 1).refused)
    driver.adapter.fail_waits(0)
    kept = refusals[: ATTEMPTS - 1]
    assert all(kept), f"FLOW-4: before its {ATTEMPTS} failures a node stays, refused were {refusals}"
    assert driver.tier_hits([1, 2]) == (0, 0), (
        f"EVICT-7: it is dropped then: expected (0, 0), got {driver.tier_hits([1, 2])}"
    )


@clause("FLOW-2", "FLOW-4", needs=[Capability.COUNTERS], write_policies=FORWARD)
def test_bytes_are_counted_when_the_backup_is_acknowledged(driver: Scenario) -> None:
    start_copy(driver, [1, 2])
    driver.complete(driver.pending_transfer(TransferKind.BACKUP).ticket)
    before = driver.adapter.counters()["bytes_backed_up"]
    driver.step()
    after = driver.adapter.counters()["bytes_backed_up"]
    assert before == 0, f"FLOW-2: nothing was acknowledged, yet bytes_backed_up is {before}"
    assert after > 0, f"FLOW-2: the copy was acknowledged, yet bytes_backed_up is {after}"
