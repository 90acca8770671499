"""HOST-5: loads below the threshold, above the quota, or without room are refused, and take nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind, TransferPhase

from .residency_cases import Residency, build_residency, prompt_pages
from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TierHits,
    best_match,
    host_config,
    host_variant,
    key_of,
    leave_only,
    lock,
    put,
    put_on_host,
    tier_hits,
    unit,
    window_pages,
    window_tokens,
)
from .transfers import slots_under_way
from .tree_view import device_ownership, free_host_slots, host_locks, host_slots

LOOKING = (Capability.SNAPSHOT, Capability.SIZES)
WRITE_THROUGH = (WritePolicy.WRITE_THROUGH,)


def require_refused(driver: Driver, pages: Sequence[int], why: str, quota: int | None = None) -> None:
    """A load of a prompt with data on the host alone is refused, and changes nothing."""
    key = key_of(driver, pages)
    found = driver.match(key, chunked=True)
    before = tier_ownership(driver)
    load = driver.load_back(key, found, quota=quota)
    assert load is None, f"HOST-5: {why}, and {len(load.indices)} slots are loaded"
    assert tier_ownership(driver) == before, f"HOST-5: {why}: a refused load changed {before}"


def require_loaded(driver: Driver, pages: Sequence[int], quota: int | None = None) -> None:
    """A load of a prompt is granted, and delivers."""
    key = key_of(driver, pages)
    load = driver.load_back(key, driver.match(key, chunked=True), quota=quota)
    assert load is not None, f"HOST-5: {pages} is on the host, there is room and no reason, yet it is not loaded"
    driver.drain()
    assert driver.load_phase(load.ticket) is TransferPhase.DONE, "FLOW-10: nothing failed"
    driver.claim(load.ticket)
    found = tier_hits(driver, pages)
    assert found == TierHits(len(pages), 0), f"HOST-4: {pages} was loaded, found is {found}"


@clause("HOST-5", needs=LOOKING, load_back_threshold=True)
def test_a_load_of_fewer_tokens_than_the_threshold_is_refused(driver: Driver) -> None:
    threshold = host_config(driver.config).load_back_threshold_tokens // driver.config.page_size
    few, enough = list(range(1, threshold)), list(range(11, 11 + threshold))
    put_on_host(driver, few, enough)
    require_refused(driver, few, f"{len(few)} pages are too few for a threshold of {threshold}")
    require_loaded(driver, enough)


@clause("HOST-5", needs=LOOKING, load_back_threshold=True)
def test_the_threshold_counts_only_the_tokens_to_load(driver: Driver) -> None:
    threshold = host_config(driver.config).load_back_threshold_tokens // driver.config.page_size
    parent = list(range(1, threshold + 1))
    few, enough = [*parent, 21], [*parent, *range(31, 31 + threshold)]
    put_on_host(driver, parent, few, enough)
    require_loaded(driver, parent)
    require_refused(driver, few, f"one page past {parent} is less than a threshold of {threshold}")
    require_loaded(driver, enough)


@clause("HOST-5", needs=LOOKING, load_back_threshold=True)
def test_the_threshold_counts_several_nodes_together(driver: Driver) -> None:
    threshold = host_config(driver.config).load_back_threshold_tokens // driver.config.page_size
    pages = list(range(1, threshold + 1))
    put_on_host(driver, *(pages[:count] for count in range(1, threshold + 1)))
    require_loaded(driver, pages)


def require_loaded_alone(driver: Driver, quota: int | None) -> None:
    """A load without FULL data is granted, whatever the threshold and the quota."""
    with host_variant(driver, sliding_window_size=window_tokens(driver.config, 2)) as two_tiers:
        for residency in WITHOUT_FULL[driver.config.components]:
            build_residency(two_tiers, residency)
            require_loaded(two_tiers, prompt_pages(residency), quota)
            two_tiers.reset()


WITHOUT_FULL: Mapping[tuple[str, ...], Sequence[Residency]] = {
    (FULL, SWA): [("BH",), ("BB", "BH")],
    (FULL, MAMBA): [("BH",), ("BB", "BH")],
    (FULL, SWA, MAMBA): [("BHH",), ("BBB", "BHH"), ("BBB", "BBH")],
}
"""Residencies in which the device lacks no FULL data."""


@clause("HOST-5", needs=LOOKING, components=(SWA, MAMBA), load_back_threshold=True)
def test_the_threshold_does_not_apply_to_a_load_without_full_data(driver: Driver) -> None:
    require_loaded_alone(driver, quota=None)


@clause("HOST-5", needs=LOOKING, components=(SWA,), write_policies=WRITE_THROUGH)
def test_a_window_that_is_loaded_alone_needs_no_quota(driver: Driver) -> None:
    require_loaded_alone(driver, quota=0)


@clause("HOST-5", needs=LOOKING, components=(MAMBA,), write_policies=WRITE_THROUGH)
def test_a_state_that_is_loaded_alone_needs_no_quota(driver: Driver) -> None:
    require_loaded_alone(driver, quota=0)


@clause("HOST-5", needs=LOOKING)
def test_a_load_of_more_tokens_than_the_quota_is_refused(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [1, 2, 3, 4, 5])
    for quota in (0, 1, 5 * driver.config.page_size - 1):
        require_refused(driver, [1, 2, 3, 4, 5], f"five pages are more than a quota of {quota} tokens", quota)
    require_loaded(driver, [1, 2], 2 * driver.config.page_size)
    most = 3 * driver.config.page_size
    require_refused(driver, [1, 2, 3, 4, 5], f"three pages are left, more than a quota of {most - 1}", most - 1)
    require_loaded(driver, [1, 2, 3, 4, 5], most)


@clause("HOST-5", needs=LOOKING)
def test_a_load_for_which_full_slots_are_short_is_refused(driver: Driver) -> None:
    require_room_for_all_or_nothing(driver, FULL, 3)


@clause("HOST-5", needs=LOOKING, components=(SWA,))
def test_a_load_for_which_swa_slots_are_short_is_refused(driver: Driver) -> None:
    require_room_for_all_or_nothing(driver, SWA, min(3, window_pages(driver.config)))


@clause("HOST-5", needs=LOOKING, components=(MAMBA,))
def test_a_load_for_which_a_state_is_short_is_refused(driver: Driver) -> None:
    require_room_for_all_or_nothing(driver, MAMBA, 1)


def require_room_for_all_or_nothing(driver: Driver, component: str, need: int) -> None:
    """A load of three pages is refused with one page or state of a component too few, and granted with enough."""
    put_on_host(driver, [1, 2, 3])
    with leave_only(driver, component, need - 1):
        free = {name: sizes.free // unit(driver, name) for name, sizes in driver.adapter.sizes().items()}
        rest = {name: count for name, count in free.items() if name != component and count < 3}
        assert (free[component], rest) == (need - 1, {}), (
            f"{component} alone is short in this scenario, free are {free}"
        )
        require_refused(driver, [1, 2, 3], f"{need} pages of {component} are needed, free are {free}")
    with leave_only(driver, component, need):
        require_loaded(driver, [1, 2, 3])


@clause("HOST-5", "EVICT-1", needs=LOOKING)
def test_a_load_evicts_other_nodes(driver: Driver) -> None:
    put_on_host(driver, [1, 2, 3])
    receipt = driver.lock_host(best_match(driver, [1, 2, 3]))
    for first in (20, 30, 40):
        put(driver, range(first, first + 8))
    free = min(sizes.free // unit(driver, name) for name, sizes in driver.adapter.sizes().items() if name != MAMBA)
    assert free < 3, f"there is no room for three pages in this scenario, free are {free}"
    require_loaded(driver, [1, 2, 3])
    driver.unlock_host(receipt)


@clause("HOST-5", "EVICT-1", needs=LOOKING, components=(MAMBA,))
def test_a_load_evicts_another_state(driver: Driver) -> None:
    put_on_host(driver, [1, 2, 3])
    receipt = driver.lock_host(best_match(driver, [1, 2, 3]))
    for page in range(20, 20 + driver.config.capacity_tokens[MAMBA]):
        put(driver, [page])
    free = driver.adapter.sizes()[MAMBA].free
    assert free == 0, f"there is no state left in this scenario, free are {free}"
    require_loaded(driver, [1, 2, 3])
    driver.unlock_host(receipt)


@clause("HOST-5", "HOST-4", needs=LOOKING)
def test_a_load_does_not_evict_its_anchor(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [1, 2, 3, 4])
    require_loaded(driver, [1, 2])
    receipt = lock(driver, [1, 2])
    with leave_only(driver, FULL, 1):
        driver.unlock(receipt)
        require_refused(driver, [1, 2, 3, 4], "two pages are needed, one is free, and the others are the anchor's")
    require_loaded(driver, [1, 2, 3, 4])


@clause("HOST-5", needs=LOOKING, components=(MAMBA,))
def test_a_hit_that_lost_its_state_is_not_loaded(driver: Driver) -> None:
    require_not_loaded_without(driver, MAMBA)


@clause("HOST-5", needs=LOOKING, components=(SWA,))
def test_a_hit_that_lost_its_window_is_not_loaded(driver: Driver) -> None:
    require_not_loaded_without(driver, SWA)


def require_not_loaded_without(driver: Driver, component: str) -> None:
    """A load is refused if the host lost a component of the match in between."""
    with host_variant(driver, sliding_window_size=window_tokens(driver.config, 2)) as two_tiers:
        put_on_host(two_tiers, [1, 2], [1, 2, 3, 4])
        hit = best_match(two_tiers, [1, 2])
        receipt = two_tiers.lock_host(best_match(two_tiers, [1, 2, 3, 4]))
        two_tiers.evict_host(component, host_config(two_tiers.config).capacity_tokens[component])
        lost = (1, 2) not in host_slots(two_tiers, component)
        assert lost, f"EVICT-8: {component} of (1, 2) is not locked, and was to leave the host"
        before = tier_ownership(two_tiers)
        load = two_tiers.adapter.load_back(hit, quota=None)
        assert load is None, f"HOST-5: {component} of (1, 2) is on no tier, yet it is loaded"
        assert tier_ownership(two_tiers) == before, f"HOST-5: a refused load changed {before}"
        two_tiers.unlock_host(receipt)


def tier_ownership(driver: Driver) -> tuple[object, ...]:
    """What is cached, locked and free on both tiers, and the slots of transfers under way."""
    on_host = {component: host_slots(driver, component) for component in driver.config.components}
    moving = [slots_under_way(driver, kind) for kind in TransferKind]
    on_device = device_ownership(driver.snapshot(), driver.config)
    return *on_device, on_host, host_locks(driver), free_host_slots(driver), moving
