"""The names of a slot file's objects: asked instead of the tables, and believed only when they say the same."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from .asking import put
from .conftest import Open
from .pages import PAGE_BYTES, SCOPE, keys_of, page

DIE_BEFORE_THE_END = f"""
import os, signal
from hicache.storage.slotfile.backend import SlotFileStorage
storage = SlotFileStorage({SCOPE!r}, {{"root": ".", "capacity_slots": 2}})
change = storage._index._names.change
storage._index._names.change = lambda *told: (change(*told), os.kill(os.getpid(), signal.SIGKILL))
storage.set(["b"], [[memoryview(bytes({PAGE_BYTES}))]], ())
"""


def names_of(root: Path) -> Path:
    return root / SCOPE / "names"


def no_room(*_: object) -> None:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


def statements_of(backend: Any, act: Callable[[], object]) -> list[str]:
    """What the tables are asked meanwhile."""
    statements = list[str]()
    backend._index._tables.set_trace_callback(statements.append)
    act()
    backend._index._tables.set_trace_callback(None)
    return statements


def test_existence_asks_the_names_and_no_table(open_in: Open) -> None:
    backend, keys, answers = open_in("slotfile", capacity_slots=2), ["a", *keys_of(1_000)], list[bool]()
    put(backend, a=page(1))
    asked = statements_of(backend, lambda: answers.extend(backend.has(keys)))
    assert answers == [True, *[False] * 1_000], "one of the keys is there"
    assert asked == ["SELECT mark FROM state"], f"the names know, while they are of this state: {asked}"


def test_existence_is_one_statement_where_the_names_do_not_know(open_in: Open, tmp_path: Path) -> None:
    backend, keys, answers = open_in("slotfile", capacity_slots=2), ["a", *keys_of(1_000)], list[bool]()
    put(backend, a=page(1))
    names_of(tmp_path).write_bytes(b"")
    asked = [one for one in statements_of(backend, lambda: answers.extend(backend.has(keys))) if "objects" in one]
    assert answers == [True, *[False] * 1_000], "one of the keys is there"
    assert len(asked) == 1, f"one statement asks for all keys, got {len(asked)}"
    plan = backend._index._tables.execute(f"EXPLAIN QUERY PLAN {asked[0]}").fetchall()
    assert any("SEARCH objects USING INDEX" in row[3] for row in plan), f"which looks each up in an index: {plan}"
    put(backend, b=page(2))
    asked = statements_of(backend, lambda: backend.has(keys))
    assert len(asked) == 1, f"the next change makes the names anew: {asked}"


def test_names_that_ran_ahead_of_a_killed_writer_are_not_believed(open_in: Open, tmp_path: Path) -> None:
    mine = open_in("slotfile", capacity_slots=3)
    put(mine, a=page(1))
    dead = subprocess.run([sys.executable, "-c", DIE_BEFORE_THE_END], cwd=tmp_path, check=False)
    assert dead.returncode < 0, f"the writer is killed by a signal, got {dead.returncode}"
    assert mine.has(["a", "b"]) == [True, False], "STORE-10: a change that did not end is not visible"
    assert put(mine, c=page(3)) == [True], "and the next one finds the names wrong"
    assert len(statements_of(mine, lambda: mine.has(["a", "b", "c"]))) == 1, "which are right again"
    assert mine.has(["a", "b", "c"]) == [True, False, True], "STORE-3: and say what the tables do"


def test_names_of_another_boot_are_made_anew(open_in: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = open_in("slotfile", capacity_slots=2)
    put(before, a=page(1))
    before.close()
    monkeypatch.setattr("hicache.storage.slotfile.name_table.BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("another")
    after = open_in("slotfile", capacity_slots=2)
    assert len(statements_of(after, lambda: after.has(["a", "b"]))) == 1, "they were made when it was opened"
    assert after.has(["a", "b"]) == [True, False], "STORE-3: from the tables, which survive a loss of power"


def test_names_that_find_no_room_are_not_asked(open_in: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = open_in("slotfile", capacity_slots=2)
    put(backend, a=page(1))
    names_of(tmp_path).write_bytes(b"")
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", no_room)
        assert put(backend, b=page(2)) == [True], "STORE-4: there is room for the page"
        assert backend.has(["a", "b", "c"]) == [True, True, False], "STORE-3: the tables know"


class FailingTables:
    """The connection of an index, on a disk that takes no transaction."""

    def __init__(self, tables: sqlite3.Connection) -> None:
        self._tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._tables.execute(statement, *parameters)


def test_names_of_a_transaction_that_failed_are_never_believed(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_in("slotfile", capacity_slots=4)
    reserve = backend._index.reserve

    def reserve_last(*told: int) -> Any:
        reserved = reserve(*told)
        failing.setattr(backend._index, "_tables", FailingTables(backend._index._tables))
        return reserved

    with monkeypatch.context() as failing:
        failing.setattr(backend._index, "reserve", reserve_last)
        assert put(backend, b=page(1)) == [False], "STORE-4: it was not confirmed, after the names had been changed"
    with monkeypatch.context() as failing:
        failing.setattr(backend._index._names, "_put_header", no_room)
        assert put(backend, c=page(2)) == [True], "STORE-4: the next one is, while the names cannot be changed"
    assert backend.has(["b", "c"]) == [False, True], "STORE-7: what the names say is of a state that never was"


def test_names_are_written_whole_where_the_system_writes_less(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, keys, source = open_in("slotfile", capacity_slots=64), keys_of(64), [memoryview(page(1, 1))]
    pwritev, preadv, pread = os.pwritev, os.preadv, os.pread
    monkeypatch.setattr(os, "pwritev", lambda file, pieces, offset: pwritev(file, [pieces[0][:9]], offset))
    monkeypatch.setattr(os, "preadv", lambda file, pieces, offset: preadv(file, [pieces[0][:9]], offset))
    monkeypatch.setattr(os, "pread", lambda file, size, offset: pread(file, min(size, 9), offset))
    assert backend.set(keys, [source] * 64, ()) == [True] * 64, "nine bytes at a time are enough"
    assert backend.has(keys) == [True] * 64, "STORE-3: each object has its name"
    assert len(statements_of(backend, lambda: backend.has(keys))) == 1, "and no table was asked"
