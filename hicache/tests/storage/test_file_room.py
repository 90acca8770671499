"""FileStorage where room is short: what goes first, and who is spared."""

from __future__ import annotations

from typing import Any

import pytest

from hicache.storage import file as module
from hicache.storage.file import read_object

from .asking import put, take
from .conftest import Open
from .pages import PAGE_BYTES, page


def test_the_least_recently_used_of_all_processes_goes(open_in: Open) -> None:
    mine, theirs = (open_in("file", capacity_bytes=4 * PAGE_BYTES) for _ in range(2))
    put(mine, a=page(1), b=page(2))
    put(theirs, c=page(3), d=page(4))
    take(theirs, "a")
    assert put(mine, e=page(5), f=page(6)) == [True, True], "STORE-8: the oldest make room"
    assert mine.has(list("abcdef")) == [True, False, False, True, True, True], "STORE-8: a was read by the other one"
    take(theirs, "d")
    put(theirs, g=page(7))
    assert theirs.has(list("adefg")) == [False, True, True, True, True], "STORE-8: a is the oldest by now"
    stats = theirs.stats()
    assert (stats.objects, stats.object_bytes) == (4, 4 * PAGE_BYTES), f"STORE-8: both count together: {stats}"


def test_a_use_after_the_folder_was_read_counts(open_in: Open) -> None:
    mine, theirs = (open_in("file", capacity_bytes=3 * PAGE_BYTES) for _ in range(2))
    put(mine, a=page(1), b=page(2), c=page(3))
    put(mine, d=page(4))
    assert take(theirs, "b") == page(2), "a made room, and b is used"
    put(mine, e=page(5))
    assert mine.has(list("bcde")) == [True, False, True, True], "STORE-8: c was used least recently"


def test_an_object_that_came_after_the_folder_was_read_counts(open_in: Open) -> None:
    backend = open_in("file", capacity_bytes=3 * PAGE_BYTES)
    put(backend, a=page(1), b=page(2), c=page(3))
    put(backend, d=page(4))
    assert [take(backend, key) for key in "bc"] == [page(2), page(3)], "a made room, and b and c are used"
    put(backend, e=page(5))
    assert backend.has(list("bcde")) == [True, True, False, True], "STORE-8: d was used least recently"


def test_what_was_spared_is_still_the_oldest(open_in: Open) -> None:
    backend = open_in("file", capacity_bytes=2 * PAGE_BYTES)
    put(backend, a=page(1), b=page(2))
    assert put(backend, a=page(1), b=page(2), c=page(3)) == [True, True, False], "STORE-8: a batch spares its own"
    put(backend, d=page(4))
    assert backend.has(["a", "b", "d"]) == [False, True, True], "STORE-8: a was used before b"


def test_a_batch_does_not_push_out_its_own_pages(open_in: Open) -> None:
    backend = open_in("file", capacity_bytes=2 * PAGE_BYTES)
    put(backend, a=page(1))
    assert put(backend, a=page(1), b=page(2), c=page(3)) == [True, True, False], "STORE-8: there is room for two"
    assert backend.has(["a", "b", "c"]) == [True, True, False], "what was answered True is there"
    assert backend.stats().refused == {"full": 1}, f"counted with its reason: {backend.stats()}"


def test_what_no_capacity_can_hold_is_refused(open_in: Open) -> None:
    backend = open_in("file", capacity_bytes=PAGE_BYTES - 1)
    put(backend, b=page(2, 1))
    assert put(backend, a=page(1)) == [False], "STORE-8: a page is larger than the capacity"
    assert backend.has(["b"]) == [True], "STORE-8: so nothing has to go"


def test_an_object_is_whole_for_who_is_reading_it(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_in("file", capacity_bytes=PAGE_BYTES)
    put(backend, a=page(1))

    def read_late(file: int, pieces: Any, seed: int) -> Any:
        monkeypatch.setattr(module, "read_object", read_object)
        assert put(backend, b=page(2)) == [True], "a makes room while it is being read"
        return read_object(file, pieces, seed)

    monkeypatch.setattr(module, "read_object", read_late)
    assert take(backend, "a") == page(1), "STORE-8: who has begun to read gets it whole"
    assert backend.has(["a", "b"]) == [False, True], "and then it is gone"
