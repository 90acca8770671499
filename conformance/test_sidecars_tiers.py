"""HOST-8: the entries of a sidecar pool are backed up and loaded with the slots that they follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability, PageBytes
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import TransferView
from hicache.types import COMPONENT_POOL, Pool, Slots, TransferKind

from .scenario import FULL, evict_all, key_of, put, put_on_both, put_on_host
from .transfers import match_prompt, pending_transfer, start_load, transfer_views
from .tree_view import device_slots, free_host_slots, host_slots

INDEXER = Pool.INDEXER
PAGES = (1, 2)
STEPPED = [ExecutorKind.STEPPED]
FORWARD = [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE]


def on_device(driver: Driver, slots: Slots) -> list[PageBytes]:
    """What the indexer holds at some slots of the device, layer by layer."""
    return [driver.adapter.read(INDEXER, slots, layer) for layer in range(driver.adapter.layers(INDEXER))]


def on_host(driver: Driver, slots: Slots) -> list[PageBytes]:
    """The same at some slots of the host."""
    return [driver.adapter.read_host(INDEXER, slots, layer) for layer in range(driver.adapter.layers(INDEXER))]


def slots_of(found: dict[tuple[int, ...], tuple[int, ...]], pages: Sequence[int]) -> Slots:
    """The slots of a prompt, page by page."""
    return np.array([slot for end in range(1, len(pages) + 1) for slot in found[tuple(pages[:end])]], dtype=np.int64)


def same(left: list[PageBytes], right: list[PageBytes]) -> bool:
    """Whether two lists have the same bytes, and not only zeros."""
    return all(map(np.array_equal, left, right)) and all(one.any() for one in left)


def bytes_of(driver: Driver, moved: TransferView) -> int:
    """The bytes of a transfer over all layers and pools, sidecars included."""
    pools = {COMPONENT_POOL[name]: len(slots) for name, slots in moved.device.items()}
    pools[INDEXER] = pools.get(Pool.KV, 0)
    adapter = driver.adapter
    return sum(count * adapter.layers(pool) * adapter.slot_bytes(pool) for pool, count in pools.items())


@clause("HOST-8", "HOST-7", layouts=True, needs=[Capability.BYTES])
def test_a_copy_holds_the_entries_of_its_slots(driver: Driver) -> None:
    put_on_both(driver, PAGES)
    above, below = slots_of(device_slots(driver, FULL), PAGES), slots_of(host_slots(driver, FULL), PAGES)
    entries, copied = on_device(driver, above), on_host(driver, below)
    assert same(entries, copied), f"HOST-8: the indexer at device slots {above} is not that at host slots {below}"


@clause("HOST-8", "HOST-7", layouts=True, needs=[Capability.BYTES])
def test_a_load_restores_the_entries_in_any_slots(driver: Driver) -> None:
    put_on_both(driver, PAGES)
    before = on_device(driver, slots_of(device_slots(driver, FULL), PAGES))
    evict_all(driver)
    held_by_others = driver.allocate(driver.config.page_size)
    assert held_by_others is not None, "EVICT-1: the device is free"
    found = driver.load(key_of(driver, PAGES))
    after = on_device(driver, found.device_indices)
    assert same(before, after), f"HOST-8: the indexer at slots {found.device_indices} is not what left the device"
    driver.free(held_by_others)


@clause("HOST-8", "HOST-7", layouts=True, needs=[Capability.BYTES])
def test_entries_survive_repeated_evictions_and_loads(driver: Driver) -> None:
    put_on_both(driver, PAGES)
    before = on_device(driver, slots_of(device_slots(driver, FULL), PAGES))
    for other in ([7, 8], [8, 7, 9], [9]):
        evict_all(driver)
        driver.load(key_of(driver, PAGES))
        put(driver, other)
        driver.drain()
        after = on_device(driver, slots_of(device_slots(driver, FULL), PAGES))
        assert same(before, after), f"HOST-8: the indexer of {PAGES} changed when {other} came"


@clause("HOST-8", needs=[Capability.BYTES], executors=STEPPED, write_policies=FORWARD)
def test_a_copy_and_its_sidecar_are_one_operation(driver: Driver) -> None:
    put(driver, PAGES)
    match_prompt(driver, PAGES)
    driver.step()
    copies = transfer_views(driver, TransferKind.BACKUP)
    copy = pending_transfer(driver, TransferKind.BACKUP)
    names = set().union(*(one.device for one in copies))
    assert names == set(driver.config.components), f"HOST-8: a sidecar has no slots of its own, moved are {names}"
    assert copy.parts == len(copies) == 1, f"HOST-8: one node is one operation, got {copy} of {len(copies)}"
    above, below = (one[FULL] for one in (copies[0].device, copies[0].host))
    driver.complete(copy.ticket)
    same_bytes = same(on_device(driver, above), on_host(driver, below))
    assert same_bytes, f"HOST-8: the transfer has ended, and the indexer at host slots {below} is not that at {above}"


@clause("HOST-8", "FLOW-2", needs=[Capability.BYTES], executors=STEPPED, write_policies=FORWARD)
def test_no_copy_is_acknowledged_before_its_sidecar_arrived(driver: Driver) -> None:
    put(driver, PAGES)
    match_prompt(driver, PAGES)
    driver.step()
    copy, [operation] = pending_transfer(driver, TransferKind.BACKUP), transfer_views(driver, TransferKind.BACKUP)
    entries = on_device(driver, operation.device[FULL])
    for layers in range(1, copy.layers + 1):
        driver.advance(copy.ticket)
        driver.step()
        has_arrived = same(entries, on_host(driver, operation.host[FULL]))
        is_resident = bool(host_slots(driver, FULL))
        assert has_arrived or not is_resident, (
            f"HOST-8: {PAGES} is on the host after {layers} layers, its indexer is not"
        )
    assert is_resident, f"HOST-8: all {copy.layers} layers were moved, and {PAGES} is not on the host"


@clause("HOST-8", "FLOW-2", needs=[Capability.BYTES], executors=STEPPED)
def test_no_load_is_acknowledged_before_its_sidecar_arrived(driver: Driver) -> None:
    put_on_both(driver, PAGES)
    entries = on_device(driver, slots_of(device_slots(driver, FULL), PAGES))
    evict_all(driver)
    load = start_load(driver, PAGES)
    transfer = pending_transfer(driver, TransferKind.LOAD)
    for layers in range(1, transfer.layers + 1):
        driver.advance(transfer.ticket)
        driver.step()
        has_arrived, is_resident = same(entries, on_device(driver, load.indices)), bool(device_slots(driver, FULL))
        assert has_arrived or not is_resident, f"HOST-8: {PAGES} is loaded after {layers} layers, its indexer is not"
    assert is_resident, f"HOST-8: all {transfer.layers} layers were moved, and {PAGES} is not on the device"
    driver.claim(load.ticket)


@clause("HOST-8", needs=[Capability.BYTES, Capability.COUNTERS], executors=STEPPED)
def test_the_bytes_of_a_sidecar_are_counted(driver: Driver) -> None:
    put_on_host(driver, PAGES)
    load = start_load(driver, PAGES)
    expected = sum(bytes_of(driver, one) for one in transfer_views(driver, TransferKind.LOAD))
    driver.complete_all()
    found = driver.adapter.counters()
    assert found["bytes_loaded"] == expected, f"HOST-8: {expected} bytes were loaded, the counters say {found}"
    copied = found["bytes_backed_up"]
    assert copied >= expected, (
        f"HOST-8: at least the {expected} bytes that were loaded were copied before, not {copied}"
    )
    driver.claim(load.ticket)


@clause("HOST-8", "POOL-7", needs=[Capability.SIZES])
def test_a_sidecar_has_no_host_slots_of_its_own(driver: Driver) -> None:
    put_on_both(driver, PAGES)
    named = [set(free_host_slots(driver)), set(driver.adapter.host_sizes()), set(driver.evict_host(FULL, 1).freed)]
    assert not any(INDEXER.value in names for names in named), f"HOST-8: the host allocates for the indexer: {named}"
