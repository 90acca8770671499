"""What cannot be opened is refused with ConfigurationError, and leaves no file open."""

from __future__ import annotations

import gc
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.registry import open_backend

from .conftest import PAGE_BYTES, SCOPE, Open, keys_of, page, put, take

OPTIONS: dict[str, dict[str, Any]] = {"file": {}, "slotfile": {"capacity_slots": 20}}

Hinder = Callable[[Path], None]


def put_folder(name: str) -> Hinder:
    return lambda folder: (folder / name).mkdir(parents=True)


def put_file(name: str) -> Hinder:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"something else\n" * 1000)

    return write


def put_database(folder: Path) -> None:
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "index.sqlite")) as tables, tables:
        tables.execute("CREATE TABLE letters (sender TEXT)")
        tables.execute("INSERT INTO letters VALUES ('a friend')")


HINDERED: list[tuple[str, str, Hinder]] = [
    ("file", "a folder in the place of the lock", put_folder("lock")),
    ("file", "a file among the writers", put_file("writers/stray")),
    ("file", "a file in the place of the writers", put_file("writers")),
    ("slotfile", "a folder in the place of the lock", put_folder("lock")),
    ("slotfile", "a file among the writers", put_file("writers/stray")),
    ("slotfile", "a folder in the place of the index", put_folder("index.sqlite")),
    ("slotfile", "another file in the place of the index", put_file("index.sqlite")),
    ("slotfile", "another database in the place of the index", put_database),
]


def open_files() -> int:
    # What earlier tests left to the collector may not be closed meanwhile.
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(("name", "hindrance", "hinder"), HINDERED, ids=[f"{one[0]}: {one[1]}" for one in HINDERED])
def test_what_is_in_the_way_is_refused(tmp_path: Path, name: str, hindrance: str, hinder: Hinder) -> None:
    hinder(tmp_path / SCOPE)
    before, files = open_files(), sorted(path for path in tmp_path.rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in files]
    with pytest.raises(ConfigurationError, match=SCOPE):
        open_backend(name, SCOPE, {"root": str(tmp_path), **OPTIONS[name]})
    assert open_files() == before, f"{hindrance}: expected no file that stays open"
    assert [path.read_bytes() for path in files] == contents, f"{hindrance}: files of others were changed"


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("root", ["a\0b", "/proc/nowhere", "x" * 300], ids=["zero", "not writable", "long"])
def test_a_root_that_cannot_be_is_refused(name: str, root: str) -> None:
    before = open_files()
    with pytest.raises(ConfigurationError, match="root"):
        open_backend(name, SCOPE, {"root": root, **OPTIONS[name]})
    assert open_files() == before, "expected no file that stays open"


@pytest.mark.parametrize("call", ["mkdir", "open", "pwrite", "posix_fallocate"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_full_disk_is_refused_or_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    before = open_files()
    with monkeypatch.context() as full:
        full.setattr(os, call, fail)
        with suppress(ConfigurationError):
            open_backend(name, SCOPE, {"root": str(tmp_path), **OPTIONS[name]}).close()
    assert open_files() == before, "expected no file that stays open"


@pytest.mark.parametrize("name", OPTIONS)
def test_a_file_among_the_objects_is_let_be(open_in: Open, tmp_path: Path, name: str) -> None:
    for stray in ("ab", "stray"):
        put_file(stray)(tmp_path / SCOPE)
    backend = open_in(name, **OPTIONS[name])
    assert put(backend, a=page(1)) == [True], "pages are stored beside it"
    assert take(backend, "a") == page(1), "and read"
    assert backend.clear(), "and removed"


def test_any_capacity_is_one(open_in: Open) -> None:
    backend = open_in("slotfile", capacity_slots=10**30)
    assert put(backend, a=page(1)) == [True], "a page is stored where the capacity is beyond any disk"


@pytest.mark.parametrize("is_reopened", [False, True], ids=["open", "reopened"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("file", {"capacity_bytes": 10 * PAGE_BYTES}), ("slotfile", {"capacity_slots": 10})],
    ids=["file", "slotfile"],
)
def test_a_clock_that_went_back_makes_no_new_page_the_oldest(
    open_in: Open, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], is_reopened: bool
) -> None:
    backend, keys = open_in(name, **options), keys_of(20)
    for number, key in enumerate(keys[:10]):
        assert put(backend, **{key: page(number)}) == [True], "there is room"
    if is_reopened:
        backend.close()
        backend = open_in(name, **options)
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 10**17)
    for number, key in enumerate(keys[10:], 10):
        assert put(backend, **{key: page(number)}) == [True], "the oldest makes room"
    there = backend.has(keys)
    assert there == [False] * 10 + [True] * 10, f"STORE-8: expected the ten new pages, got {there}"
