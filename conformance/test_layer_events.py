"""HOST-6, HOST-9: the layers of a load become ready one by one, in every pool of the stack, and never too early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import COMPONENT_POOL, Handle, LoadBack, Pool, TransferKind, TransferPhase

from .scenario import put_on_host
from .transfers import pending_transfer, queue_load, start_load

PAGES = (1, 2)
OTHER = (7, 8)


def stack(driver: Driver) -> dict[Pool, int]:
    """The number of layers of every pool that a prompt uses."""
    pools = [*(COMPONENT_POOL[name] for name in driver.config.components), *map(Pool, driver.config.sidecars)]
    return {pool: driver.adapter.layers(pool) for pool in pools}


def ready(driver: Driver, ticket: Handle) -> dict[Pool, list[int]]:
    """The ready layers of each pool, after their bytes were read and compared."""
    driver.read_ready_layers(ticket)
    return {
        pool: [layer for layer in range(layers) if driver.layer_ready(ticket, pool, layer)]
        for pool, layers in stack(driver).items()
    }


def counted(found: Mapping[Pool, Sequence[int]]) -> int:
    """The total number of layers."""
    return sum(map(len, found.values()))


def complete(driver: Driver) -> dict[Pool, list[int]]:
    """All layers of the stack."""
    return {pool: list(range(layers)) for pool, layers in stack(driver).items()}


def take(driver: Driver, load: LoadBack) -> None:
    """Drain, and claim a load."""
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed, and nothing was delivered"


@clause("HOST-6")
def test_no_layer_is_ready_before_the_load_has_started(driver: Driver) -> None:
    put_on_host(driver, PAGES)
    load = queue_load(driver, PAGES)
    assert not counted(ready(driver, load.ticket)), f"HOST-6: it is queued, and ready is {ready(driver, load.ticket)}"
    driver.step()
    assert not counted(ready(driver, load.ticket)), f"HOST-6: nothing moved, and ready is {ready(driver, load.ticket)}"
    take(driver, load)


@clause("HOST-6", "HOST-9", layouts=True)
def test_each_layer_is_ready_when_it_has_moved(driver: Driver) -> None:
    put_on_host(driver, PAGES)
    load = start_load(driver, PAGES)
    transfer = pending_transfer(driver, TransferKind.LOAD)
    counts = [counted(ready(driver, load.ticket))]
    for _ in range(transfer.layers):
        driver.advance(transfer.ticket)
        counts.append(counted(ready(driver, load.ticket)))
    more = [after > before for before, after in pairwise(counts)]
    assert all(more), f"HOST-6: each layer that arrives may be read at once, readable were {counts}"
    driver.step()
    take(driver, load)


@clause("HOST-9", "HOST-6", layouts=True)
def test_the_last_event_comes_with_the_last_layer_of_every_pool(driver: Driver) -> None:
    put_on_host(driver, PAGES)
    load = start_load(driver, PAGES)
    transfer = pending_transfer(driver, TransferKind.LOAD)
    for layer in range(transfer.layers):
        found = ready(driver, load.ticket)
        assert found != complete(driver), f"HOST-9: {layer} of {transfer.layers} layers arrived, ready is all: {found}"
        driver.advance(transfer.ticket)
    found, expected = ready(driver, load.ticket), complete(driver)
    assert found == expected, f"HOST-9: all layers arrived, {expected} may be read, ready is {found}"
    take(driver, load)


@clause("HOST-9")
def test_the_events_cover_each_pool_of_the_stack(driver: Driver) -> None:
    put_on_host(driver, PAGES)
    load = start_load(driver, PAGES)
    transfer = pending_transfer(driver, TransferKind.LOAD)
    needed = max(stack(driver).values())
    assert transfer.layers >= needed, f"HOST-9: the deepest pool has {needed} layers, the transfer {transfer.layers}"
    waited = dict.fromkeys(stack(driver), 0)
    for _ in range(transfer.layers):
        for pool, layers in ready(driver, load.ticket).items():
            waited[pool] += len(layers) < stack(driver)[pool]
        driver.advance(transfer.ticket)
    early = {pool.value for pool, steps in waited.items() if steps < stack(driver)[pool]}
    assert not early, f"HOST-9: {early} has {stack(driver)} layers and was whole before as many had moved: {waited}"
    take(driver, load)


@clause("HOST-6", "FLOW-4")
def test_all_layers_are_ready_from_the_end_of_the_load_to_its_claim(driver: Driver) -> None:
    put_on_host(driver, PAGES)
    load = start_load(driver, PAGES)
    driver.complete_all()
    assert driver.load_phase(load.ticket) is TransferPhase.DONE, "FLOW-4: the load has ended"
    for _ in range(2):
        found, expected = ready(driver, load.ticket), complete(driver)
        assert found == expected, f"HOST-6: the load has ended, {expected} may be read, ready is {found}"
        driver.step()
    driver.claim(load.ticket)


@clause("HOST-6")
def test_the_layers_of_an_earlier_load_do_not_make_a_later_one_ready(driver: Driver) -> None:
    put_on_host(driver, PAGES, OTHER)
    first = start_load(driver, PAGES)
    driver.complete(pending_transfer(driver, TransferKind.LOAD).ticket)
    second = start_load(driver, OTHER)
    found = [ready(driver, load.ticket) for load in (first, second)]
    assert found[0] == complete(driver), f"HOST-6: the first load has ended, ready is {found[0]}"
    assert not counted(found[1]), f"HOST-6: nothing of the second load has moved, ready is {found[1]}"
    take(driver, first)
    take(driver, second)


@clause("HOST-6")
def test_each_load_under_way_has_its_own_events(driver: Driver) -> None:
    put_on_host(driver, PAGES, OTHER)
    first, second = start_load(driver, PAGES), start_load(driver, OTHER)
    older, younger = driver.pending()
    driver.complete(younger.ticket)
    found = [counted(ready(driver, load.ticket)) for load in (first, second)]
    assert found[0] == 0 < found[1], f"HOST-6: the second load alone has arrived, readable are {found}"
    driver.advance(older.ticket)
    found = [counted(ready(driver, load.ticket)) for load in (first, second)]
    assert 0 < found[0] < found[1], (
        f"HOST-6: one layer of the first has moved and all of the second, readable are {found}"
    )
    take(driver, first)
    take(driver, second)


@clause("HOST-6")
def test_loads_that_start_together_are_ready_together(driver: Driver) -> None:
    put_on_host(driver, PAGES, OTHER)
    loads = [queue_load(driver, PAGES), queue_load(driver, OTHER)]
    driver.step()
    transfer = pending_transfer(driver, TransferKind.LOAD)
    for layer in range(transfer.layers):
        first, second = (ready(driver, load.ticket) for load in loads)
        assert first == second, f"HOST-6: {layer} layers of one transfer moved, ready are {first} and {second}"
        driver.advance(transfer.ticket)
    for load in loads:
        assert ready(driver, load.ticket) == complete(driver), "HOST-6: all layers of the transfer moved"
        take(driver, load)


@clause("HOST-6", "FLOW-6")
def test_a_load_that_shares_another_is_ready_when_all_its_own_layers_have_moved(driver: Driver) -> None:
    longer = (*PAGES, 3)
    put_on_host(driver, PAGES, longer)
    short = start_load(driver, PAGES)
    long = start_load(driver, longer)
    older, younger = driver.pending()
    for _ in range(older.layers):
        driver.advance(older.ticket)
    found = [ready(driver, load.ticket) for load in (short, long)]
    assert found[0] == complete(driver), f"HOST-6: all of {PAGES} has moved, ready is {found[0]}"
    assert Pool.KV not in {pool for pool, layers in found[1].items() if layers}, (
        f"HOST-6: 3 has not, ready is {found[1]}"
    )
    driver.complete(younger.ticket)
    assert ready(driver, long.ticket)[Pool.KV] == complete(driver)[Pool.KV], f"HOST-6: all of {longer} has moved"
    take(driver, short)
    take(driver, long)
