"""Caches with one defect each in the handling of a request: the driver finds every defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hicache.request import Request
from hicache.testing.adapter import Admission, CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.driving.driver import Driver
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, tiny_config
from hicache.types import Handle, Key, Slots, Tokens

CONFIG = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=8, window=3)


class CountsTheRestAsCached(ReferenceAdapter):
    """`admit` reports one cached page too many."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        return admission and replace(admission, cached_tokens=admission.cached_tokens + 2)


class CutsTheTable(ReferenceAdapter):
    """`admit` returns a table that is shorter than the request."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        return admission and replace(admission, table=admission.table[:-2])


class ForgetsTheState(ReferenceAdapter):
    """`admit` returns no state."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        return admission and replace(admission, state=None)


class LocksNothing(ReferenceAdapter):
    """`admit` releases the lock on the request's prefix."""

    def admit(self, key: Key) -> Admission | None:
        admission = super().admit(key)
        assert admission, "the tests leave room for a request"
        self.cache.unlock(admission.request.receipt)
        return admission


class KeepsTheOldTable(ReferenceAdapter):
    """`checkpoint` returns the old table, without the slots that the tree kept instead of the request's own."""

    def checkpoint(self, request: Request, computed_tokens: int) -> Slots:
        before = request.table.copy()
        super().checkpoint(request, computed_tokens)
        return before


class ExtendsByNothing(ReferenceAdapter):
    """`extend` succeeds without adding slots."""

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return request.table.copy()


class LeaksTheTail(ReferenceAdapter):
    """`finish` leaks the slots of the last, incomplete page."""

    def finish(self, request: Request) -> None:
        tail = request.table[-CONFIG.page_size :]
        request.table = request.table[: -CONFIG.page_size]
        request.tokens = request.tokens[: len(request.table)]
        super().finish(request)
        assert len(tail), "the tests end requests inside a page"


class KeepsTheLock(ReferenceAdapter):
    """`abort` does not release the lock on the shared prefix."""

    def abort(self, request: Request) -> None:
        self.cache.lock(request.receipt.node)
        super().abort(request)


def start(driver: Driver, *, own_pages: int = 1) -> Handle:
    """Start a request that shares two pages and has some pages and one token of its own."""
    driver.put(driver.key(driver.prompt([1, 2])))
    admission = driver.admit(driver.key([*driver.prompt([1, 2, *range(7, 7 + own_pages)]), 5]))
    assert admission, "a small request fits"
    return admission.request


def overtaken(driver: Driver) -> None:
    """Another request inserts the page that this request computes, before this one inserts it."""
    request = start(driver)
    driver.put(driver.key(driver.prompt([1, 2, 7])))
    driver.checkpoint(request, 6)


Verbs = Callable[[Driver], object]

DEFECTS: list[tuple[type[CacheAdapter], Verbs, str]] = [
    (CountsTheRestAsCached, start, "REQ-3: position 4 of a hit, pool kv, layer 0"),
    (CutsTheTable, start, "REQ-4: table of a request of 7 tokens: expected 8 slots, got 6"),
    (ForgetsTheState, start, "MATCH-11: admit: expected a state of its own"),
    (LocksNothing, start, "REQ-1: shared slots of a request of 7 tokens"),
    (KeepsTheOldTable, overtaken, "MATCH-3: hit of 6 tokens: expected SWA data in the last window"),
    (ExtendsByNothing, lambda driver: driver.extend(start(driver), [1, 2]), "REQ-4: .*9 tokens: expected 10 slots"),
    (LeaksTheTail, lambda driver: driver.finish(start(driver)), "POOL-1: pool of full: expected 16 slots"),
    (KeepsTheLock, lambda driver: driver.abort(start(driver)), "LOCK-2: FULL locks below the root"),
]


@pytest.mark.parametrize(("adapter", "verbs", "message"), DEFECTS, ids=[defect[0].__name__ for defect in DEFECTS])
def test_a_defect_is_found(adapter: type[CacheAdapter], verbs: Verbs, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verbs(Driver(adapter(CONFIG), CONFIG))


@pytest.mark.parametrize(("verbs", "cached"), [(overtaken, 6), (start, 4)], ids=["overtaken", "start"])
def test_the_reference_does_it_right(verbs: Verbs, cached: int) -> None:
    driver = Driver(ReferenceAdapter(CONFIG), CONFIG)
    verbs(driver)
    (running,) = driver.running.values()
    driver.finish(running.request)
    matched = driver.match(driver.key(driver.prompt([1, 2, 7]))).device_indices
    assert len(matched) == cached, f"REQ-1: {cached} tokens have a state at their end, found {len(matched)}"
