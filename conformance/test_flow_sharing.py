"""FLOW-6: loads of one chain that overlap share their work; nothing is loaded twice."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind, TransferPhase

from .host_trees import held_below
from .quiet import require_quiet
from .reach import reach
from .residences import put_on_host
from .stages import STAGES, Stage
from .trees import held
from .under_way import free_on_device, operations, pending, queue_load
from .verbs import FULL, key_of
from .volume import moved, volume_on_device

SHORT = (1, 2)
LONG = (1, 2, 3, 4)


@clause("FLOW-6", needs=[Capability.COUNTERS], page_sizes=[16])
@STAGES
def test_two_loads_of_one_prompt_move_it_once(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, LONG)
    first = queue_load(driver, LONG)
    stage(driver, TransferKind.LOAD)
    under_way, free = operations(driver, TransferKind.LOAD), free_on_device(driver)
    second = queue_load(driver, LONG)
    added = len(operations(driver, TransferKind.LOAD)) - len(under_way)
    assert added == 0, f"FLOW-6: all of {LONG} is on its way, and {added} operations more were queued"
    assert free_on_device(driver) == free, f"FLOW-6: the second took slots: {free} became {free_on_device(driver)}"
    same = first.indices.tolist() == second.indices.tolist()
    assert same, f"FLOW-6: one prompt comes to one place, not to {first.indices} and {second.indices}"
    driver.drain()
    delivered = [driver.claim(load.ticket) for load in (first, second)]
    assert all(slots is not None for slots in delivered), f"FLOW-6: both were delivered, got {delivered}"
    loaded, there = moved(driver, TransferKind.LOAD), volume_on_device(driver)
    assert loaded == there, f"FLOW-6: {there} bytes are on the device, and {loaded} were copied there"


@clause("FLOW-6", needs=[Capability.COUNTERS], page_sizes=[16])
@STAGES
@pytest.mark.parametrize("order", [(SHORT, LONG), (LONG, SHORT)], ids=["short first", "long first"])
def test_two_loads_of_a_prompt_and_its_beginning_move_each_page_once(
    driver: Driver, stage: Stage, order: tuple[tuple[int, ...], ...]
) -> None:
    put_on_host(driver, SHORT, LONG)
    first = queue_load(driver, order[0])
    stage(driver, TransferKind.LOAD)
    second = queue_load(driver, order[1])
    shared = len(SHORT) * driver.config.page_size
    same = first.indices[:shared].tolist() == second.indices[:shared].tolist()
    assert same, f"FLOW-6: {SHORT} comes to one place, not to {first.indices} and {second.indices}"
    driver.drain()
    for load in (first, second):
        assert driver.claim(load.ticket) is not None, "FLOW-6: both were delivered"
    loaded, there = moved(driver, TransferKind.LOAD), volume_on_device(driver)
    assert loaded == there, f"FLOW-6: {there} bytes are on the device, and {loaded} were copied there"
    for pages in order:
        assert reach(driver, pages) == (len(pages), 0), f"FLOW-10: {pages} was loaded, got {reach(driver, pages)}"
    require_quiet(driver)


@clause("FLOW-6", "FLOW-7", page_sizes=[16])
@STAGES
@pytest.mark.parametrize("leaver", [0, 1], ids=["the first", "the second"])
def test_who_waits_still_gets_it_when_another_leaves(driver: Driver, stage: Stage, leaver: int) -> None:
    put_on_host(driver, SHORT, LONG)
    loads = [queue_load(driver, LONG), queue_load(driver, LONG)]
    stage(driver, TransferKind.LOAD)
    driver.abandon(loads.pop(leaver).ticket)
    driver.drain()
    delivered = driver.claim(loads[0].ticket)
    assert delivered is not None, "FLOW-6: somebody else gave it up, and it went well"
    assert delivered.tolist() == loads[0].indices.tolist(), f"FLOW-6: asked {loads[0].indices}, got {delivered}"
    assert reach(driver, LONG) == (4, 0), f"FLOW-10: it is on the device, got {reach(driver, LONG)}"
    require_quiet(driver)


@clause("FLOW-6", "FLOW-7", "FLOW-4", page_sizes=[16])
@STAGES
def test_what_nobody_waits_for_any_more_ends_and_leaves_no_pin(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, LONG)
    loads = [queue_load(driver, LONG), queue_load(driver, LONG)]
    stage(driver, TransferKind.LOAD)
    for load in loads:
        driver.abandon(load.ticket)
    driver.drain()
    require_quiet(driver)
    found = sum(reach(driver, LONG))
    assert found == 4, f"FLOW-4: it is on one tier or the other, {found} pages of it are found"


@clause("FLOW-6", "FLOW-3", page_sizes=[16])
def test_when_what_is_shared_fails_it_fails_for_all_who_wait(driver: Driver) -> None:
    put_on_host(driver, LONG)
    loads = [queue_load(driver, LONG), queue_load(driver, LONG)]
    driver.step()
    driver.fail(pending(driver, TransferKind.LOAD).ticket, parts_done=0)
    driver.step()
    phases = [driver.load_phase(load.ticket) for load in loads]
    assert phases == 2 * [TransferPhase.FAILED], f"FLOW-6: one transfer brought both, and failed: {phases}"
    for load in loads:
        driver.claim(load.ticket)
    require_quiet(driver)
    assert reach(driver, LONG) == (0, 4), f"FLOW-3: it is on the host still, got {reach(driver, LONG)}"


@clause("FLOW-6", "FLOW-3", page_sizes=[16])
def test_the_longer_of_two_loads_may_fail_alone(driver: Driver) -> None:
    put_on_host(driver, SHORT, LONG)
    short = queue_load(driver, SHORT)
    driver.step()
    long = queue_load(driver, LONG)
    driver.step()
    first, second = driver.pending()
    driver.fail(second.ticket, parts_done=0)
    driver.complete(first.ticket)
    driver.step()
    phases = [driver.load_phase(load.ticket) for load in (short, long)]
    assert phases == [TransferPhase.DONE, TransferPhase.FAILED], f"FLOW-6: only the beginning came: {phases}"
    assert driver.claim(short.ticket) is not None, "FLOW-10: the beginning came"
    assert driver.claim(long.ticket) is None, "FLOW-3: the rest did not come"
    found = reach(driver, SHORT), reach(driver, LONG)
    assert found == ((2, 0), (2, 2)), f"FLOW-3: two pages came, two are on the host still, got {found}"
    require_quiet(driver)


@clause("FLOW-6", page_sizes=[16])
def test_what_has_come_is_not_loaded_again(driver: Driver) -> None:
    put_on_host(driver, LONG)
    load = queue_load(driver, LONG)
    driver.drain()
    key = key_of(driver, LONG)
    assert driver.load_back(key, driver.match(key)) is None, "FLOW-6: all of it is on the device, though unclaimed"
    driver.claim(load.ticket)
    assert held(driver, FULL).keys() == held_below(driver, FULL).keys(), "FLOW-6: each page is on both tiers once"
