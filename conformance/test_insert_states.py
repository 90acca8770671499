"""INS-5, INS-7: when the tree adopts a state, and when the caller keeps it."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import MAMBA, SWA, hit_pages, insert_fresh, key_of, put
from .tree_view import device_slots, free_slots, residency


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_new_leaf_takes_the_state(driver: Driver) -> None:
    own = insert_fresh(driver, [1, 2])
    assert own.result.state_adopted, f"INS-7: a new leaf has no state yet, got {own.result}"
    states = device_slots(driver, MAMBA)
    assert states == {(1, 2): (own.state,)}, f"INS-7: expected the caller's state {own.state} at (1, 2), got {states}"


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_node_with_a_state_keeps_it(driver: Driver) -> None:
    first = insert_fresh(driver, [1, 2])
    again = insert_fresh(driver, [1, 2])
    assert not again.result.state_adopted, f"INS-7: the node had a state already, got {again.result}"
    states = device_slots(driver, MAMBA)
    assert states == {(1, 2): (first.state,)}, f"INS-7: expected the first state {first.state}, got {states}"
    free = free_slots(driver.snapshot())[MAMBA]
    assert again.state in free, f"INS-7: the caller freed its own state {again.state}, free are {free}"


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_node_without_a_state_takes_one(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    assert hit_pages(driver, [1, 2]) == 0, "INS-7: there is no state after page 2 yet"
    own = insert_fresh(driver, [1, 2])
    assert own.result.state_adopted, f"INS-7: no node had a state after page 2, got {own.result}"
    assert device_slots(driver, MAMBA)[1, 2] == (own.state,), f"INS-7: expected state {own.state} after page 2"
    driver.verify_state(key_of(driver, [1, 2]), driver.match(key_of(driver, [1, 2])))


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_without_a_state_nothing_is_adopted(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    for pages in ([1, 2], [1, 2, 3], [7]):
        result = insert_fresh(driver, pages, with_state=False).result
        assert not result.state_adopted, f"INS-7: {pages} came without a state, got {result}"
    assert device_slots(driver, MAMBA).keys() == {(1, 2, 3)}, (
        f"INS-7: one state was given, {device_slots(driver, MAMBA)} are held"
    )


@clause("INS-7", "EVICT-5", components=(SWA, MAMBA))
def test_a_state_is_not_taken_where_a_higher_component_is_missing(driver: Driver) -> None:
    put(driver, [1, 2, 3], passed=2)
    own = insert_fresh(driver, [1, 2], passed=2)
    assert not own.result.state_adopted, (
        f"INS-7: page 2 has no SWA data, expected no state to be adopted, got {own.result}"
    )
    assert (1, 2) not in device_slots(driver, MAMBA), "EVICT-5: a state without SWA data below it"


@clause("INS-5", needs=[Capability.SNAPSHOT], components=(MAMBA,))
@pytest.mark.parametrize("present", [[], [1]], ids=["nothing cached", "a prefix cached"])
def test_a_leaf_without_a_state_is_not_created(driver: Driver, present: list[int]) -> None:
    if present:
        put(driver, present)
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    result = insert_fresh(driver, [1, 2], with_state=False).result
    length = len(present) * driver.config.page_size
    lengths = (result.prefix_length, result.accepted_length)
    assert lengths == (length, length), f"INS-5: expected {length} present and accepted, got {lengths}"
    assert residency(driver.snapshot(), driver.config) == before, "INS-5: a leaf without a state was created"
    assert free_slots(driver.snapshot()) == free, "INS-5: the slots of the refused leaf are not free again"


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_state_is_valid_only_at_its_own_end(driver: Driver) -> None:
    put(driver, [1, 2, 3, 4])
    for count in range(1, 4):
        driver.match(key_of(driver, [1, 2, 3, 4][:count]))
    hits = [hit_pages(driver, [1, 2, 3, 4][:count]) for count in range(1, 5)]
    assert hits == [0, 0, 0, 4], f"INS-7: the one state lies after page 4, so hits must be [0, 0, 0, 4], got {hits}"
