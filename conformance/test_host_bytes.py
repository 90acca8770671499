"""HOST-7, HOST-8: bytes stay equal over backups and loads, in every layer of every pool and sidecar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability, PageBytes
from hicache.testing.contract import clause
from hicache.testing.driving.contents import Read
from hicache.testing.driving.pools import component_of, rows, with_entry
from hicache.types import Slots, Tier, TransferKind

from .scenario import FORWARD, FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .snapshot_values import Pages

# HOST-7: bytes stay equal over backups and loads, in every layer of every pool, and in any slots.


PROMPTS = ((1, 2, 3), (1, 2, 8), (5, 6))
ROUNDS = 3

Place = tuple[str, Pages, int]
"""A pool, the prefix that ends with a page, and a layer."""


def pools(driver: Scenario) -> Iterator[tuple[str, str]]:
    """Each component with the pools that its slots address, sidecars included."""
    for pool, component in component_of(driver.config).items():
        if driver.adapter.layers(pool):
            yield component, pool


def bytes_on(driver: Scenario, tier: Tier) -> dict[Place, bytes]:
    """The bytes of everything that a tier caches, read from its pools."""
    adapter, is_device = driver.adapter, tier is Tier.DEVICE
    read, slots_of = (adapter.read, driver.device_slots) if is_device else (adapter.read_host, driver.host_slots)
    return {
        (pool, pages, layer): read(pool, rows(driver.config, pool, np.array(slots)), layer).tobytes()
        for component, pool in pools(driver)
        for pages, slots in slots_of(component).items()
        if len(with_entry(driver.config, pool, np.array([len(pages) - 1])))
        for layer in range(driver.adapter.layers(pool))
    }


def require_same(found: Mapping[Place, bytes], expected: Mapping[Place, bytes], when: str) -> None:
    """The bytes found equal the expected ones, and cover the same pools."""
    seen, known = ({pool for pool, _, _ in places} for places in (found, expected))
    assert seen == known, f"HOST-7: {when}: there was data of the pools {known}, now of {seen}"
    wrong = [place for place, data in found.items() if data != expected[place]]
    assert not wrong, f"HOST-7: {when}: other bytes than before at {wrong}"


def load_all(driver: Scenario, prompts: Sequence[Pages]) -> None:
    """Load prompts, and verify the state of each through a fork."""
    for pages in prompts:
        key = driver.key_of(pages)
        driver.verify_state(key, driver.load(key))


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT])
def test_a_host_copy_has_the_bytes_of_the_device(driver: Scenario) -> None:
    driver.put_on_both(*PROMPTS)
    on_device, on_host = bytes_on(driver, Tier.DEVICE), bytes_on(driver, Tier.HOST)
    common = {place: data for place, data in on_host.items() if place in on_device}
    require_same(common, on_device, "copied")
    assert all(any(data) for data in common.values()), "HOST-7: expected the compared bytes not to be all zero"


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_bytes_stay_equal_over_repeated_loads_to_other_slots(driver: Scenario) -> None:
    driver.put_on_both(*PROMPTS)
    before, places = bytes_on(driver, Tier.DEVICE), [driver.device_slots(FULL)]
    for number in range(1, ROUNDS + 1):
        driver.evict_all()
        mine = driver.fill_device(100 * number)
        in_the_way = number * driver.config.page_size
        driver.free(mine[in_the_way:])
        load_all(driver, PROMPTS[number % len(PROMPTS) :])
        load_all(driver, PROMPTS)
        require_same(bytes_on(driver, Tier.DEVICE), before, f"loaded {number} times")
        places.append(driver.device_slots(FULL))
        driver.free(mine[:in_the_way])
    assert all(place.keys() == places[0].keys() for place in places), f"HOST-4: each load brings all, got {places}"
    moved = [place for place in places if place != places[0]]
    assert moved, f"HOST-7: the scenario is about data that comes back to other slots, it was always at {places[0]}"


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_bytes_stay_equal_in_reused_host_slots(driver: Scenario) -> None:
    driver.put_on_both(*PROMPTS)
    before, places = bytes_on(driver, Tier.DEVICE), driver.host_slots(FULL)
    driver.evict_all()
    driver.evict_all_host()
    driver.put_on_host((20, 21, 22, 23), (30, 31))
    driver.evict_host(FULL, 1)
    driver.put_on_host(*reversed(PROMPTS))
    again = driver.host_slots(FULL)
    assert any(again[pages] != slots for pages, slots in places.items()), (
        "HOST-7: the scenario is about other host slots"
    )
    driver.free(driver.fill_device(100))
    load_all(driver, PROMPTS)
    found = {place: data for place, data in bytes_on(driver, Tier.DEVICE).items() if place in before}
    require_same(found, before, "the host's slots were others' before")


@clause("HOST-7", layouts=True, needs=[Capability.SNAPSHOT], each=(SWA, MAMBA))
def test_bytes_of_a_component_stay_equal_when_loaded_alone(driver: Scenario, component: str) -> None:
    """A component that is loaded alone has the bytes of the host."""
    driver.drop_on_device(component)
    lost = bytes_on(driver, Tier.HOST).keys() - bytes_on(driver, Tier.DEVICE).keys()
    load_all(driver, [TOMBSTONE])
    found = bytes_on(driver, Tier.DEVICE)
    came = {place: data for place, data in found.items() if place in lost}
    assert came, f"HOST-4: {component} of {TOMBSTONE} was loaded, and nothing of it is on the device"
    on_host = bytes_on(driver, Tier.HOST)
    wrong = [place for place, data in came.items() if data != on_host[place]]
    assert not wrong, f"HOST-7: {component} alone was loaded, other bytes than on the host at {wrong}"


# HOST-8: the entries of a sidecar pool are backed up and loaded with the slots that they follow.


PAGES = (1, 2)
STEPPED = [ExecutorKind.STEPPED]


def of_sidecars(driver: Scenario, read: Read, slots: Slots) -> list[PageBytes]:
    """What each layer of each sidecar has for some slots."""
    config = driver.config
    return [
        read(pool, rows(config, pool, slots), layer)
        for pool in config.sidecars
        for layer in range(driver.adapter.layers(pool))
    ]


def on_device(driver: Scenario, slots: Slots) -> list[PageBytes]:
    """What the sidecars hold at some slots of the device, layer by layer."""
    return of_sidecars(driver, driver.adapter.read, slots)


def on_host(driver: Scenario, slots: Slots) -> list[PageBytes]:
    """The same at some slots of the host."""
    return of_sidecars(driver, driver.adapter.read_host, slots)


def slots_of(found: dict[tuple[int, ...], tuple[int, ...]], pages: Sequence[int]) -> Slots:
    """The slots of a prompt, page by page."""
    return np.array([slot for end in range(1, len(pages) + 1) for slot in found[tuple(pages[:end])]], dtype=np.int64)


def same(left: list[PageBytes], right: list[PageBytes]) -> bool:
    """Whether two lists have the same bytes, and not only zeros."""
    return all(map(np.array_equal, left, right)) and all(one.any() for one in left)


@clause("HOST-8", "HOST-7", layouts=True, needs=[Capability.BYTES])
def test_a_copy_holds_the_entries_of_its_slots(driver: Scenario) -> None:
    driver.put_on_both(PAGES)
    above, below = slots_of(driver.device_slots(FULL), PAGES), slots_of(driver.host_slots(FULL), PAGES)
    entries, copied = on_device(driver, above), on_host(driver, below)
    assert same(entries, copied), f"HOST-8: a sidecar at device slots {above} is not that at host slots {below}"


@clause("HOST-8", "HOST-7", layouts=True, needs=[Capability.BYTES])
def test_a_load_restores_the_entries_in_any_slots(driver: Scenario) -> None:
    driver.put_on_both(PAGES)
    before = on_device(driver, slots_of(driver.device_slots(FULL), PAGES))
    driver.evict_all()
    held_by_others = driver.allocate(driver.config.page_size)
    assert held_by_others is not None, "EVICT-1: the device is free"
    found = driver.load(driver.key_of(PAGES))
    after = on_device(driver, found.device_indices)
    assert same(before, after), f"HOST-8: a sidecar at slots {found.device_indices} is not what left the device"
    driver.free(held_by_others)


@clause("HOST-8", "HOST-7", layouts=True, needs=[Capability.BYTES])
def test_entries_survive_repeated_evictions_and_loads(driver: Scenario) -> None:
    driver.put_on_both(PAGES)
    before = on_device(driver, slots_of(driver.device_slots(FULL), PAGES))
    for other in ([7, 8], [8, 7, 9], [9]):
        driver.evict_all()
        driver.load(driver.key_of(PAGES))
        driver.put_pages(other)
        driver.drain()
        after = on_device(driver, slots_of(driver.device_slots(FULL), PAGES))
        assert same(before, after), f"HOST-8: a sidecar of {PAGES} changed when {other} came"


@clause("HOST-8", needs=[Capability.BYTES], executors=STEPPED, write_policies=FORWARD)
def test_a_copy_and_its_sidecar_are_one_operation(driver: Scenario) -> None:
    driver.put_pages(PAGES)
    driver.match_prompt(PAGES)
    driver.step()
    copies = driver.transfer_views(TransferKind.BACKUP)
    copy = driver.pending_transfer(TransferKind.BACKUP)
    names = set().union(*(one.device for one in copies))
    assert names == set(driver.config.components), f"HOST-8: a sidecar has no slots of its own, moved are {names}"
    assert copy.parts == len(copies) == 1, f"HOST-8: one node is one operation, got {copy} of {len(copies)}"
    above, below = (one[FULL] for one in (copies[0].device, copies[0].host))
    driver.complete(copy.ticket)
    same_bytes = same(on_device(driver, above), on_host(driver, below))
    assert same_bytes, f"HOST-8: the transfer has ended, and a sidecar at host slots {below} is not that at {above}"


@clause("HOST-8", "FLOW-2", needs=[Capability.BYTES], executors=STEPPED, write_policies=FORWARD)
def test_no_copy_is_acknowledged_before_its_sidecar_arrived(driver: Scenario) -> None:
    driver.put_pages(PAGES)
    driver.match_prompt(PAGES)
    driver.step()
    copy, [operation] = driver.pending_transfer(TransferKind.BACKUP), driver.transfer_views(TransferKind.BACKUP)
    entries = on_device(driver, operation.device[FULL])
    for layers in range(1, copy.units + 1):
        driver.advance(copy.ticket)
        driver.step()
        has_arrived = same(entries, on_host(driver, operation.host[FULL]))
        is_resident = bool(driver.host_slots(FULL))
        assert has_arrived or not is_resident, f"HOST-8: {PAGES} is on the host after {layers} layers, a sidecar is not"
    assert is_resident, f"HOST-8: all {copy.units} layers were moved, and {PAGES} is not on the host"


@clause("HOST-8", "FLOW-2", needs=[Capability.BYTES], executors=STEPPED)
def test_no_load_is_acknowledged_before_its_sidecar_arrived(driver: Scenario) -> None:
    driver.put_on_both(PAGES)
    entries = on_device(driver, slots_of(driver.device_slots(FULL), PAGES))
    driver.evict_all()
    load = driver.start_load(PAGES)
    transfer = driver.pending_transfer(TransferKind.LOAD)
    for layers in range(1, transfer.units + 1):
        driver.advance(transfer.ticket)
        driver.step()
        has_arrived, is_resident = same(entries, on_device(driver, load.indices)), bool(driver.device_slots(FULL))
        assert has_arrived or not is_resident, f"HOST-8: {PAGES} is loaded after {layers} layers, a sidecar is not"
    assert is_resident, f"HOST-8: all {transfer.units} layers were moved, and {PAGES} is not on the device"
    driver.claim(load.ticket)


@clause("HOST-8", needs=[Capability.BYTES, Capability.COUNTERS], executors=STEPPED)
def test_the_bytes_of_a_sidecar_are_counted(driver: Scenario) -> None:
    driver.put_on_host(PAGES)
    load = driver.start_load(PAGES)
    expected = sum(driver.transfer_bytes(one) for one in driver.transfer_views(TransferKind.LOAD))
    driver.complete_all()
    found = driver.adapter.counters()
    assert found["bytes_loaded"] == expected, f"HOST-8: {expected} bytes were loaded, the counters say {found}"
    copied = found["bytes_backed_up"]
    assert copied >= expected, (
        f"HOST-8: at least the {expected} bytes that were loaded were copied before, not {copied}"
    )
    driver.claim(load.ticket)


@clause("HOST-8", "POOL-7", needs=[Capability.SIZES])
def test_a_sidecar_has_no_host_slots_of_its_own(driver: Scenario) -> None:
    driver.put_on_both(PAGES)
    named = [set(driver.free_host_slots()), set(driver.adapter.host_sizes()), set(driver.evict_host(FULL, 1).freed)]
    assert not any(names.intersection(driver.config.sidecars) for names in named), (
        f"HOST-8: the host allocates for a sidecar: {named}"
    )
