"""STORE-3 to STORE-8: threads and processes that write, read and clear concurrently."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from typing import Any, TypeVar

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.room import require_room
from hicache.testing.storage.subject import Place
from hicache.testing.storage.writers import Task, Writers, reaches_others, task_of

from .names import page_keys

Result = TypeVar("Result")

LARGE = 1 << 18
ROOM = 8


@pytest.fixture
def large(place: Place, tmp_path: Path) -> Iterator[StorageDriver]:
    """A scope with a capacity of eight large pages, if the backend can be limited."""
    require_room(place, ROOM, LARGE)
    with closing(Place(place.subject, tmp_path, page_bytes=LARGE, capacity_bytes=ROOM * LARGE)) as opened:
        yield StorageDriver(opened, forgets=True)


def at_once(*calls: Callable[[], Result]) -> list[Result]:
    """Run each function in its own thread; returns the results. Raises the error of any of them."""
    begin = Barrier(len(calls))

    def run(call: Callable[[], Result]) -> Result:
        begin.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]


def read_until(store: StorageDriver, backend: StorageBackend, keys: list[str], done: Event, seed: int) -> None:
    """Read random pages until `done` is set, and compare the bytes of each hit."""
    dice = random.Random(seed)
    sheet = store.sheet(keys[:2])
    while not done.is_set():
        asked = dice.sample(keys, 2)
        for page, (key, answer) in enumerate(zip(asked, backend.get(asked, sheet.pages, []), strict=True)):
            # Compared outside of the assert: in CI pytest would spend minutes on the difference of two large pages.
            is_right = not answer or sheet.read(page) == store.bytes_of(key, 0)
            assert is_right, f"STORE-8: {key} was read, with other bytes"


@clause("STORE-8")
@pytest.mark.parametrize("instances", [1, 2])
def test_no_object_is_removed_while_it_is_read(large: StorageDriver, instances: int) -> None:
    writer, reader = large.instances[0], large.open() if instances > 1 else large.instances[0]
    keys, done = page_keys(3 * ROOM), Event()

    def write() -> None:
        try:
            for turn in range(120):
                key = keys[turn % len(keys)]
                writer.set([key], large.source([key], 0).pages, [])
        finally:
            done.set()

    at_once(write, *(partial(read_until, large, reader, keys, done, seed) for seed in (1, 2)))


@clause("STORE-4", "STORE-8")
def test_without_checksums_an_object_that_another_instance_replaces_is_not_read(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = replace(place.subject, options={**place.subject.options, "verify": False})
    require_room(place, ROOM, LARGE)
    with closing(Place(subject, tmp_path, page_bytes=LARGE, capacity_bytes=ROOM * LARGE)) as opened:
        try:
            store = StorageDriver(opened, forgets=True)
        except ConfigurationError:
            pytest.skip(f"{subject.name} has no option `verify`, which leaves out checksums")
        keys, others, other = page_keys(ROOM), page_keys(2 * ROOM, prompt=1), store.open()
        store.set(keys)
        sheet, source = store.sheet(keys[:2]), store.source(others, 1)
        before_reads(monkeypatch, lambda: other.set(others, source.pages, []))
        answers = store.instances[0].get(keys[:2], sheet.pages, [])
        for page, answer in enumerate(answers):
            is_right = not answer or sheet.read(page) == store.bytes_of(keys[page], 0)
            assert is_right, f"STORE-4: {keys[page]} was replaced while it was read, and came with other bytes"


def before_reads(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something once, before the next read from a file."""
    actions = [action]

    def first(call: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any) -> Any:
            if actions:
                actions.pop()()
            return call(*arguments)

        return read

    for name in ("preadv", "pread", "readv", "read"):
        monkeypatch.setattr(os, name, first(getattr(os, name)))


@clause("STORE-4")
@pytest.mark.parametrize("instances", [1, 2])
def test_two_threads_that_write_one_key_leave_one_page(large: StorageDriver, instances: int) -> None:
    backends = [large.instances[0], large.open() if instances > 1 else large.instances[0]]
    for number in range(20):
        key = f"both/{number}"
        sources = [large.source([key], version).pages for version in (0, 1)]
        answers = at_once(*(partial(backends[version].set, [key], sources[version], []) for version in (0, 1)))
        assert answers == [[True], [True]], f"STORE-4: a page of {key} is there for both, got {answers}"
        for version in (0, 1):
            large.model.was_interrupted(key, version)
        large.get([key])
        large.get([key], instance=len(large.instances) - 1)


@clause("STORE-7")
def test_pages_cleared_while_they_are_read_and_written_are_whole_or_missing(large: StorageDriver) -> None:
    backend, keys, done = large.instances[0], page_keys(ROOM // 2), Event()

    def write_and_clear() -> None:
        try:
            for turn in range(60):
                backend.set(keys, large.source(keys, 0).pages, [])
                assert turn % 2 or backend.clear(), "STORE-7: expected clear to return True while others read"
        finally:
            done.set()

    at_once(write_and_clear, lambda: read_until(large, backend, keys, done, 1))
    large.model.was_cleared(True)
    for key in keys:
        large.model.was_interrupted(key, 0)
    large.set(keys, 1)
    large.get(keys)


@clause("STORE-3")
def test_threads_that_read_different_pages_get_their_own(store: StorageDriver) -> None:
    require_room(store.place, 4 * 16)
    backend = store.instances[0]

    def ask(number: int) -> None:
        keys, sheet = page_keys(16, prompt=number), store.sheet(page_keys(16))
        source = store.source(keys, number)
        for _ in range(3):
            assert backend.set(keys, source.pages, []) == [True] * 16, "STORE-3: there is room for all"
            assert backend.has(keys) == [True] * 16, "STORE-3: they were kept"
            assert backend.get(keys, sheet.pages, []) == [True] * 16, "STORE-3: they were kept"
            for page, key in enumerate(keys):
                is_right = sheet.read(page) == store.bytes_of(key, number)
                assert is_right, f"STORE-3: {key} came with other bytes"

    at_once(*(partial(ask, number) for number in range(4)))


@clause("STORE-4", "STORE-5")
def test_processes_that_write_the_same_keys_leave_whole_pages(store: StorageDriver, writers: Writers) -> None:
    if not reaches_others(store, writers):
        pytest.skip(f"what one process keeps in {store.place.subject.name}, no other can see")
    require_room(store.place, 120)
    tasks = [task_of(store, "shared", version=version, count=120, batch=7 + version) for version in range(3)]
    keys = tasks[0].keys
    store.model.forgets = True
    started = [writers.start(task) for task in tasks]
    while not all(writer.has_ended for writer in started):
        _may_write(store, tasks)
        store.get(keys[:100])
        writers.process_next()
    _may_write(store, tasks)
    store.model.forgets = False
    for writer in started:
        writers.wait_for_end(writer)
        for key, answer in zip(keys, writer.answers, strict=True):
            store.model.was_set(key, writer.task.version, answer)
    assert store.get_all(keys) == [True] * len(keys), "STORE-4: each was kept by one of three"


def _may_write(store: StorageDriver, tasks: Sequence[Task]) -> None:
    """Writers are under way: each may write each of its keys, also one that another of them has written meanwhile."""
    for task in tasks:
        for key in task.keys:
            store.model.was_interrupted(key, task.version)
