"""The driver over the reference, and over a cache without a snapshot."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.driving.driver import Driver
from hicache.tests.kit.flat_cache import FlatCache
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, tiny_config
from hicache.types import Handle

STACKS = [(FULL,), (FULL, SWA), (FULL, MAMBA), (FULL, SWA, MAMBA)]


def drive(adapter: type[CacheAdapter], *components: str, page_size: int = 2, bigram: bool = False) -> Driver:
    config = tiny_config(*components, page_size=page_size, pages=8, window=3, bigram=bigram)
    return Driver(adapter(config), config)


@pytest.mark.parametrize("bigram", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("page_size", [1, 3])
def test_prompts_are_whole_pages_that_diverge_where_their_numbers_differ(page_size: int, bigram: bool) -> None:
    driver = drive(ReferenceAdapter, FULL, page_size=page_size, bigram=bigram)
    driver.put(driver.key(driver.prompt([1, 2, 3])))
    other = driver.key(driver.prompt([1, 2, 4, 3]))
    sizes = (driver.elements(other), driver.aligned(other), len(driver.match(other).device_indices))
    expected = (4 * page_size, 4 * page_size, 2 * page_size)
    assert sizes == expected, f"elements, whole pages, shared with [1, 2, 3]: expected {expected}, got {sizes}"


def test_lengths_of_short_keys() -> None:
    driver = drive(ReferenceAdapter, FULL, bigram=True)
    lengths = [driver.elements(driver.key(range(count))) for count in range(4)]
    assert lengths == [0, 0, 1, 2], f"KEY-3: expected [0, 0, 1, 2] pairs, got {lengths}"


@pytest.mark.parametrize("components", STACKS)
def test_the_reference_breaks_no_law(components: tuple[str, ...]) -> None:
    driver = drive(ReferenceAdapter, *components)
    key = driver.key(driver.prompt([1, 2, 3]))
    driver.put(key)
    found = driver.match(key)
    driver.verify_state(key, found)
    receipt = driver.lock(found.device_anchor)
    driver.put(driver.key(driver.prompt([1, 2, 4])), window_start=2, with_state=False)
    driver.put(driver.key(driver.prompt([5, 6, 7])), priority=3)
    for component in components:
        driver.evict(component, 2)
    driver.unlock(receipt)
    driver.reset()
    free = {component: sizes.free for component, sizes in driver.adapter.sizes().items()}
    expected = driver.config.capacity_tokens
    assert free == expected, f"EVICT-9: after a reset all is free: expected {expected}, got {free}"


@pytest.mark.parametrize("components", STACKS)
def test_a_request_runs_on_the_reference(components: tuple[str, ...]) -> None:
    driver = drive(ReferenceAdapter, *components)
    driver.put(driver.key(driver.prompt([1, 2])))
    admission = driver.admit(driver.key(driver.prompt([1, 2, 3])))
    other = driver.admit(driver.key(driver.prompt([4])))
    assert admission, "REQ-5: a small request fits an empty cache"
    assert other, "REQ-5: a second small request fits as well"
    assert admission.cached_tokens == 4, f"expected 4 cached tokens, got {admission.cached_tokens}"
    driver.checkpoint(admission.request, 6)
    table = driver.extend(admission.request, [1, 2, 3])
    assert table is not None, "REQ-5: 3 more tokens fit"
    assert len(table) == 10, f"REQ-4: 9 tokens need a table of 10 slots, got {len(table)}"
    driver.abort(other.request)
    with pytest.raises(ValueError, match="finish or abort the 1 running requests"):
        driver.reset()
    driver.finish(admission.request)
    protected = {component: sizes.protected for component, sizes in driver.adapter.sizes().items()}
    assert not any(protected.values()), f"REQ-1: expected nothing protected without requests, got {protected}"


def test_a_cache_without_a_snapshot_can_be_driven() -> None:
    driver = drive(FlatCache, FULL)
    key = driver.key(driver.prompt([1, 2]))
    driver.put(key)
    result = driver.put(driver.key(driver.prompt([1, 3])))
    assert (result.prefix_length, result.accepted_length) == (2, 4), f"got {result}"
    receipt = driver.lock(driver.match(key).device_anchor)
    driver.evict(FULL, 100)
    driver.unlock(receipt)
    assert len(driver.match(key).device_indices) == 4, "LOCK-5: the locked prefix is still there"
    driver.check()


class CountsForks(ReferenceAdapter):
    """Counts the states that it returned as copies."""

    forks = 0

    def fork_state(self, handle: Handle) -> int | None:
        slot = super().fork_state(handle)
        self.forks += slot is not None
        return slot


def test_a_state_is_verified_where_there_is_room_for_a_fork() -> None:
    config = tiny_config(FULL, MAMBA, pages=2)
    adapter = CountsForks(config)
    driver = Driver(adapter, config)
    key = driver.key(driver.prompt([1]))
    driver.put(key)
    found = driver.match(key)
    held = driver.allocate_state()
    assert held, "1 of 2 states is free"
    driver.verify_state(key, found)
    driver.free_state(held)
    driver.verify_state(key, found)
    assert adapter.forks == 1, f"MATCH-11: one of the two times a slot was free, {adapter.forks} forks were made"


def test_check_every_counts_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, checks = drive(FlatCache, FULL), []
    monkeypatch.setattr(driver, "check", lambda: checks.append(driver.operations))
    for driver.check_every in (0, 3, 1):
        for _ in range(4):
            driver.match(driver.key([]))
    assert checks == [6, 9, 10, 11, 12], f"expected checks after verbs 6, 9, 10, 11, 12, got {checks}"
