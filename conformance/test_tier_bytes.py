"""HOST-7: bytes stay equal over backups and loads, in every layer of every pool, and in any slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool, Slots, Tier

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    allocate_all,
    drop_on_device,
    evict_all,
    evict_host,
    key_of,
    put_on_both,
    put_on_host,
)
from .transfers import POOLS
from .tree_view import Pages, device_slots, host_slots

PROMPTS = ((1, 2, 3), (1, 2, 8), (5, 6))
ROUNDS = 3

Place = tuple[Pool, Pages, int]
"""A pool, the prefix that ends with a page, and a layer."""


def pools(driver: Driver) -> Iterator[tuple[str, Pool]]:
    """Each component with the pools that its slots address, sidecars included."""
    for component in driver.config.components:
        yield from ((component, pool) for pool in POOLS[component] if driver.adapter.layers(pool))


def bytes_on(driver: Driver, tier: Tier) -> dict[Place, bytes]:
    """The bytes of everything that a tier caches, read from its pools."""
    read, holdings = (
        (driver.adapter.read, device_slots) if tier is Tier.DEVICE else (driver.adapter.read_host, host_slots)
    )
    return {
        (pool, pages, layer): read(pool, np.array(slots, dtype=np.int64), layer).tobytes()
        for component, pool in pools(driver)
        for pages, slots in holdings(driver, component).items()
        for layer in range(driver.adapter.layers(pool))
    }


def require_same(found: Mapping[Place, bytes], expected: Mapping[Place, bytes], when: str) -> None:
    """The bytes found equal the expected ones, and cover the same pools."""
    seen, known = ({pool for pool, _, _ in places} for places in (found, expected))
    assert seen == known, f"HOST-7: {when}: there was data of the pools {known}, now of {seen}"
    wrong = [place for place, data in found.items() if data != expected[place]]
    assert not wrong, f"HOST-7: {when}: other bytes than before at {wrong}"


def fill(driver: Driver, number: int) -> Slots:
    """Allocate every slot that the device can give, and write other data there."""
    mine = allocate_all(driver)
    count = len(mine) // driver.config.page_size
    driver.write(key_of(driver, range(100 * number, 100 * number + count)), mine, 0)
    return mine


def load_all(driver: Driver, prompts: Sequence[Pages]) -> None:
    """Load prompts, and verify the state of each through a fork."""
    for pages in prompts:
        key = key_of(driver, pages)
        driver.verify_state(key, driver.load(key))


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT])
def test_a_host_copy_has_the_bytes_of_the_device(driver: Driver) -> None:
    put_on_both(driver, *PROMPTS)
    on_device, on_host = bytes_on(driver, Tier.DEVICE), bytes_on(driver, Tier.HOST)
    common = {place: data for place, data in on_host.items() if place in on_device}
    require_same(common, on_device, "copied")
    assert all(any(data) for data in common.values()), "HOST-7: expected the compared bytes not to be all zero"


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_bytes_stay_equal_over_repeated_loads_to_other_slots(driver: Driver) -> None:
    put_on_both(driver, *PROMPTS)
    before, places = bytes_on(driver, Tier.DEVICE), [device_slots(driver, FULL)]
    for number in range(1, ROUNDS + 1):
        evict_all(driver)
        mine = fill(driver, number)
        in_the_way = number * driver.config.page_size
        driver.free(mine[in_the_way:])
        load_all(driver, PROMPTS[number % len(PROMPTS) :])
        load_all(driver, PROMPTS)
        require_same(bytes_on(driver, Tier.DEVICE), before, f"loaded {number} times")
        places.append(device_slots(driver, FULL))
        driver.free(mine[:in_the_way])
    assert all(place.keys() == places[0].keys() for place in places), f"HOST-4: each load brings all, got {places}"
    moved = [place for place in places if place != places[0]]
    assert moved, f"HOST-7: the scenario is about data that comes back to other slots, it was always at {places[0]}"


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_bytes_stay_equal_in_reused_host_slots(driver: Driver) -> None:
    put_on_both(driver, *PROMPTS)
    before, places = bytes_on(driver, Tier.DEVICE), host_slots(driver, FULL)
    evict_all(driver)
    evict_host(driver)
    put_on_host(driver, (20, 21, 22, 23), (30, 31))
    driver.evict_host(FULL, 1)
    put_on_host(driver, *reversed(PROMPTS))
    again = host_slots(driver, FULL)
    assert any(again[pages] != slots for pages, slots in places.items()), (
        "HOST-7: the scenario is about other host slots"
    )
    driver.free(fill(driver, 1))
    load_all(driver, PROMPTS)
    found = {place: data for place, data in bytes_on(driver, Tier.DEVICE).items() if place in before}
    require_same(found, before, "the host's slots were others' before")


def alone(driver: Driver, component: str) -> None:
    """A component that is loaded alone has the bytes of the host."""
    drop_on_device(driver, component)
    lost = bytes_on(driver, Tier.HOST).keys() - bytes_on(driver, Tier.DEVICE).keys()
    load_all(driver, [TOMBSTONE])
    found = bytes_on(driver, Tier.DEVICE)
    came = {place: data for place, data in found.items() if place in lost}
    assert came, f"HOST-4: {component} of {TOMBSTONE} was loaded, and nothing of it is on the device"
    on_host = bytes_on(driver, Tier.HOST)
    wrong = [place for place, data in came.items() if data != on_host[place]]
    assert not wrong, f"HOST-7: {component} alone was loaded, other bytes than on the host at {wrong}"


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT], components=(SWA,))
def test_swa_bytes_stay_equal_when_loaded_alone(driver: Driver) -> None:
    alone(driver, SWA)


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT], components=(MAMBA,))
def test_a_state_stays_equal_when_loaded_alone(driver: Driver) -> None:
    alone(driver, MAMBA)
