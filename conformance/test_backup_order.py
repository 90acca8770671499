"""HOST-2: parents are backed up first, each node with all its components and once; without room nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle, TransferKind

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    capacity_for,
    evict_host,
    host_variant,
    insert_fresh,
    longer_prompt,
    put,
)
from .transfers import (
    backed_up,
    fail_pending,
    match_prompt,
    pending_transfer,
    queued_backups,
    slots_under_way,
    transfer_views,
)
from .tree_view import device_slots, free_host_slots, host_slots, prefixes

STEPPED = [ExecutorKind.STEPPED]
THROUGH = [WritePolicy.WRITE_THROUGH]
FORWARD = [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE]
BACK = [WritePolicy.WRITE_BACK]


def use(driver: Driver, pages: list[int]) -> None:
    """Use a prompt as often as the write policy needs to back it up."""
    put(driver, pages)
    put(driver, pages)


@contextmanager
def small_host(driver: Driver, pages: int, states: int = 8) -> Iterator[tuple[Driver, Handle]]:
    """A host of so many pages and states, on which a prompt of two pages and its state are locked."""
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, pages, states)}) as small:
        use(small, [8, 9])
        assert backed_up(small) == prefixes(8, 9), (
            f"HOST-1: 8, 9 are to be on the host: expected {prefixes(8, 9)}, got {host_slots(small, FULL)}"
        )
        yield small, small.lock_host(best_match(small, [8, 9]))


@clause("HOST-2", "FLOW-3", write_policies=FORWARD, executors=STEPPED)
def test_parents_are_backed_up_before_their_children(driver: Driver) -> None:
    for arrived in range(3):
        driver.reset()
        for pages in ([1], [1, 2], [1, 2, 3]):
            insert_fresh(driver, pages)
        fail_pending(driver)
        match_prompt(driver, [1, 2, 3])
        driver.step()
        copy = pending_transfer(driver, TransferKind.BACKUP)
        assert copy.parts == 3, f"HOST-2: three nodes are to be copied, under way is {copy}"
        driver.fail(copy.ticket, parts_done=arrived)
        driver.step()
        found, expected = set(host_slots(driver, FULL)), prefixes(*range(1, arrived + 1))
        assert found == expected, (
            f"HOST-2: {arrived} copies arrived and are to be the first ones: expected {expected}, got {found}"
        )


@clause("HOST-2", write_policies=BACK)
def test_write_back_backs_up_a_child_whose_parent_stays(driver: Driver) -> None:
    for pages in ([1], [1, 2]):
        put(driver, pages)
    driver.evict(FULL, 1)
    found = backed_up(driver)
    assert found == {(1, 2)}, f"HOST-2: 2 left the device, 1 did not, copied is {found}"


@clause("HOST-2", write_policies=FORWARD, executors=STEPPED)
def test_a_node_is_backed_up_with_all_its_components(driver: Driver) -> None:
    put(driver, [1, 2])
    match_prompt(driver, [1, 2])
    driver.step()
    page = driver.config.page_size
    expected = {name: 1 if name == MAMBA else 2 * page for name in driver.config.components}
    found = slots_under_way(driver, TransferKind.BACKUP)
    assert found == expected, f"HOST-2: two pages and a state have no copy, {expected}, under way are {found}"


@clause("HOST-2", write_policies=FORWARD, executors=STEPPED)
def test_a_node_with_a_copy_is_not_backed_up_again(driver: Driver) -> None:
    use(driver, [1, 2])
    driver.drain()
    before = host_slots(driver, FULL)
    use(driver, [1, 2])
    match_prompt(driver, [1, 2])
    driver.step()
    assert not queued_backups(driver), f"HOST-2: all of 1, 2 has a copy, under way are {queued_backups(driver)} backups"
    use(driver, [1, 2, 3])
    found, page = slots_under_way(driver, TransferKind.BACKUP)[FULL], driver.config.page_size
    assert found == page, f"HOST-2: page 3 alone has none, under way are {found} tokens"
    driver.drain()
    after = host_slots(driver, FULL)
    assert before.items() <= after.items(), f"HOST-2: copies of 1, 2 moved from {before} to {after}"


@clause("HOST-2", write_policies=THROUGH, executors=STEPPED)
def test_a_node_that_is_being_backed_up_is_not_queued_again(driver: Driver) -> None:
    put(driver, [1, 2])
    for _ in range(2):
        use(driver, [1, 2])
        driver.step()
    assert queued_backups(driver) == 1, (
        f"HOST-2: 1, 2 is being backed up already: expected 1, got {queued_backups(driver)} backups"
    )


@clause("HOST-2", write_policies=THROUGH, executors=STEPPED, components=(MAMBA,))
def test_a_state_that_is_inserted_later_is_backed_up_alone(driver: Driver) -> None:
    put(driver, longer_prompt(driver))
    insert_fresh(driver, [*TOMBSTONE, 99])
    driver.drain()
    require_alone(driver, MAMBA)


@clause("HOST-2", write_policies=THROUGH, executors=STEPPED, components=(SWA,))
def test_swa_data_that_is_inserted_later_is_backed_up_alone(driver: Driver) -> None:
    insert_fresh(driver, longer_prompt(driver), passed=len(TOMBSTONE))
    driver.drain()
    require_alone(driver, SWA)


def require_alone(driver: Driver, component: str) -> None:
    """The tombstone lacks a component on both tiers; when it gets it, only the missing components are backed up."""
    on_host = {name for name in driver.config.components if TOMBSTONE in host_slots(driver, name)}
    assert FULL in on_host, f"HOST-1: the prefix {TOMBSTONE} is to be on the host, there is {on_host}"
    assert component not in on_host, f"INS-4: {TOMBSTONE} has no {component} data yet, the host has {on_host}"
    insert_fresh(driver, TOMBSTONE)
    moved = {name for name, count in slots_under_way(driver, TransferKind.BACKUP).items() if count}
    expected = set(driver.config.components) - on_host
    assert moved == expected, f"HOST-2: {expected} came later and is copied alone, under way is {moved}"
    assert component in moved, f"HOST-2: {component} of {TOMBSTONE} has no copy, under way is {moved}"
    driver.drain()
    missing = {name for name in driver.config.components if TOMBSTONE not in host_slots(driver, name)}
    assert not missing, f"HOST-2: all of {TOMBSTONE} has a copy now, {missing} has none"


@clause("HOST-2", "FLOW-5", write_policies=THROUGH, executors=STEPPED, components=(MAMBA,))
def test_the_host_copy_stays_while_its_state_is_backed_up(driver: Driver) -> None:
    require_joined(driver, MAMBA)


@clause("HOST-2", "FLOW-5", write_policies=THROUGH, executors=STEPPED, components=(SWA,))
def test_the_host_copy_stays_while_its_swa_data_is_backed_up(driver: Driver) -> None:
    require_joined(driver, SWA)


def require_joined(driver: Driver, component: str) -> None:
    """A host copy that lost a component is backed up again, and the rest of it stays while the host evicts."""
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 1)}) as small:
        put(small, [1, 2])
        small.drain()
        evict_host(small, component)
        left = {name for name in small.config.components if (1, 2) in host_slots(small, name)}
        assert FULL in left, f"EVICT-8: {component} alone was to leave the host, of 1, 2 is left {left}"
        assert component not in left, f"EVICT-8: {component} was to leave the host, of 1, 2 is left {left}"
        put(small, [1, 2])
        assert queued_backups(small) == 1, (
            f"HOST-2: {component} of 1, 2 has no copy, under way are {queued_backups(small)} backups"
        )
        put(small, [3, 4])
        evict_host(small)
        small.drain()
        missing = {name for name in small.config.components if (1, 2) not in host_slots(small, name)}
        assert not missing, f"HOST-2: expected all of 1, 2 on the host, {missing} is missing"


@clause("HOST-2", "FLOW-5", write_policies=THROUGH, executors=STEPPED)
def test_the_host_copy_of_a_parent_stays_while_its_child_is_backed_up(driver: Driver) -> None:
    put(driver, [1])
    driver.drain()
    put(driver, [1, 2])
    evict_host(driver)
    found = set(host_slots(driver, FULL))
    assert found == prefixes(1), f"FLOW-5: 2 is being backed up below 1: expected the copy of 1 to stay, got {found}"
    found = backed_up(driver)
    assert found == prefixes(1, 2), f"HOST-2: expected copies of 1 and 2, got {found}"


@clause("HOST-2", "EVICT-8", write_policies=FORWARD)
def test_a_backup_evicts_older_copies_from_the_host(driver: Driver) -> None:
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 2)}) as small:
        for pages in ([1], [2], [3]):
            use(small, pages)
            small.drain()
        found = set(host_slots(small, FULL))
        assert found == {(2,), (3,)}, f"HOST-2: the host has two pages, and 1 was used first, copied is {found}"


@clause("HOST-2", "POOL-1", needs=[Capability.COUNTERS], write_policies=FORWARD)
def test_a_backup_without_room_is_refused_and_takes_nothing(driver: Driver) -> None:
    with small_host(driver, pages=3) as (small, receipt):
        before, refused = free_host_slots(small), small.adapter.counters()["backups_refused"]
        on_device = device_slots(small, FULL)
        use(small, [1, 2])
        small.drain()
        assert free_host_slots(small) == before, (
            f"HOST-2: 1, 2 does not fit, yet of {before} is left {free_host_slots(small)}"
        )
        now = small.adapter.counters()["backups_refused"]
        assert now > refused, f"HOST-2: backups_refused was {refused}, and after a refusal it is {now}"
        left, expected = set(device_slots(small, FULL)), set(on_device) | prefixes(1, 2)
        assert left == expected, f"HOST-2: the device keeps {expected}, got {left}"
        small.unlock_host(receipt)


@clause("HOST-2", write_policies=FORWARD)
def test_nothing_is_backed_up_below_a_node_whose_backup_was_refused(driver: Driver) -> None:
    with small_host(driver, pages=4) as (small, receipt):
        use(small, [1, 2, 3])
        use(small, [1, 2, 3, 4])
        small.step()
        moved = {slot for one in transfer_views(small, TransferKind.BACKUP) for slot in one.device[FULL].tolist()}
        below = device_slots(small, FULL)[1, 2, 3, 4]
        assert moved.isdisjoint(below), f"HOST-2: there is no room for 1, 2, 3, yet {below} of 4 is being copied"
        found = backed_up(small)
        gaps = {pages for pages in found if not prefixes(*pages) <= found}
        assert not gaps, f"HOST-2: there is no room for all of 1, 2, 3, and below a gap is {gaps}"
        assert (1, 2, 3, 4) not in found, f"HOST-2: there is no room for 1, 2, 3, yet 4 is among {found}"
        small.unlock_host(receipt)


@clause("HOST-2", "FLOW-4", write_policies=THROUGH, executors=STEPPED)
def test_nothing_is_backed_up_below_a_node_whose_backup_failed_too_often(driver: Driver) -> None:
    for attempt in range(3):
        put(driver, [1])
        assert fail_pending(driver) == 1, (
            f"FLOW-4: 1 failed {attempt} times, and is to be tried again with its next use"
        )
    put(driver, [1, 2])
    driver.step()
    assert not queued_backups(driver), (
        f"HOST-2: 1 failed three times and has no copy, yet below it {queued_backups(driver)} is made"
    )
    found = host_slots(driver, FULL)
    assert not found, f"HOST-2: a copy below 1 could not be reached, yet the host has {found}"


@clause("HOST-2", write_policies=FORWARD)
def test_a_refused_backup_is_retried_with_the_next_use(driver: Driver) -> None:
    with small_host(driver, pages=3) as (small, receipt):
        use(small, [1, 2])
        use(small, [1, 2, 3])
        small.drain()
        small.unlock_host(receipt)
        small.evict_host(FULL, 2 * small.config.page_size)
        assert not backed_up(small), (
            f"HOST-2: 1, 2, 3 was not used since: expected no backup, got {host_slots(small, FULL)}"
        )
        match_prompt(small, [1, 2, 3])
        small.step()
        found = backed_up(small)
        assert found == prefixes(1, 2, 3), f"HOST-2: it was used and there is room, copied is {found}"


@clause("HOST-2", write_policies=FORWARD, components=(MAMBA,))
def test_a_node_is_not_backed_up_without_room_for_its_state(driver: Driver) -> None:
    with small_host(driver, pages=8, states=1) as (small, receipt):
        before = free_host_slots(small)
        use(small, [1, 2])
        found = backed_up(small)
        assert found == prefixes(8, 9), f"HOST-2: there is no room for the state of 1, 2, copied is {found}"
        assert free_host_slots(small) == before, f"HOST-2: of {before} is left {free_host_slots(small)}"
        small.unlock_host(receipt)


@clause("HOST-2", write_policies=FORWARD, components=(SWA,))
def test_a_node_is_not_backed_up_without_room_for_its_swa_data(driver: Driver) -> None:
    capacity = capacity_for(driver.config, pages=8, states=8) | {SWA: 3 * driver.config.page_size}
    with host_variant(driver, host={"capacity_tokens": capacity}) as small:
        use(small, [8, 9])
        small.drain()
        receipt, before = small.lock_host(best_match(small, [8, 9])), free_host_slots(small)
        use(small, [1, 2])
        found = backed_up(small)
        assert found == prefixes(8, 9), f"HOST-2: there is no room for the window of 1, 2, copied is {found}"
        assert free_host_slots(small) == before, f"HOST-2: of {before} is left {free_host_slots(small)}"
        small.unlock_host(receipt)
