"""STORE-12, STORE-15, FLOW-13: the cache of the run over the backend, and behind a wrapper that lies, dies or hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from hicache.config import CacheConfig, ExecutorKind, StorageConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import standard_configurations
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import reshaped
from hicache.testing.storage.faults import files_of
from hicache.testing.storage.misbehaving import BACKEND, GUARD_S, Lie, Script, script
from hicache.testing.storage.room import require_room
from hicache.testing.storage.subject import Place

NAME = "full/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped"
"""The standard configuration that is opened over the backend. A page is smaller than those of the other tests."""

HYBRID = NAME.replace("full/", "full+mamba/", 1)
"""The one for a model with states."""

PROMPT = (1, 2, 3, 4)

STATE_ELEMENTS = 1 << 14
"""Of float32 in each of two layers: a state of 128 KiB, beside pages of KV of 1 KiB."""

LIMIT_S = 3600.0
"""How long a call may take. The test moves the clock."""

LIES: Sequence[tuple[str, Lie]] = (
    ("get", lambda keys: [None] * keys),
    ("get", lambda keys: [-1] * keys),
    ("get", lambda keys: ["error"] * keys),
    ("get", lambda _: [True]),
    ("exists", lambda _: True),
    ("exists", lambda keys: keys + 1),
    ("exists", float),
    ("exists", lambda _: float("nan")),
)
"""What a verb gives in the place of an answer, for so many keys."""

NEEDS = frozenset(
    {
        *(Capability.VERBS, Capability.RESET, Capability.SNAPSHOT, Capability.HOST, Capability.STORAGE),
        *(Capability.STEPPED, Capability.STEPPED_STORAGE, Capability.DEADLINES, Capability.PAGED),
    }
)


def require(adapter_type: type[CacheAdapter], needs: frozenset[Capability]) -> None:
    """Skip the test that runs if the adapter does not declare all of these."""
    if lacks := sorted(one.name for one in needs - adapter_type.capabilities):
        pytest.skip(f"{adapter_type.__name__} does not declare {', '.join(lacks)}")


@pytest.fixture
def cached(place: Place, adapter_type: type[CacheAdapter]) -> Iterator[tuple[Driver, Script]]:
    """A cache over the backend that has stored the prompt and holds nothing of it, and the script of its wrapper."""
    require(adapter_type, NEEDS)
    require_room(place, len(PROMPT))
    with over_a_script(place, adapter_type) as (driver, told):
        driver.put(driver.key(driver.prompt(PROMPT)))
        driver.drain()
        driver.reset()
        yield driver, told


def configuration(name: str) -> tuple[CacheConfig, StorageConfig]:
    """The standard configuration of this name, and that of its storage."""
    config = next(one for one in standard_configurations(frozenset(Capability)) if one.name == name)
    assert config.storage is not None, f"{name} has storage"
    return config, config.storage


@contextmanager
def over_a_script(place: Place, adapter_type: type[CacheAdapter]) -> Iterator[tuple[Driver, Script]]:
    """A driver of a cache over the wrapped backend."""
    config, storage = configuration(NAME)
    with script() as (name, told):
        options = {"inner": place.subject.name, "inner_options": place.options, "script": name}
        storage = replace(
            storage,
            backend=BACKEND,
            model=place.name,
            options=options,
            executor=ExecutorKind.THREADED,
            answer_timeout_s=LIMIT_S,
        )
        config = replace(config, storage=storage)
        with closing(adapter_type(config)) as adapter:
            driver = Driver(adapter, config)
            try:
                yield driver, told
                driver.check()
            finally:
                # Before the cache is closed: a cache that waits forever would do so there.
                told.behave()


@contextmanager
def over_the_backend(place: Place, adapter_type: type[CacheAdapter]) -> Iterator[Driver]:
    """A driver of a cache over the backend, for a model with a state that is much larger than a page of KV."""
    config, storage = configuration(HYBRID)
    storage = replace(storage, backend=place.subject.name, model=place.name, options=place.options)
    config = replace(config, storage=storage, model=reshaped(config.model, state_elements=STATE_ELEMENTS))
    with closing(adapter_type(config)) as adapter:
        driver = Driver(adapter, config)
        yield driver
        driver.check()


def prefetch(driver: Driver) -> int:
    """Prefetch the prompt, and drain; the number of pages that came. Their bytes are checked."""
    ticket = driver.prefetch(driver.key(driver.prompt(PROMPT)))
    assert ticket is not None, "FLOW-13: the backend is attached: expected it to be asked"
    driver.drain()
    tokens = driver.check_prefetch(ticket)
    assert tokens is not None, "FETCH-3: all was drained: expected the prefetch to have ended"
    return tokens // driver.config.page_size


def reach(driver: Driver, is_reached: Callable[[], bool]) -> None:
    """Step until something is so; the threads of the cache get time to do it."""
    deadline_s = time.monotonic() + GUARD_S
    while not is_reached():
        assert time.monotonic() < deadline_s, f"FLOW-13: expected it within {GUARD_S:g} s"
        driver.step()
        time.sleep(0.001)


def is_silent(driver: Driver) -> bool:
    """Whether an abandoned backend is still in a call."""
    storage = driver.snapshot().storage
    return storage is not None and storage.abandoned is not None


@clause("STORE-12")
def test_a_cache_believes_no_lie_about_the_pages_of_a_backend(cached: tuple[Driver, Script]) -> None:
    driver, told = cached
    for verb, lie in LIES:
        told.lies[verb] = lie
        came = prefetch(driver)
        assert came == 0, f"STORE-12: {verb} gave {lie(4)!r} for 4 keys: expected no page to come, {came} came"
        told.lies.clear()
    came = prefetch(driver)
    assert came == len(PROMPT), f"STORE-12: the backend answers again: expected {len(PROMPT)} pages, {came} came"


@clause("STORE-12", "FLOW-13")
def test_a_cache_outlives_a_backend_that_ends_its_thread(cached: tuple[Driver, Script]) -> None:
    driver, told = cached
    for verb in ("exists", "get"):
        told.deadly = {verb}
        came = prefetch(driver)
        assert came == 0, f"FLOW-13: {verb} ends its thread: expected no page to come, {came} came"
    told.deadly.clear()
    came = prefetch(driver)
    assert came == len(PROMPT), f"FLOW-13: two calls failed: expected {len(PROMPT)} pages by the next, {came} came"


@clause("FLOW-13")
def test_a_cache_goes_on_without_a_backend_that_hangs(cached: tuple[Driver, Script]) -> None:
    driver, told = cached
    for verb in ("exists", "get"):
        gate = told.hang(verb)
        ticket = driver.prefetch(driver.key(driver.prompt(PROMPT)))
        reach(driver, gate.entered.is_set)
        driver.advance_clock(2 * LIMIT_S)
        driver.drain()
        assert driver.check_prefetch(ticket) == 0, f"FLOW-13: {verb} hangs: expected no page to come"
        driver.reset()
        assert not gate.was_late, f"FLOW-13: {verb} hangs: expected neither a drain nor a reset to wait for it"
        gate.open()
        reach(driver, lambda: not is_silent(driver))
        assert driver.attach_storage(), "FLOW-13: the backend has answered: expected it to be attached again"
    came = prefetch(driver)
    assert came == len(PROMPT), f"FLOW-13: the backend answers again: expected {len(PROMPT)} pages, {came} came"


@clause("STORE-15")
@pytest.mark.usefixtures("metadata")
def test_the_pages_of_a_hybrid_take_the_room_that_each_pool_needs(
    place: Place, adapter_type: type[CacheAdapter], exchanges: list[str]
) -> None:
    require(adapter_type, NEEDS | {Capability.MAMBA})
    with over_the_backend(place, adapter_type) as driver:
        exchanges.clear()
        driver.put(driver.key(driver.prompt(PROMPT)))
        driver.drain()
        stored = list(exchanges)
        driver.reset()
        # A page has a header, and begins at a block of the disk.
        state, page = STATE_ELEMENTS * 4 * 2 + 4096, 2 * 4096
        length, most = sum(path.stat().st_size for path in files_of(place.directory)), state + (len(PROMPT) + 1) * page
        assert state < length <= most, (
            f"STORE-15: {len(PROMPT)} pages of KV and a state: expected {state} to {most} bytes of files, got {length}"
        )
        exchanges.clear()
        came = prefetch(driver)
    assert came == len(PROMPT), f"STORE-15: expected {len(PROMPT)} pages and the state from storage, {came} came"
    assert len(stored) == 2, f"STORE-15: one set of two pools: expected 2 exchanges, got {stored}"
    # It asks how many pages of KV exist, and which states; and then where those of each pool are.
    assert len(exchanges) == 2 + 2, f"STORE-15: a prefix of two pools: expected 4 exchanges, got {exchanges}"
