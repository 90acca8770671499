"""FLOW-12, STORE-7, STORE-11: an operator attaches, detaches and clears the backend of a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hicache.config import WritePolicy
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.storage.scripted import ScriptedStorage
from hicache.types import Pool, StorageKind

from .scenario import Scenario
from .stored_prompts import OTHER, PAIR, PREFETCH_PHASES, PROMPT, PrefetchPhase

Operation = Callable[[Scenario], bool]


class UnregistrableStorage(ScriptedStorage):
    """A backend that cannot register the memory of the host tier."""

    def register(self, regions: Sequence[memoryview]) -> bool:
        raise OSError(f"{len(regions)} regions cannot be registered")


def detach(driver: Scenario) -> bool:
    """Detach the backend."""
    return driver.detach_storage()


def clear(driver: Scenario) -> bool:
    """Clear the cache's objects."""
    return driver.clear_storage()


OPERATIONS = pytest.mark.parametrize("operation", [detach, clear], ids=lambda operation: operation.__name__)
STEPPED = [Capability.STEPPED_STORAGE]


@OPERATIONS
@PREFETCH_PHASES
@clause("FLOW-12", needs=STEPPED, page_sizes=[16])
def test_an_operator_is_refused_while_a_prefetch_is_open(
    driver: Scenario, phase: PrefetchPhase, operation: Operation
) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    phase(driver)
    assert not operation(driver), f"FLOW-12: a prefetch is {phase.__name__}: expected a refusal, but it was done"
    driver.drain()
    assert driver.prefetched_pages(ticket) == len(PROMPT), "FLOW-12: expected the prefetch to bring all pages"
    assert operation(driver), "FLOW-12: nothing is under way any more"


@OPERATIONS
@clause("FLOW-12", needs=STEPPED, page_sizes=[16])
def test_an_operator_is_refused_while_storage_writes_for_an_aborted_prefetch(
    driver: Scenario, operation: Operation
) -> None:
    driver.put_in_storage_alone(PROMPT)
    ticket = driver.begin_prefetch(PROMPT)
    driver.step()
    driver.complete_job(StorageKind.QUERY)
    driver.abort_prefetch(ticket)
    assert not operation(driver), (
        "FLOW-12: storage is still writing to host memory, expected a refusal, but it was done"
    )
    driver.advance(driver.pending_job(StorageKind.PREFETCH).ticket)
    driver.step()
    assert operation(driver), "FLOW-12: the batch has ended"


