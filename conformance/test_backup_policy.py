"""HOST-1: when each write policy backs a node up to the host."""

from __future__ import annotations

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import FULL, MAMBA, evict_all, find, has, host_variant, insert_fresh, put
from .transfers import backed_up, match_prompt, queued_backups
from .tree_view import device_slots, hits, host_slots, prefixes

STEPPED = [ExecutorKind.STEPPED]
THROUGH = [WritePolicy.WRITE_THROUGH]
SELECTIVE = [WritePolicy.WRITE_THROUGH_SELECTIVE]
BACK = [WritePolicy.WRITE_BACK]


@clause("HOST-1", write_policies=THROUGH)
def test_write_through_backs_up_what_an_insert_added(driver: Driver) -> None:
    insert_fresh(driver, [1, 2])
    assert backed_up(driver) == prefixes(1, 2), (
        f"HOST-1: its first use was the insert: expected {prefixes(1, 2)}, got {host_slots(driver, FULL)}"
    )
    insert_fresh(driver, [1, 3])
    found, expected = backed_up(driver), prefixes(1, 2) | prefixes(1, 3)
    assert found == expected, f"HOST-1: {expected} was inserted, on the host is {found}"


@clause("HOST-1", write_policies=THROUGH, executors=STEPPED)
def test_an_insert_queues_the_backup_itself(driver: Driver) -> None:
    insert_fresh(driver, [1, 2])
    assert queued_backups(driver) == 1, (
        f"HOST-1: an insert asks for the backup at once, under way are {queued_backups(driver)}"
    )
    assert not host_slots(driver, FULL), f"FLOW-2: nothing was copied yet, got {host_slots(driver, FULL)}"


@clause("HOST-1", write_policies=SELECTIVE)
def test_selective_does_not_back_up_after_the_first_request(driver: Driver) -> None:
    put(driver, [1, 2])
    assert not backed_up(driver), f"HOST-1: no second request came, yet copied is {host_slots(driver, FULL)}"
    put(driver, [1, 2])
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: a second request came, copied is {host_slots(driver, FULL)}"


@clause("HOST-1", write_policies=SELECTIVE, executors=STEPPED)
def test_an_insert_queues_the_backup_of_the_nodes_that_its_request_hit(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [1, 2, 3])
    assert queued_backups(driver) == 1, (
        f"HOST-1: the insert of the second request asks at once: expected 1, got {queued_backups(driver)}"
    )
    found = backed_up(driver)
    assert found == prefixes(1, 2), f"HOST-1: 1, 2 were hit, 3 was not, copied is {found}"


@clause("HOST-1", "MATCH-9", write_policies=SELECTIVE, executors=STEPPED)
def test_a_match_queues_a_backup_in_the_next_step(driver: Driver) -> None:
    put(driver, [1, 2])
    driver.drain()
    match_prompt(driver, [1, 2])
    assert not queued_backups(driver), f"MATCH-9: a match starts nothing itself, got {queued_backups(driver)} backups"
    driver.step()
    assert queued_backups(driver) == 1, (
        f"HOST-1: the second request was a match, the step starts {queued_backups(driver)} backups"
    )
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: copied is {host_slots(driver, FULL)}"


@clause("HOST-1", write_policies=SELECTIVE)
def test_selective_backs_up_when_the_hits_reach_the_threshold(driver: Driver) -> None:
    for threshold in (1, 2, 3):
        with host_variant(driver, host={"selective_hits": threshold}) as selective:
            put(selective, [1, 2])
            for request in range(1, threshold + 1):
                match_prompt(selective, [1, 2])
                found, expected = backed_up(selective), prefixes(1, 2) if request == threshold else set()
                assert found == expected, f"HOST-1: {request} hits of {threshold}: {expected} is copied, not {found}"


@clause("HOST-1", "EVICT-2", write_policies=SELECTIVE)
def test_selective_counts_the_hits_of_each_node(driver: Driver) -> None:
    with host_variant(driver, host={"selective_hits": 2}) as selective:
        for pages in ([1], [1, 2], [1, 3]):
            insert_fresh(selective, pages)
        match_prompt(selective, [1, 2])
        assert not backed_up(selective), f"HOST-1: each was hit once, copied is {host_slots(selective, FULL)}"
        match_prompt(selective, [1, 3])
        assert backed_up(selective) == {(1,)}, f"HOST-1: 1 was hit twice, copied is {host_slots(selective, FULL)}"
        match_prompt(selective, [1, 3])
        found, expected = backed_up(selective), prefixes(1, 3)
        assert found == expected, f"HOST-1: 1, 3 was hit twice and 1, 2 once, copied is {found}"


@clause("HOST-1", "EVICT-2", write_policies=SELECTIVE)
def test_a_request_that_ends_inside_a_node_hits_the_part_before(driver: Driver) -> None:
    insert_fresh(driver, [1, 2, 3])
    match_prompt(driver, [1, 2, 9])
    # With MAMBA there is no state where the two diverge, so that nothing was hit.
    found, expected = backed_up(driver), set() if has(driver, MAMBA) else prefixes(1, 2)
    assert found == expected, f"HOST-1: {expected} was hit, copied is {found}"


@clause("HOST-1", "EVICT-2", write_policies=SELECTIVE)
def test_a_backup_does_not_reset_the_hit_count(driver: Driver) -> None:
    put(driver, [1, 2])
    for request in range(1, 5):
        match_prompt(driver, [1, 2])
        driver.drain()
        assert hits(driver) == {(1, 2): request}, f"EVICT-2: {request} requests matched, got {hits(driver)}"
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: copied is {host_slots(driver, FULL)}"


@clause("HOST-1", write_policies=SELECTIVE)
def test_the_chunks_of_a_prefill_are_not_counted_as_hits(driver: Driver) -> None:
    insert_fresh(driver, [1, 2])
    for _ in range(3):
        find(driver, [1, 2])
        driver.step()
    assert not backed_up(driver), f"HOST-1: no further request came, copied is {host_slots(driver, FULL)}"
    match_prompt(driver, [1, 2])
    assert backed_up(driver) == prefixes(1, 2), f"HOST-1: one came, copied is {host_slots(driver, FULL)}"


@clause("HOST-1", write_policies=BACK)
def test_write_back_backs_up_nothing_before_an_eviction(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [1, 2, 3])
    match_prompt(driver, [1, 2, 3], requests=5)
    assert not backed_up(driver), f"HOST-1: nothing was evicted, copied is {host_slots(driver, FULL)}"
    evict_all(driver)
    left = device_slots(driver, FULL)
    assert not left, f"EVICT-1: nothing is locked, left is {left}"
    assert backed_up(driver) == prefixes(1, 2, 3), f"HOST-1: it left the device, copied is {host_slots(driver, FULL)}"


@clause("HOST-1", write_policies=BACK)
def test_write_back_backs_up_only_the_victims(driver: Driver) -> None:
    for pages in ([1], [2], [3]):
        put(driver, pages)
    driver.evict(FULL, 1)
    found = backed_up(driver)
    assert found == {(1,)}, f"HOST-1: 1 is the oldest and left the device, copied is {found}"


@clause("HOST-1", write_policies=BACK)
def test_an_allocation_that_evicts_writes_back(driver: Driver) -> None:
    put(driver, [1])
    slots = driver.allocate(min(count for name, count in driver.config.capacity_tokens.items() if name != MAMBA))
    assert slots is not None, "EVICT-1: nothing is locked, all of the device can be had"
    found = backed_up(driver)
    assert found == {(1,)}, f"HOST-1: all of the device was wanted, so that 1 left it, copied is {found}"
    driver.free(slots)
