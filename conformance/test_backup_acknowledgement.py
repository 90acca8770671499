"""HOST-3: a node stays on the device until its backup is acknowledged; backups are acknowledged in order."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Tier, TransferKind

from .scenario import FULL, MAMBA, evict_all, host_variant, insert_fresh, put, tier_hits
from .transfers import fail_pending, match_prompt, pending_transfer, queued_backups
from .tree_view import device_slots, free_host_slots, host_slots, pins, prefixes

THROUGH = [WritePolicy.WRITE_THROUGH]
FORWARD = [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE]
ATTEMPTS = 3
"""After so many failures the backup of a node is not retried."""


def start_copy(driver: Driver, pages: list[int]) -> None:
    """Use a prompt as often as the write policy needs, and start its backup."""
    put(driver, pages)
    match_prompt(driver, pages)
    driver.step()


def require_held(driver: Driver, pages: list[int], when: str) -> None:
    """Eviction takes nothing from the device: these pages are pinned, and they are not on the host yet."""
    before = {name: device_slots(driver, name) for name in driver.config.components}
    evict_all(driver)
    after = {name: device_slots(driver, name) for name in driver.config.components}
    assert after == before, f"HOST-3: {when}, {pages} is pinned: expected an eviction to leave {before}, got {after}"
    found = tier_hits(driver, pages)
    assert found == (len(pages), 0), (
        f"HOST-3: {when}, {pages} is on the device alone: expected {(len(pages), 0)}, got {found}"
    )
    pinned = {prefix for name, prefix in pins(driver, Tier.DEVICE) if name == FULL}
    assert prefixes(*pages) <= pinned, f"HOST-3: {when}, expected {pages} to be pinned, got {pinned}"


@clause("HOST-3", "FLOW-1", write_policies=FORWARD)
def test_a_node_stays_until_its_copy_is_acknowledged(driver: Driver) -> None:
    start_copy(driver, [1, 2])
    copy = pending_transfer(driver, TransferKind.BACKUP)
    for layer in range(copy.layers):
        require_held(driver, [1, 2], f"{layer} of {copy.layers} layers have moved")
        driver.advance(copy.ticket)
    require_held(driver, [1, 2], "all layers have moved and no step has acknowledged them")
    driver.step()
    assert not pins(driver, Tier.DEVICE), (
        f"HOST-3: the backup was acknowledged: expected no pins, got {pins(driver, Tier.DEVICE)}"
    )
    evict_all(driver)
    assert tier_hits(driver, [1, 2]) == (0, 2), (
        f"EVICT-7: the backup was acknowledged: expected (0, 2) after an eviction, got {tier_hits(driver, [1, 2])}"
    )


@clause("HOST-3", "FLOW-1", write_policies=THROUGH)
def test_a_node_is_pinned_from_the_insert_on(driver: Driver) -> None:
    insert_fresh(driver, [1, 2])
    require_held(driver, [1, 2], "the copy is queued and not started")


@clause("HOST-3", "FLOW-1", write_policies=FORWARD)
def test_an_allocation_does_not_get_slots_that_are_being_backed_up(driver: Driver) -> None:
    page = driver.config.page_size
    with host_variant(
        driver, capacity_tokens={name: 2 if name == MAMBA else 2 * page for name in driver.config.components}
    ) as tiny:
        start_copy(tiny, [1, 2])
        slots = tiny.allocate(page)
        assert slots is None, f"HOST-3: all of the device is being backed up: expected None, got {slots}"
        tiny.drain()
        slots = tiny.allocate(page)
        assert slots is not None, "EVICT-7: the backup was acknowledged: expected slots, got None"
        tiny.free(slots)


@clause("HOST-3", write_policies=FORWARD)
def test_backups_are_acknowledged_in_the_order_in_which_they_started(driver: Driver) -> None:
    for pages in ([1], [2], [3]):
        start_copy(driver, pages)
    first, second, third = driver.pending()
    expected: list[set[tuple[int, ...]]] = [set(), set(), {(1,), (2,), (3,)}]
    found = []
    for one in (third, second, first):
        driver.complete(one.ticket)
        driver.step()
        found.append(set(host_slots(driver, FULL)))
    assert found == expected, (
        f"HOST-3: the oldest backup ended last: expected on the host after each end {expected}, got {found}"
    )


@clause("HOST-3", "FLOW-1", write_policies=FORWARD)
def test_a_backup_that_ends_early_stays_pinned_until_older_ones_are_acknowledged(driver: Driver) -> None:
    start_copy(driver, [1])
    start_copy(driver, [2])
    first, second = driver.pending()
    driver.complete(second.ticket)
    driver.step()
    require_held(driver, [2], "the copy ended before an older one")
    driver.fail(first.ticket, parts_done=0)
    driver.step()
    found = set(host_slots(driver, FULL))
    assert found == {(2,)}, f"HOST-3: the older copy failed and the other one did not, got on the host {found}"


@clause("HOST-3", "FLOW-4", write_policies=FORWARD)
def test_all_backups_that_one_step_starts_are_one_transfer(driver: Driver) -> None:
    for pages in ([1], [1, 2], [3]):
        put(driver, pages)
    for pages in ([1, 2], [3]):
        match_prompt(driver, pages)
    while queued_backups(driver):
        driver.drain()
    for pages in ([4], [5, 6], [7]):
        put(driver, pages)
        match_prompt(driver, pages)
    driver.step()
    copy, parts = pending_transfer(driver, TransferKind.BACKUP), queued_backups(driver)
    assert copy.parts == parts == 3, (
        f"HOST-3: three nodes are one transfer of three parts, got {copy}, under way {parts}"
    )


@clause("HOST-3", "FLOW-3", "FLOW-4", write_policies=FORWARD)
def test_a_failed_backup_is_undone_and_retried(driver: Driver) -> None:
    before = free_host_slots(driver)
    put(driver, [1, 2])
    match_prompt(driver, [1, 2])
    assert fail_pending(driver) == 1, "HOST-1: the copy of 1, 2 was asked for"
    on_host, free = host_slots(driver, FULL), free_host_slots(driver)
    assert (on_host, free) == ({}, before), (
        f"FLOW-3: no copy arrived: on the host is {on_host}, free {free} of {before}"
    )
    assert not pins(driver, Tier.DEVICE), f"HOST-3: it has ended, pinned is {pins(driver, Tier.DEVICE)}"
    assert tier_hits(driver, [1, 2]) == (2, 0), (
        f"FLOW-3: the device keeps 1, 2: expected (2, 0), got {tier_hits(driver, [1, 2])}"
    )
    driver.step()
    assert not queued_backups(driver), (
        f"FLOW-4: it was not used since: expected no backups, got {queued_backups(driver)} backups"
    )
    match_prompt(driver, [1, 2])
    driver.drain()
    found = set(host_slots(driver, FULL))
    assert found == prefixes(1, 2), f"FLOW-4: it was used again, got on the host {found}"


@clause("FLOW-4", write_policies=FORWARD)
def test_after_three_failures_a_backup_is_not_retried(driver: Driver) -> None:
    put(driver, [1, 2])
    tried = []
    for _ in range(ATTEMPTS + 2):
        match_prompt(driver, [1, 2])
        tried.append(fail_pending(driver))
    expected = [1] * ATTEMPTS + [0] * 2
    assert tried == expected, f"FLOW-4: a copy may fail {ATTEMPTS} times, expected {expected} transfers, got {tried}"
    put(driver, [3])
    match_prompt(driver, [3])
    driver.drain()
    found = set(host_slots(driver, FULL))
    assert found == {(3,)}, f"FLOW-4: expected other nodes to be backed up, got on the host {found}"


@clause("FLOW-4", write_policies=[WritePolicy.WRITE_BACK])
def test_a_victim_is_dropped_after_three_failed_backups(driver: Driver) -> None:
    put(driver, [1, 2])
    refusals = []
    for _ in range(ATTEMPTS + 1):
        driver.adapter.fail_waits(1)
        driver.failures += 1
        refusals.append(driver.evict(FULL, 1).refused)
    driver.adapter.fail_waits(0)
    kept = refusals[: ATTEMPTS - 1]
    assert all(kept), f"FLOW-4: before its {ATTEMPTS} failures a node stays, refused were {refusals}"
    assert tier_hits(driver, [1, 2]) == (0, 0), (
        f"EVICT-7: it is dropped then: expected (0, 0), got {tier_hits(driver, [1, 2])}"
    )


@clause("FLOW-2", "FLOW-4", needs=[Capability.COUNTERS], write_policies=FORWARD)
def test_bytes_are_counted_when_the_backup_is_acknowledged(driver: Driver) -> None:
    start_copy(driver, [1, 2])
    driver.complete(pending_transfer(driver, TransferKind.BACKUP).ticket)
    before = driver.adapter.counters()["bytes_backed_up"]
    driver.step()
    after = driver.adapter.counters()["bytes_backed_up"]
    assert before == 0, f"FLOW-2: nothing was acknowledged, yet bytes_backed_up is {before}"
    assert after > 0, f"FLOW-2: the copy was acknowledged, yet bytes_backed_up is {after}"