@OPERATIONS
@clause("FLOW-12", needs=STEPPED, page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
def test_an_operator_is_refused_while_a_node_is_being_stored(driver: Scenario, operation: Operation) -> None:
    driver.put_pages(PAIR)
    driver.step()
    driver.complete_all()
    driver.pending_job(StorageKind.STORE)
    assert not operation(driver), "FLOW-12: a node is being stored: expected a refusal, but it was done"
    driver.complete_job(StorageKind.STORE)
    assert operation(driver), "FLOW-12: storage has taken it"


@clause("FLOW-12", page_sizes=[16])
def test_without_a_backend_the_host_tier_still_works(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    assert driver.detach_storage(), "FLOW-12: nothing is under way"
    assert not driver.detach_storage(), "FLOW-12: none is attached"
    assert not driver.clear_storage(), "FLOW-12: none is attached, and nothing can be removed"
    before = len(driver.store().calls)
    assert driver.prefetch(driver.key_of(OTHER)) is None, "FETCH-1: no backend is attached: expected None"
    driver.put_on_host(OTHER)
    assert driver.tier_hits(OTHER) == (0, len(OTHER)), (
        f"FLOW-12: expected the host tier to work without a backend, got {driver.tier_hits(OTHER)}"
    )
    called = [call.verb for call in driver.store().calls[before:]]
    assert not called, f"FLOW-12: no backend is attached, and it was asked {called}"


@clause("FLOW-12", "FETCH-9", needs=STEPPED, page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
def test_nothing_is_queued_for_a_detached_backend(driver: Scenario) -> None:
    driver.store().faults.raising = {"set"}
    driver.put_and_back_up(PAIR)
    driver.store().faults.raising = set()
    driver.match(driver.key_of(PAIR))
    assert driver.detach_storage(), "FLOW-12: nothing is under way: expected the backend to be detached"
    driver.put_pages(OTHER)
    for _ in range(3):
        driver.step()
        driver.complete_all()
        pending = driver.pending(*StorageKind)
        assert not pending, f"FLOW-12: no backend is attached: expected no pending storage job, got {pending}"
    assert driver.attach_storage(), "FLOW-12: it was detached: expected it to be attached"
    for pages in (PAIR, OTHER):
        driver.put_pages(pages)
        driver.drain()
        there = driver.in_storage(pages)
        assert all(there[Pool.KV]), f"FETCH-9: {pages} was used again: expected all of it in storage, got {there}"


@clause("FLOW-12", page_sizes=[16])
def test_a_reattached_backend_serves_prefetches(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    assert not driver.attach_storage(), "FLOW-12: it is attached already"
    for _ in range(3):
        assert driver.detach_storage(), "FLOW-12: nothing is under way"
        assert driver.attach_storage(), "FLOW-12: it was detached"
    driver.put_in_storage(OTHER)
    driver.reset()
    for pages in (PROMPT, OTHER):
        came = driver.prefetch_pages(pages)
        assert came == len(pages), f"FLOW-12: {pages} is in storage, {came} pages came"


@clause("FLOW-12", "FETCH-9", page_sizes=[16])
def test_after_a_clear_used_nodes_are_stored_again(driver: Scenario) -> None:
    for forget in (clear, reattach_to_nothing):
        driver.put_in_storage(PAIR)
        assert forget(driver), "FLOW-12: nothing is under way"
        marks = driver.stored_components() if driver.shows_marks() else {}
        assert not any(marks.values()), f"FLOW-12: storage is empty: expected no stored components, got {marks}"
        driver.put_pages(PAIR)
        driver.evict("full", driver.config.capacity_tokens["full"])
        driver.drain()
        assert all(driver.in_storage(PAIR)[Pool.KV]), f"FETCH-9: used again, got {driver.in_storage(PAIR)}"


@clause("STORE-7", page_sizes=[16])
def test_a_clear_removes_the_objects_of_this_cache_alone(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    with driver.storage_variant(storage={"model": "another"}) as other:
        other.put_in_storage(PROMPT)
        assert driver.clear_storage(), "FLOW-12: nothing is under way"
        assert not any(driver.in_storage(PROMPT)[Pool.KV]), f"STORE-7: left is {driver.in_storage(PROMPT)}"
        other.reset()
        came = other.prefetch_pages(PROMPT)
        assert came == len(PROMPT), f"STORE-7: another model's objects are not this one's to remove, {came} pages came"
    driver.reset()
    assert driver.prefetch_pages(PROMPT) == 0, "STORE-7: its own are gone"


@clause("FLOW-12", "STORE-3", page_sizes=[16])
def test_a_failed_clear_returns_false_and_changes_nothing(driver: Scenario) -> None:
    driver.put_in_storage(PROMPT)
    driver.store().faults.raising = {"clear"}
    assert not driver.clear_storage(), "FLOW-12: the backend raises, and nothing was removed"
    driver.store().faults.raising = set()
    driver.reset()
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FLOW-12: all of it is in storage still"
    assert driver.clear_storage(), "FLOW-12: the backend does not raise any more"


@clause("STORE-11", page_sizes=[16])
def test_a_backend_that_does_not_exist_is_refused_with_its_name(driver: Scenario) -> None:
    for backend in ("no such backend", "no_such_module:Backend", "hicache.config:CacheConfig", "json:NoSuchClass"):
        name = backend.rpartition(":")[2]
        with (
            pytest.raises((ConfigurationError, ImportError), match=name),
            driver.storage_variant(storage={"backend": backend}),
        ):
            pass


@clause("FLOW-12", "STORE-11", page_sizes=[16])
def test_a_backend_that_cannot_register_memory_is_closed(driver: Scenario) -> None:
    backend = f"{__name__}:{UnregistrableStorage.__name__}"
    before = len(driver.store().calls)
    with pytest.raises(OSError, match="cannot be registered"), driver.storage_variant(storage={"backend": backend}):
        pass
    called = [call.verb for call in driver.store().calls[before:]]
    assert called == ["close"], f"FLOW-12: the backend was not attached: expected it to be closed once, got {called}"


@clause("STORE-11", page_sizes=[16])
def test_options_are_passed_to_the_backend_which_refuses_unknown_ones(driver: Scenario) -> None:
    for options, wrong in (({"store": 7}, "store"), ({}, "store"), ({"store": "s", "colour": "red"}, "colour")):
        with pytest.raises(ConfigurationError, match=wrong), driver.storage_variant(extra={"options": options}):
            pass


@clause("STORE-9", "STORE-16", page_sizes=[16])
def test_pages_are_read_and_written_in_the_memory_of_the_host_tier(driver: Scenario) -> None:
    driver.put_in_storage_alone(PROMPT)
    assert driver.prefetch_pages(PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    moved = driver.store().moved_pieces
    assert moved > 0, "the scenario moves pages"
    strays = driver.store().stray_pieces
    assert strays == 0, f"STORE-9: of {moved} pieces {strays} lay outside the memory that was registered"


def reattach_to_nothing(driver: Scenario) -> bool:
    """Detach the backend, empty the store, and attach the backend again."""
    is_detached = driver.detach_storage()
    driver.store().empty()
    return is_detached and driver.attach_storage()
