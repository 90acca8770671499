"""Caches with one defect each: the driver finds every defect, and names the clause it violates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hicache.testing.adapter import CacheAdapter, PageBytes
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.driving.driver import Driver
from hicache.tests.kit.flat_cache import FlatCache
from hicache.tests.kit.snapshots import FULL, tiny_config
from hicache.types import EvictResult, Handle, Key, MatchResult, Pool, Sizes, Slots

Verbs = Callable[[Driver], object]


class FreesTwice(FlatCache):
    """`allocate` returns slots that stay free."""

    def allocate(self, tokens: int) -> Slots | None:
        slots = super().allocate(tokens)
        if slots is not None:
            self.free(slots)
        return slots


class UnlocksAnything(FlatCache):
    """`unlock` accepts any receipt."""

    def unlock(self, receipt: Handle) -> None:
        return


class Short(FlatCache):
    """`allocate` returns one page less than asked for."""

    def allocate(self, tokens: int) -> Slots | None:
        return super().allocate(tokens - self.page_size)


class Shifted(FlatCache):
    """`allocate` returns slots that start inside a page."""

    def allocate(self, tokens: int) -> Slots | None:
        slots = super().allocate(tokens)
        return None if slots is None else slots + 1


class TooLong(FlatCache):
    """`match` finds more than the key has."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        return super().match(Key(np.append(key.tokens, [0, 0]).astype(np.int32), key.namespace), chunked=chunked)


class Forgetful(ReferenceAdapter):
    """`free` does not free the slots."""

    def free(self, slots: Slots) -> None:
        return


class WritesBeside(ReferenceAdapter):
    """`write` writes the second layer one slot further."""

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        super().write(pool, slots, layer, np.roll(data, layer, axis=0))


class Miscounts(ReferenceAdapter):
    """`sizes` counts one evictable token too many."""

    def sizes(self) -> dict[str, Sizes]:
        return {name: Sizes(s.evictable + 1, s.protected, s.free) for name, s in super().sizes().items()}


class EvictsNothing(ReferenceAdapter):
    """`evict` evicts nothing."""

    def evict(self, component: str, tokens: int) -> EvictResult:
        return EvictResult(dict.fromkeys(self.cache.config.components, 0), 0, refused=0)


class IgnoresLocks(ReferenceAdapter):
    """`evict` evicts locked nodes, too."""

    def evict(self, component: str, tokens: int) -> EvictResult:
        free = self.sizes()[FULL].free
        self.cache.reset()
        return EvictResult({component: self.sizes()[FULL].free - free}, 1, refused=0)


class KeepsLocks(ReferenceAdapter):
    """`unlock` releases nothing."""

    def unlock(self, receipt: Handle) -> None:
        return


class Insane(ReferenceAdapter):
    """`sanity_check` fails."""

    def sanity_check(self) -> None:
        raise AssertionError("the cache found a fault of its own")


def put_twice(driver: Driver) -> None:
    for pages in ([1, 2], [3, 4]):
        driver.put(driver.key(driver.prompt(pages)))


def free_some(driver: Driver) -> None:
    slots = driver.allocate(4)
    assert slots is not None, "an empty cache has 4 slots"
    driver.free(slots)


def evict_under_a_lock(driver: Driver) -> None:
    result = driver.put(driver.key(driver.prompt([1, 2])))
    driver.lock(result.node)
    driver.evict(FULL, 2)


def unlock_something(driver: Driver) -> None:
    receipt = driver.lock(driver.put(driver.key(driver.prompt([1]))).node)
    driver.unlock(receipt)


def unlock_twice(driver: Driver) -> None:
    unlock_something(driver)
    driver.unlock(None)


def evict_some(driver: Driver) -> None:
    put_twice(driver)
    driver.evict(FULL, 2)


def match_longer(driver: Driver) -> None:
    driver.put(driver.key([1, 2, 0, 0]))
    driver.match(driver.key([1, 2]))


CONFIG = tiny_config(FULL, page_size=2, pages=8)

DEFECTS: list[tuple[type[CacheAdapter], Verbs, str]] = [
    (FreesTwice, lambda driver: [driver.allocate(4) for _ in range(2)], "POOL-2: allocated slots"),
    (Short, lambda driver: driver.allocate(4), "POOL-3: .*expected 4 slots or None, got 2"),
    (Shifted, lambda driver: driver.allocate(4), "POOL-4: .*aligned pages of 2"),
    (TooLong, match_longer, "MATCH-1: match: expected at most 2 slots"),
    (Forgetful, free_some, "POOL-1: pool of full: expected 16 slots with an owner"),
    (WritesBeside, put_twice, "REQ-3: node of elements 0..4 .*its slot 0 of 4, pool kv, layer 1"),
    (Miscounts, put_twice, "LOCK-4: size counters of full"),
    (EvictsNothing, evict_some, "EVICT-1: .*expected more freed, as 8 are evictable"),
    (IgnoresLocks, evict_under_a_lock, "LOCK-5: full slot 2, .*expected 1 locks, got a slot that is not in the tree"),
    (KeepsLocks, unlock_something, "LOCK-2: .*expected at most 0"),
    (UnlocksAnything, unlock_twice, "LOCK-6: unlock: expected an error"),
    (Insane, put_twice, "a fault of its own"),
]


@pytest.mark.parametrize(("adapter", "verbs", "message"), DEFECTS, ids=[defect[0].__name__ for defect in DEFECTS])
def test_a_defect_is_found(adapter: type[CacheAdapter], verbs: Verbs, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verbs(Driver(adapter(CONFIG), CONFIG))
