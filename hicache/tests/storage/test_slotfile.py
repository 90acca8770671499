"""SlotFileStorage: slots that this process and others reuse, never the wrong bytes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces
from hicache.storage.slotfile import tables
from hicache.storage.slotfile.place import Place

from .conftest import PAGE_BYTES, SCOPE, Open, keys_of, page, put, take

SLOT_BYTES = 12_288
"""Of a page of PAGE_BYTES: whole blocks of 4 KiB."""

DIE_IN_A_SET = f"""
import os, signal
from hicache.storage.slotfile.backend import SlotFileStorage
storage = SlotFileStorage({SCOPE!r}, {{"root": ".", "capacity_slots": 2}})
storage._index.confirm = lambda pages: os.kill(os.getpid(), signal.SIGKILL)
storage.set(["a", "b"], [[memoryview(bytes({PAGE_BYTES}))]] * 2, ())
"""


def slots_file(root: Path, slot_bytes: int = SLOT_BYTES) -> Path:
    return root / SCOPE / f"slots-{slot_bytes}"


def while_reading(monkeypatch: pytest.MonkeyPatch, backend: Any, act: Any) -> None:
    """Once, when a backend is about to read the bytes of an object, something else happens."""
    read = backend._files.read

    def read_late(first: Place, pieces: Pieces) -> int:
        monkeypatch.setattr(backend._files, "read", read)
        act()
        found: int = read(first, pieces)
        return found

    monkeypatch.setattr(backend._files, "read", read_late)


def test_objects_outlive_the_instance_in_one_file_for_each_size(open_in: Open, tmp_path: Path) -> None:
    first = open_in("slotfile", capacity_slots=4)
    put(first, a=page(1), b=page(2), c=page(3, 4_096), d=b"")
    first.close()
    second = open_in("slotfile", capacity_slots=4)
    assert [take(second, "a"), take(second, "b"), take(second, "c", 4_096), take(second, "d", 0)] == [
        *(page(1), page(2), page(3, 4_096), b"")
    ], "FLOW-9: what was kept is there after a restart"
    assert slots_file(tmp_path).stat().st_size == 4 * SLOT_BYTES, "slots are there before they are written"
    assert slots_file(tmp_path, 4_096).exists(), "and pages of another size lie in another file"


def test_a_key_twice_in_a_batch_takes_one_slot(open_in: Open) -> None:
    backend, source = open_in("slotfile", capacity_slots=2), [memoryview(page(1))]
    assert backend.set(["a", "a"], [source, source], ()) == [True, True], "STORE-5: the second finds the first"
    assert put(backend, b=page(2)) == [True], "the other slot is free again"
    assert backend.has(["a", "b"]) == [True, True], "STORE-8: so nothing had to go"


def test_what_is_being_read_is_not_removed(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, answers = open_in("slotfile", capacity_slots=1), list[bool]()
    put(backend, a=page(1))
    while_reading(monkeypatch, backend, lambda: answers.extend(put(backend, b=page(2))))
    assert take(backend, "a") == page(1), "STORE-8: who has begun to read gets it whole"
    assert answers == [False], "STORE-8: the only slot was being read"
    assert put(backend, b=page(2)) == [True], "and afterwards it may go"


@pytest.mark.parametrize("verify", [True, False])
def test_a_slot_that_another_process_reuses_is_no_data(
    open_in: Open, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    mine, theirs = (open_in("slotfile", capacity_slots=1, verify=verify) for _ in range(2))
    put(mine, a=page(1))
    while_reading(monkeypatch, mine, lambda: put(theirs, b=page(2)))
    assert take(mine, "a") is None, "STORE-3: by then the slot holds another object"
    assert mine.stats().misses == {"absent": 1}, f"it is gone, not damaged: {mine.stats()}"
    assert take(mine, "b") == page(2), "STORE-8: what took its place is untouched"
    while_reading(monkeypatch, mine, lambda: (theirs.clear(), put(theirs, b=page(3))))
    assert take(mine, "b") is None, "STORE-3: the row is another, though key and slot are the same"
    assert take(mine, "b") == page(3), "STORE-3: and is read next"


def test_what_another_process_changed_is_seen(open_in: Open) -> None:
    mine, theirs = (open_in("slotfile", capacity_slots=4) for _ in range(2))
    put(mine, a=page(1), b=page(2))
    assert take(mine, "a") == page(1), "from now on this process knows where it is"
    theirs.clear()
    put(theirs, c=page(3), a=page(4))
    assert mine.has(["a", "b", "c"]) == [True, False, True], "STORE-3: what was remembered is not believed"
    assert take(mine, "a") == page(4), "STORE-3: the bytes that are there now"


def damage(path: Path, size: int | None, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes([old[0] ^ 1]))
        if size is not None:
            file.truncate(size)


@pytest.mark.parametrize(("size", "reason"), [(PAGE_BYTES - 1, "short"), (None, "corrupt")])
def test_a_damaged_object_is_a_miss_and_goes(open_in: Open, tmp_path: Path, size: int | None, reason: str) -> None:
    backend = open_in("slotfile", capacity_slots=2)
    put(backend, a=page(1))
    damage(slots_file(tmp_path), size, 77)
    assert take(backend, "a") is None, "STORE-3: these are not the bytes that were kept"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: counted with its reason: {backend.stats()}"
    assert backend.has(["a"]) == [False], "PF13: a damaged object is removed by the get that found it"
    assert put(backend, a=page(2)) == [True], "PF13: so it can be written anew"
    assert take(backend, "a") == page(2), "PF13: and read"


def test_one_damaged_page_spoils_no_other_of_its_batch(open_in: Open, tmp_path: Path) -> None:
    backend, keys, size = open_in("slotfile", capacity_slots=8), keys_of(8), 4_096
    contents = [page(number, size) for number in range(8)]
    backend.set(keys, [[memoryview(content)] for content in contents], ())
    damage(slots_file(tmp_path, size), None, 3 * size)
    targets = [bytearray(size) for _ in keys]
    got = backend.get(keys, [[memoryview(target)] for target in targets], ())
    assert got == [number != 3 for number in range(8)], "STORE-3: the answer is page by page"
    right = [target == content for target, content in zip(targets, contents, strict=True)]
    assert right == got, "STORE-3: those that were answered True are there, though all were read in one go"


def test_what_a_dead_writer_reserved_is_free_again(open_in: Open, tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", DIE_IN_A_SET], cwd=tmp_path, check=False)
    assert dead.returncode < 0, f"the writer is killed by a signal, got {dead.returncode}"
    backend = open_in("slotfile", capacity_slots=2)
    assert backend.has(["a", "b"]) == [False, False], "STORE-10: a page that was not confirmed is not visible"
    assert put(backend, c=page(1), d=page(2)) == [True, True], "STORE-4: both of its slots are free"


def test_what_a_live_writer_reserved_is_let_be(open_in: Open) -> None:
    mine = open_in("slotfile", capacity_slots=1)
    slots, _ = mine._index.reserve(SLOT_BYTES, 1)
    theirs = open_in("slotfile", capacity_slots=1)
    assert put(theirs, a=page(1)) == [False], "STORE-10: the only slot is being written by another process"
    assert mine._index.confirm([Place("b", 0, SLOT_BYTES, slots[0], PAGE_BYTES, 0)]) == [True], "which confirms it"
    assert theirs.has(["b"]) == [True], "STORE-10: now it is visible"


def test_a_write_that_fails_leaves_nothing(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_in("slotfile", capacity_slots=1)

    def fail(*_: object) -> None:
        raise OSError(EIO, os.strerror(EIO))

    with monkeypatch.context() as broken:
        broken.setattr(backend._files, "write", fail)
        assert put(backend, a=page(1)) == [False], "STORE-4: it was not written"
    assert backend.stats().refused == {"error": 1}, f"counted with its reason: {backend.stats()}"
    assert put(backend, b=page(2)) == [True], "STORE-4: its slot is free again"


def test_a_writer_that_was_taken_for_dead_confirms_nothing(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = (open_in("slotfile", capacity_slots=1) for _ in range(2))
    write = mine._files.write

    def write_late(first: Place, pieces: Pieces) -> None:
        theirs._index.reclaim(set())
        assert put(theirs, b=page(2)) == [True], "the slot is given to another"
        write(first, pieces)

    monkeypatch.setattr(mine._files, "write", write_late)
    assert put(mine, a=page(1)) == [False], "STORE-10: the slot was not this writer's any more"
    assert (mine.has(["a"]), take(mine, "b")) == ([False], None), "STORE-3: what it spoilt is found, and is not data"


def test_a_full_disk_makes_the_oldest_go(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    size, room = 1 << 20, 16
    backend = open_in("slotfile", capacity_slots=10_000)
    monkeypatch.setattr(backend._index, "_allocate", lambda _, first, count: first + count <= room)
    keys, source = keys_of(room + 1), [memoryview(page(1, size))]
    assert backend.set(keys, [source] * len(keys), ()) == [True] * room + [False], (
        "STORE-4: the disk has room for so many"
    )
    assert backend.stats().refused == {"full": 1}, f"counted with its reason: {backend.stats()}"
    assert put(backend, a=page(2, size)) == [True], "STORE-8: one makes room, where the disk has none"
    assert backend.has([keys[0], keys[1], "a"]) == [False, True, True], "STORE-8: the oldest"


def test_an_index_whose_head_is_zeros_is_made_anew(open_in: Open, tmp_path: Path) -> None:
    backend = open_in("slotfile", capacity_slots=8)
    put(backend, a=page(1))
    backend.close()
    index = tmp_path / SCOPE / "index.sqlite"
    index.write_bytes(bytes(4096) + index.read_bytes()[4096:])
    again = open_in("slotfile", capacity_slots=8)
    assert take(again, "a") is None, "STORE-3: the index does not know it any more"
    assert put(again, a=page(1)) == [True], "STORE-4: it can be stored again"


def test_an_index_that_is_removed_while_it_is_opened_is_made_anew(
    open_in: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, opened = tables.connect, list[sqlite3.Connection]()

    def connect_and_remove(path: Path, *arguments: Any) -> sqlite3.Connection:
        opened.append(connect(path, *arguments))
        if len(opened) == 1:
            tables.remove(path)
        return opened[-1]

    monkeypatch.setattr(tables, "connect", connect_and_remove)
    backend = open_in("slotfile", capacity_slots=8)
    assert put(backend, a=page(1)) == [True], "STORE-4: a page can be stored"
    assert (take(backend, "a"), len(opened)) == (page(1), 2), "STORE-4: it is in the index that was opened second"
    assert (tmp_path / SCOPE / "index.sqlite").exists(), "expected an index in the folder"


def lead_away(index: Path) -> None:
    index.unlink()
    index.symlink_to(index.parents[1] / "elsewhere")


def raise_version(index: Path) -> None:
    with closing(sqlite3.connect(index)) as database:
        database.execute("PRAGMA user_version = 3")


@pytest.mark.parametrize(("change", "said"), [(lead_away, "is a link"), (raise_version, "has version 3, expected 2")])
def test_an_index_that_is_a_link_or_has_another_version_is_refused(
    open_in: Open, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    open_in("slotfile", capacity_slots=2).close()
    change(tmp_path / SCOPE / "index.sqlite")
    with pytest.raises(ConfigurationError, match=said):
        open_in("slotfile", capacity_slots=2)
    assert not (tmp_path / "elsewhere").exists(), "expected no new file outside of the folder"
    assert not list((tmp_path / SCOPE / "writers").iterdir()), "nothing is left of who could not open it"


def test_pages_of_version_1_are_absent_and_their_slots_are_free(open_in: Open, tmp_path: Path) -> None:
    backend = open_in("slotfile", capacity_slots=2)
    put(backend, a=page(1), b=page(2))
    backend.close()
    with closing(sqlite3.connect(tmp_path / SCOPE / "index.sqlite")) as database:
        database.execute("PRAGMA user_version = 1")
    backend = open_in("slotfile", capacity_slots=2)
    assert backend.has(["a", "b"]) == [False, False], "STORE-13: their checksums do not name them"
    assert (take(backend, "a"), backend.stats().misses) == (None, {"absent": 1}), "a miss, and no error"
    assert put(backend, a=page(3), b=page(4)) == [True, True], "both can be written again"
    assert (take(backend, "a"), take(backend, "b")) == (page(3), page(4)), "and read"
    assert backend.stats().removed == 0, "into the slots that they had"


def test_a_folder_that_is_gone_can_be_closed(open_in: Open, tmp_path: Path) -> None:
    backend = open_in("slotfile", capacity_slots=2)
    put(backend, a=page(1))
    shutil.rmtree(tmp_path / SCOPE)
    backend.close()
    assert backend.has(["a"]) == [False], "it is closed"


# Whether objects exist: what a transaction that did not end has changed is not visible.

DIE_BEFORE_THE_END = f"""
import os, signal
from hicache.storage.slotfile.backend import SlotFileStorage
storage = SlotFileStorage({SCOPE!r}, {{"root": ".", "capacity_slots": 2}})
set_mark = storage._index._set_mark
storage._index._set_mark = lambda: (set_mark(), os.kill(os.getpid(), signal.SIGKILL))
storage.set(["b"], [[memoryview(bytes({PAGE_BYTES}))]], ())
"""


def statements_of(backend: Any, act: Callable[[], object]) -> list[str]:
    """What the tables are asked meanwhile."""
    statements = list[str]()
    backend._index._tables.set_trace_callback(statements.append)
    act()
    backend._index._tables.set_trace_callback(None)
    return statements


def test_existence_is_one_statement_for_all_keys(open_in: Open) -> None:
    backend, keys, answers = open_in("slotfile", capacity_slots=2), ["a", *keys_of(1_000)], list[bool]()
    put(backend, a=page(1))
    asked = [one for one in statements_of(backend, lambda: answers.extend(backend.has(keys))) if "objects" in one]
    assert answers == [True, *[False] * 1_000], "one of the keys is there"
    assert len(asked) == 1, f"one statement asks for all keys, got {len(asked)}"
    plan = backend._index._tables.execute(f"EXPLAIN QUERY PLAN {asked[0]}").fetchall()
    assert any("SEARCH objects USING INDEX" in row[3] for row in plan), f"which looks each up in an index: {plan}"
    asked = statements_of(backend, lambda: backend.has(["a"]))
    assert asked == ["SELECT mark FROM state"], f"a known key is looked up in memory: {asked}"


def test_the_object_of_a_killed_writer_is_not_there(open_in: Open, tmp_path: Path) -> None:
    mine = open_in("slotfile", capacity_slots=3)
    put(mine, a=page(1))
    dead = subprocess.run([sys.executable, "-c", DIE_BEFORE_THE_END], cwd=tmp_path, check=False)
    assert dead.returncode < 0, f"the writer is killed by a signal, got {dead.returncode}"
    assert mine.has(["a", "b"]) == [True, False], "STORE-10: a change that did not end is not visible"
    assert put(mine, c=page(3)) == [True], "and the next one is"
    assert mine.has(["a", "b", "c"]) == [True, False, True], "STORE-3: the tables know"


def test_the_file_of_names_of_an_earlier_version_is_removed(open_in: Open, tmp_path: Path) -> None:
    before = open_in("slotfile", capacity_slots=2)
    put(before, a=page(1))
    before.close()
    names = tmp_path / SCOPE / "names"
    names.write_bytes(bytes(64))
    after = open_in("slotfile", capacity_slots=2)
    assert after.has(["a", "b"]) == [True, False], "STORE-3: its objects are there"
    assert not names.exists(), "nothing reads its fingerprints"


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


def test_an_object_of_a_transaction_that_failed_is_not_there(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_in("slotfile", capacity_slots=4)
    reserve = backend._index.reserve

    def reserve_last(*told: int) -> Any:
        reserved = reserve(*told)
        failing.setattr(backend._index, "_tables", FailingTables(backend._index._tables))
        return reserved

    with monkeypatch.context() as failing:
        failing.setattr(backend._index, "reserve", reserve_last)
        assert put(backend, b=page(1)) == [False], "STORE-4: it was not confirmed"
    assert put(backend, c=page(2)) == [True], "STORE-4: the next one is"
    assert backend.has(["b", "c"]) == [False, True], "STORE-7: the first one never was"


# An index that is damaged is made anew, also while others use it.


def spoil_index(root: Path) -> None:
    """Overwrite each part of the index but its head with bytes that form no page of a database."""
    path = root / SCOPE / "index.sqlite"
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * (len(content) - 200))


def test_a_damaged_index_is_made_anew_by_the_process_that_meets_it(open_in: Open, tmp_path: Path) -> None:
    backend = open_in("slotfile", capacity_slots=4)
    put(backend, a=page(1))
    backend.close()
    spoil_index(tmp_path)
    backend = open_in("slotfile", capacity_slots=4)
    assert take(backend, "a") is None, "STORE-3: its objects are lost"
    assert put(backend, a=page(2)) == [True], "STORE-3: and can be written again"
    assert take(backend, "a") == page(2), "STORE-3: and read"


def test_an_index_that_another_process_made_anew_is_used(open_in: Open, tmp_path: Path) -> None:
    mine = open_in("slotfile", capacity_slots=4)
    put(mine, a=page(1))
    spoil_index(tmp_path)
    theirs = open_in("slotfile", capacity_slots=4)
    assert put(theirs, b=page(2)) == [True], "STORE-3: a process that opens it starts with an empty one"
    assert take(mine, "b") == page(2), "and who had the old one open goes on with the new one"
    assert put(mine, c=page(3)) == [True], "also to write"
    assert (take(theirs, "b"), take(theirs, "c")) == (page(2), page(3)), "which all others can read"
    assert theirs.stats().objects == mine.stats().objects == 2, "they share one index"
