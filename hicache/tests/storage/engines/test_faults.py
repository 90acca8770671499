"""What a backend answers while its engine is dead, paused, full, cut off or refuses it, and afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from threading import Thread

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.testing.storage.page_bytes import Sheet, page_bytes
from hicache.tests.storage.engines.engine import Engine, EngineProcess
from hicache.tests.storage.engines.relay import Relay

from .conftest import PAGE_BYTES, SCOPE, Open, Start, require

KEYS = [f"kv.0of1/{number:064x}" for number in range(8)]
AGAIN_S = 60
"""How long a backend may take until it uses a server again that is back."""

CAPACITY_BYTES = 16 << 20

FRAME_BYTES = 1_024
"""The most bytes that a protocol adds to a page."""


def kept(backend: StorageBackend, keys: Sequence[str] = KEYS) -> list[bool]:
    """Store the page of each key."""
    sheet = Sheet([(PAGE_BYTES,)] * len(keys))
    for number, key in enumerate(keys):
        sheet.write(number, page_bytes(SCOPE, key, 0, PAGE_BYTES))
    return backend.set(keys, sheet.pages, [])


def read(backend: StorageBackend, keys: Sequence[str] = KEYS) -> list[bool]:
    """Read each key, and compare the bytes of those that are there."""
    sheet = Sheet([(PAGE_BYTES,)] * len(keys))
    answers = backend.get(keys, sheet.pages, [])
    for number, key in enumerate(keys):
        if answers[number]:
            assert sheet.read(number) == page_bytes(SCOPE, key, 0, PAGE_BYTES), f"STORE-3: {key} has other bytes"
    return answers


def until(is_reached: Callable[[], bool], what: str) -> None:
    """Repeat a call until it returns True."""
    deadline = time.monotonic() + AGAIN_S
    while not is_reached():
        assert time.monotonic() < deadline, f"{what}: not after {AGAIN_S} seconds"
        time.sleep(0.01)


def all_fail(backend: StorageBackend) -> None:
    """Each verb answers that nothing is there and nothing is done, and counts the pages as errors."""
    before, none = backend.stats(), [False] * len(KEYS)
    assert kept(backend) == none, "STORE-3: nothing can be stored"
    assert read(backend) == none, "STORE-3: nothing can be read"
    assert backend.has(KEYS) == none, "STORE-3: nothing is known to be there"
    assert backend.exists(KEYS, [], []) == 0, "STORE-2: no page can be used"
    assert not backend.clear(), "STORE-7: nothing was removed"
    after = backend.stats()
    assert after.misses.get("error", 0) == before.misses.get("error", 0) + len(KEYS), f"an error each: {after}"
    assert after.refused.get("error", 0) == before.refused.get("error", 0) + len(KEYS), f"an error each: {after}"


def test_a_killed_engine_gives_misses_until_it_is_back(
    start: Start, open_on: Open, caplog: pytest.LogCaptureFixture
) -> None:
    process = start()
    backend = open_on(process, retry_s=0)
    assert kept(backend) == read(backend) == [True] * len(KEYS), "the engine is sound"
    process.kill()
    with caplog.at_level(logging.WARNING):
        all_fail(backend)
        all_fail(backend)
    assert len(caplog.records) == 1, f"a failure is logged once, got {[one.message for one in caplog.records]}"
    process.start()
    until(lambda: kept(backend) == [True] * len(KEYS), "the engine is back")
    assert read(backend) == [True] * len(KEYS), "what was stored since is there"


def test_a_restart_between_two_verbs_costs_no_error(start: Start, open_on: Open) -> None:
    process = start()
    backend = open_on(process)
    kept(backend)
    process.kill()
    process.start()
    assert kept(backend) == read(backend) == [True] * len(KEYS), "connections of before are opened anew"
    stats = backend.stats()
    assert not stats.misses, f"expected no miss, got {stats}"
    assert not stats.refused, f"expected no refused page, got {stats}"


def test_a_dead_engine_does_not_keep_a_backend_from_opening(start: Start, open_on: Open) -> None:
    process = start()
    process.kill()
    backend = open_on(process, retry_s=0)
    all_fail(backend)
    process.start()
    until(lambda: kept(backend) == [True] * len(KEYS), "the engine is there")
    assert read(backend) == [True] * len(KEYS), "what was stored is there"


def test_a_paused_engine_gives_misses_until_it_goes_on(start: Start, open_on: Open) -> None:
    process = start()
    backend = open_on(process, timeout_s=process.engine.timeout_s, retry_s=0)
    kept(backend)
    process.pause()
    all_fail(backend)
    process.resume()
    until(lambda: all(read(backend)), "the engine goes on, with what was stored before")


def test_an_engine_that_failed_is_not_asked_again_at_once(start: Start, open_on: Open) -> None:
    process = start()
    backend = open_on(process, timeout_s=process.engine.timeout_s, retry_s=3_600)
    kept(backend)
    process.pause()
    assert read(backend) == [False] * len(KEYS), "the engine does not answer"
    process.resume()
    assert read(backend) == [False] * len(KEYS), "the engine is asked again after retry_s"
    other = open_on(process)
    assert read(other) == [True] * len(KEYS), "another instance asks it"


def test_a_slow_engine_is_waited_for(start: Start, open_on: Open) -> None:
    process = start()
    backend = open_on(process, timeout_s=60)
    kept(backend)
    process.pause()
    answers: list[bool] = []
    reader = Thread(target=lambda: answers.extend(read(backend)))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive(), "the engine is paused: the read waits"
    process.resume()
    reader.join()
    assert answers == [True] * len(KEYS), "an answer that comes within timeout_s is a hit"


def test_an_engine_that_refuses_a_client_is_an_error_at_opening(engine: Engine, start: Start, open_on: Open) -> None:
    require(engine, "password")
    process = start(password="the-password")  # noqa: S106 - of a server that ends with the test
    for kind, options in process.engine.strangers.items():
        with pytest.raises(ConfigurationError, match="refuses") as refused:
            open_on(process, **options)
        assert "not-the-password" not in str(refused.value), f"SEC-1: {kind}: {refused.value} has the password"
    # moto refuses the signature of a list of objects, which is right: a backend that lists them at the opening pauses.
    backend = open_on(process, retry_s=0)
    until(lambda: all(kept(backend)), "the right password is accepted")
    assert read(backend) == [True] * len(KEYS), "the right password is accepted"


def filled(process: EngineProcess, open_on: Open) -> tuple[StorageBackend, list[str], list[bool]]:
    """A backend with four times the pages that its engine has memory for; the keys, and the answers of `set`."""
    backend = open_on(process)
    keys = [f"kv.0of1/{number:064x}" for number in range(4 * CAPACITY_BYTES // PAGE_BYTES)]
    answers = [one for begin in range(0, len(keys), 8) for one in kept(backend, keys[begin : begin + 8])]
    return backend, keys, answers


def test_a_full_engine_refuses_pages_and_keeps_those_it_has(engine: Engine, start: Start, open_on: Open) -> None:
    require(engine, "a full state")
    backend, keys, answers = filled(start(capacity_bytes=CAPACITY_BYTES, evicts=False), open_on)
    there = [key for key, is_kept in zip(keys, answers, strict=True) if is_kept]
    assert 0 < len(there) < len(keys), f"expected some of {len(keys)} pages to be stored, got {len(there)}"
    assert all(read(backend, there)), "STORE-8: each page that was stored is there"
    stats = backend.stats()
    assert stats.refused == {"full": len(keys) - len(there)}, f"STORE-8: the others are counted, got {stats}"
    assert backend.clear(), "STORE-7: a full engine can be cleared"
    assert kept(backend) == read(backend) == [True] * len(KEYS), "STORE-8: there is room again"


def test_an_engine_that_evicts_keeps_the_newest_pages(engine: Engine, start: Start, open_on: Open) -> None:
    require(engine, "a full state")
    backend, keys, answers = filled(start(capacity_bytes=CAPACITY_BYTES), open_on)
    assert answers[-8:] == [True] * 8, "STORE-8: pages are evicted for others"
    assert read(backend, keys[-8:]) == [True] * 8, "STORE-5: a batch does not evict its own pages"
    there = read(backend, keys)
    assert there.count(False) > 0, f"STORE-8: {len(keys)} pages do not fit"
    stats = backend.stats()
    assert stats.object_bytes <= CAPACITY_BYTES, f"STORE-8: at most {CAPACITY_BYTES} bytes are kept, got {stats}"
    assert stats.removed >= there.count(False) - answers.count(False), f"STORE-8: what was evicted is counted: {stats}"


@pytest.mark.parametrize("after", [0, 1, 5, 100, PAGE_BYTES, 3 * PAGE_BYTES + 7], ids=lambda one: f"{one} bytes")
def test_a_connection_that_is_cut_within_a_page_gives_whole_pages_and_misses(
    engine: Engine, start: Start, open_on: Open, after: int
) -> None:
    require(engine, "one connection")
    process = start()
    with closing(Relay(process.settings.port)) as relay:
        backend = open_on(process, **process.options_through(relay.port), **process.engine.in_turn, retry_s=0)
        kept(backend)
        relay.cut(reply=after)
        answers = read(backend)
        relay.cut()
        whole = answers.index(False)
        assert not any(answers[whole:]), f"STORE-3: no page after the first that is cut, got {answers}"
        expected = range(after // (PAGE_BYTES + FRAME_BYTES), after // PAGE_BYTES + 1)
        assert whole in expected, f"STORE-3: expected {expected} whole pages in {after} bytes, got {whole}"
        until(lambda: all(read(backend)), "the next connection has all of them")


@pytest.mark.parametrize("after", [0, 1_000, PAGE_BYTES, 3 * PAGE_BYTES + 7], ids=lambda one: f"{one} bytes")
def test_a_connection_that_is_cut_within_a_write_leaves_whole_pages_or_none(
    engine: Engine, start: Start, open_on: Open, after: int
) -> None:
    require(engine, "one connection")
    process = start()
    with closing(Relay(process.settings.port)) as relay:
        backend = open_on(process, **process.options_through(relay.port), **process.engine.in_turn, retry_s=0)
        relay.cut(request=after)
        answers = kept(backend)
        relay.cut()
        assert False in answers, "STORE-4: not all pages came through"
        sound = open_on(process)
        there = read(sound)
        assert there == sound.has(KEYS), "STORE-4: an object is complete or absent"
        lost = [key for key, was, now in zip(KEYS, answers, there, strict=True) if was and not now]
        assert not lost, f"STORE-4: {lost} were answered as stored"
        until(lambda: all(kept(backend)), "the next connection stores the rest")
        assert read(backend) == [True] * len(KEYS), "STORE-4: every page can be written"
