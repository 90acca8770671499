"""STORE-8, STORE-9, STORE-16: the stored bytes are bounded, no page is copied in memory, nor any memory kept."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from errno import EIO
from pathlib import Path
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
import pytest

from hicache.storage.base import Pieces, StorageBackend
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import disk_bytes
from hicache.testing.storage.page_bytes import BLANK, Sheet, cut_evenly
from hicache.testing.storage.room import require_room
from hicache.testing.storage.subject import Place

from .names import page_keys

PAGE = 4096
ROOM = 64
LARGE = 1 << 18
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

INDEX_BYTES = 8 << 20
"""The most bytes that an index and its log may take."""


@pytest.fixture
def small(place: Place, tmp_path: Path) -> Iterator[Place]:
    """A place with room for 64 pages."""
    if not place.subject.is_bounded:
        pytest.skip(f"no option of {place.subject.name} sets its capacity: it cannot be limited")
    with closing(Place(place.subject, tmp_path, page_bytes=PAGE, capacity_bytes=ROOM * PAGE)) as opened:
        yield opened


@clause("STORE-8")
def test_capacity_is_bounded(small: Place) -> None:
    store = StorageDriver(small, forgets=True)
    keys = page_keys(6 * ROOM)
    for begin in range(0, len(keys), 8):
        store.set(keys[begin : begin + 8])
        kept = store.instances[0].stats().object_bytes
        assert kept <= ROOM * PAGE, f"STORE-8: {kept} bytes are kept, at most {ROOM * PAGE} may be"
    there = store.get_all(keys)
    assert sum(there) <= ROOM, f"STORE-8: {sum(there)} pages can be read, there is room for {ROOM}"
    assert sum(there) >= ROOM // 4, f"STORE-8: only {sum(there)} pages can be read, there is room for {ROOM}"
    found = store.instances[0].stats()
    assert found.removed + sum(found.refused.values()) > 0, f"STORE-8: expected removed or refused pages, got {found}"


@clause("STORE-8")
def test_files_stay_within_the_configured_capacity(small: Place, tmp_path: Path) -> None:
    room = ROOM * LARGE
    with closing(Place(small.subject, tmp_path, page_bytes=LARGE, capacity_bytes=room)) as place:
        store = StorageDriver(place, forgets=True)
        for prompt in range(12):
            store.set(page_keys(16, prompt=prompt))
        taken = disk_bytes(place.directory)
    assert taken <= room * 1.25 + INDEX_BYTES, f"STORE-8: room for {room} bytes, the files take {taken}"


@clause("STORE-8")
def test_pages_can_be_written_repeatedly_at_the_capacity(small: Place) -> None:
    store = StorageDriver(small, forgets=True)
    for key in page_keys(3 * ROOM):
        assert store.set([key]) == store.get([key]), f"STORE-8: {key} was kept, and is there at once, or was refused"
    store.clear()
    keys = page_keys(ROOM // 2, prompt=1)
    assert store.set(keys) == [True] * len(keys), "STORE-8: after a clear there is room"
    assert store.get(keys) == [True] * len(keys), "STORE-8: half of the room is enough for them"


@clause("STORE-4", "STORE-8")
def test_an_evicted_key_can_be_stored_again(small: Place) -> None:
    store = StorageDriver(small, forgets=True)
    keys, others = page_keys(3 * ROOM), iter(page_keys(3 * ROOM, prompt=1))
    for key in keys:
        store.set([key])
    gone = [key for key, is_there in zip(keys, store.get_all(keys), strict=True) if not is_there]
    assert gone, f"STORE-8: there is room for {ROOM} of {len(keys)} pages: expected some to be gone"
    for key in gone[:ROOM]:
        # A store that is full and evicts nothing takes neither.
        new, again = (store.set([one]) == [True] == store.get([one]) for one in (next(others), key))
        assert again == new, f"STORE-4: {key} was evicted: expected {new} as for a new key, got {again}"


@clause("STORE-8")
def test_capacity_is_bounded_after_reopening(small: Place) -> None:
    store = StorageDriver(small, forgets=True)
    keys = page_keys(4 * ROOM)
    for begin in range(0, len(keys), 16):
        store.set(keys[begin : begin + 16])
        store.reopen()
    there = store.get_all(keys)
    assert sum(there) <= ROOM, f"STORE-8: {sum(there)} pages can be read, there is room for {ROOM}"


@clause("STORE-8")
def test_a_page_larger_than_the_capacity_is_refused(small: Place) -> None:
    if not small.subject.counts_bytes:
        pytest.skip(f"the capacity of {small.subject.name} counts pages of any size: none is too large")
    store = StorageDriver(small, page_size=(ROOM + 1) * PAGE, forgets=True)
    assert store.set(page_keys(1)) == [False], "STORE-8: it cannot be kept"
    assert store.get(page_keys(1)) == [False], "STORE-8: it was not kept"


@clause("STORE-5", "STORE-8")
@pytest.mark.parametrize("is_old_first", [True, False], ids=["old and new", "new and old"])
def test_a_batch_keeps_what_it_answers_as_stored(small: Place, is_old_first: bool) -> None:
    store = StorageDriver(small, forgets=True)
    keys = page_keys(ROOM)
    for begin in range(0, ROOM, 8):
        store.set(keys[begin : begin + 8])
    for old, new in zip(keys[:8], page_keys(8, prompt=1), strict=True):
        batch = [old, new] if is_old_first else [new, old]
        answers = store.set(batch)
        there = store.has(batch)
        gone = [key for key, answer, is_there in zip(batch, answers, there, strict=True) if answer and not is_there]
        assert not gone, f"STORE-5: a batch at the full capacity answered that {gone} are stored, and has evicted them"


@clause("STORE-8")
def test_a_page_that_could_not_be_stored_takes_no_room(small: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(EIO, "a fault")

    store = StorageDriver(small, forgets=True)
    before, refused, after = page_keys(ROOM // 4), page_keys(ROOM, prompt=1), page_keys(ROOM // 4, prompt=2)
    store.set(before)
    with monkeypatch.context() as failing:
        for name in ("link", "rename", "replace"):
            failing.setattr(os, name, fail)
        answers = [answer for begin in range(0, ROOM, 8) for answer in store.set(refused[begin : begin + 8])]
    if any(answers):
        pytest.skip(f"{small.subject.name} stores pages without a link and without renaming a file")
    store.set(after)
    kept = store.has([*before, *after])
    assert all(kept), f"STORE-8: half of the room is enough for {len(kept)} pages, got {kept.count(True)}"


def most_memory(call: Callable[[], list[bool]]) -> int:
    """The peak of the bytes that a call allocates and frees again."""
    tracemalloc.start()
    try:
        answers = call()
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(answers), f"STORE-9: only what succeeds is measured, got {answers}"
    return most - left


@clause("STORE-9")
@pytest.mark.parametrize("pieces", [1, 32])
def test_no_page_is_copied_in_memory(place: Place, tmp_path: Path, pieces: int) -> None:
    require_room(place, 17, LARGE)
    with closing(Place(place.subject, tmp_path, page_bytes=LARGE)) as large:
        backend = large.open(large.scope("a"))
        first, keys = page_keys(1, prompt=1), page_keys(16)
        sheet = Sheet([cut_evenly(LARGE, pieces)] * 16)
        # Opens files and makes other allocations that happen only once.
        backend.set(first, sheet.pages[:1], [])
        backend.get(first, sheet.pages[:1], [])
        written, read = measured(backend, keys, sheet.pages)
    assert written < LARGE // 2, f"STORE-9: set of 16 pages of {LARGE} bytes needs no copy, got {written} bytes"
    assert read < LARGE // 2, f"STORE-9: get of 16 pages of {LARGE} bytes needs no copy, got {read} bytes"


def measured(backend: StorageBackend, keys: list[str], pages: list[list[memoryview]]) -> tuple[int, int]:
    """The peak memory of a set and of a get of these pages."""
    given: list[Pieces] = list(pages)
    return most_memory(lambda: backend.set(keys, given, [])), most_memory(lambda: backend.get(keys, given, []))


@pytest.fixture
def accepted(place: Place) -> tuple[StorageBackend, Rows]:
    """A backend, and memory for eight pages, 8 rows, that it has accepted."""
    require_room(place, 8)
    backend, memory = place.open(place.scope("a")), np.zeros((8, PAGE), dtype=np.uint8)
    if backend.register([memory.reshape(-1).data]) is not True:
        pytest.skip(f"{place.subject.name} accepts no memory of a cache: it gets memory of each call's own")
    return backend, memory


@clause("STORE-16")
def test_no_memory_of_a_call_is_kept(accepted: tuple[StorageBackend, Rows]) -> None:
    backend, memory = accepted
    for verb, prompt in (("set", 0), ("get", 0), ("get", 1)):
        rows = list(memory[:4])
        given, pages = [ref(row) for row in rows], [[row.data] for row in rows]
        getattr(backend, verb)(page_keys(4, prompt=prompt), pages, [])
        del rows, pages
        kept = sum(row() is not None for row in given)
        assert not kept, f"STORE-16: the {verb} has returned, and the memory of {kept} pages is kept"


@clause("STORE-16")
def test_no_memory_of_a_call_is_written_after_it(accepted: tuple[StorageBackend, Rows]) -> None:
    backend, memory = accepted
    pages = [[row.data] for row in memory]
    for prompt, begin in ((0, 0), (1, 4)):
        memory[:] = prompt + 1
        answers = backend.set(page_keys(4, prompt=prompt), pages[begin:][:4], [])
        assert answers == [True] * 4, f"STORE-3: there is room for all, got {answers}"
        assert backend.get(page_keys(4, prompt=prompt), pages[:4], []) == [True] * 4, "STORE-3: they were kept"
    # The memory of the first pages is another's from now on.
    memory[:4] = BLANK
    backend.get(page_keys(4), pages[4:], [])
    backend.has(page_keys(4))
    backend.close()
    assert (memory[:4] == BLANK).all(), "STORE-16: the memory of a get was written after it had returned"
    assert (memory[4:] == 1).all(), "STORE-3: the pages of the last get"
