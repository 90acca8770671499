"""Backends in this process and on disk: what each of them does with objects, capacities, scopes and wrong options."""

from __future__ import annotations

from typing import Any

import pytest

from hicache.errors import ConfigurationError

from .conftest import PAGE_BYTES, Open, page, put, take

TWO_PAGES: dict[str, dict[str, Any]] = {
    "memory": {"capacity_bytes": 2 * PAGE_BYTES},
    "file": {"capacity_bytes": 2 * PAGE_BYTES},
    "slotfile": {"capacity_slots": 2},
}
"""Options for room for two pages."""

each = pytest.mark.parametrize("name", TWO_PAGES)


@each
def test_an_object_that_is_there_is_kept(open_in: Open, name: str) -> None:
    backend = open_in(name, **TWO_PAGES[name])
    put(backend, a=page(1))
    assert put(backend, a=page(2)) == [True], "STORE-5: there is an object under this key"
    assert (backend.stats().written, backend.stats().present) == (1, 1), f"STORE-5: counted so: {backend.stats()}"
    assert take(backend, "a") == page(1), "STORE-5: the old bytes"


@each
def test_the_least_recently_used_make_room(open_in: Open, name: str) -> None:
    backend = open_in(name, **TWO_PAGES[name])
    put(backend, a=page(1), b=page(2))
    take(backend, "a")
    assert put(backend, c=page(3)) == [True], "STORE-8: the oldest makes room"
    assert backend.has(["a", "b", "c"]) == [True, False, True], "STORE-8: b was used least recently"
    put(backend, a=page(1))
    assert put(backend, d=page(4)) == [True], "STORE-8: the oldest makes room"
    assert backend.has(["a", "c", "d"]) == [True, False, True], "STORE-8: a was used by a set"
    stats = backend.stats()
    assert (stats.objects, stats.object_bytes, stats.removed) == (2, 2 * PAGE_BYTES, 2), f"two of four: {stats}"


@each
def test_a_batch_does_not_push_out_its_own_pages(open_in: Open, name: str) -> None:
    backend = open_in(name, **TWO_PAGES[name])
    put(backend, a=page(1))
    assert put(backend, a=page(1), b=page(2), c=page(3)) == [True, True, False], "STORE-8: there is room for two"
    assert backend.has(["a", "b", "c"]) == [True, True, False], "what was answered True is there"
    assert backend.stats().refused == {"full": 1}, f"counted with its reason: {backend.stats()}"


@pytest.mark.parametrize("name", ["memory", "file"])
def test_what_no_capacity_can_hold_is_refused(open_in: Open, name: str) -> None:
    backend = open_in(name, capacity_bytes=PAGE_BYTES - 1)
    put(backend, b=page(2, 1))
    assert put(backend, a=page(1)) == [False], "STORE-8: a page is larger than the capacity"
    assert backend.has(["b"]) == [True], "STORE-8: so nothing has to go"
    assert backend.stats().refused == {"full": 1}, f"it is counted as full: {backend.stats()}"


@pytest.mark.parametrize(("size", "reason"), [(PAGE_BYTES + 1, "short"), (PAGE_BYTES - 1, "long")])
@each
def test_an_object_of_another_size_is_a_miss_and_goes(open_in: Open, name: str, size: int, reason: str) -> None:
    backend = open_in(name, **TWO_PAGES[name])
    put(backend, a=page(1), b=page(2))
    assert take(backend, "a", size) is None, f"STORE-3: the object is not a page of {size} bytes"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: counted with its reason: {backend.stats()}"
    assert backend.has(["a", "b"]) == [False, True], "it can be written anew, and its neighbour stays"


@each
def test_clear_removes_this_scope_alone(open_in: Open, name: str) -> None:
    mine, theirs = open_in(name, **TWO_PAGES[name]), open_in(name, "other-1", **TWO_PAGES[name])
    for backend in (mine, theirs):
        put(backend, a=page(1), b=page(2))
    assert mine.clear(), "all can be removed"
    assert (mine.has(["a", "b"]), mine.stats().objects) == ([False, False], 0), "STORE-7: nothing is left"
    assert (take(theirs, "a"), theirs.stats().objects) == (page(1), 2), "STORE-7: another scope is untouched"
    assert put(mine, c=page(3), d=page(4)) == [True, True], "and all room is free"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("file", {"root": 1}, "'root': got 1 (int)"),
        ("file", {"root": "/dev/null/x"}, "'/dev/null/x'"),
        ("file", {"capacity_bytes": 0}, "'capacity_bytes': got 0 (int)"),
        ("file", {"fsync": 1}, "'fsync': got 1 (int)"),
        ("file", {"path": "x"}, "has no option 'path', which is 'x'; known: capacity_bytes fsync lock_timeout_s root"),
        ("slotfile", {}, "'capacity_slots': got nothing"),
        ("slotfile", {"capacity_slots": True}, "'capacity_slots': got True (bool)"),
        ("slotfile", {"capacity_slots": 1, "verify": 0}, "'verify': got 0 (int)"),
        ("slotfile", {"capacity_slots": 1, "root": ""}, "'root': got '' (str)"),
    ],
)
def test_options_that_cannot_be_are_named(open_in: Open, name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_in(name, **options)
    assert said in str(raised.value), f"CONF-4: expected {said!r} in {raised.value}"
