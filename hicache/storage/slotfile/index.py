"""SlotIndex: an index in SQLite of the slots of objects, of free slots and of reserved slots."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from hicache.errors import ConfigurationError
from hicache.storage.slotfile.name_table import NameTable


class Place(NamedTuple):
    """The slot of an object, and its expected length and checksum.

    `generation`: unique among all objects that ever existed; 0 for a page in a slot that is still reserved.
    """

    key: str
    generation: int
    slot_bytes: int
    slot: int
    length: int
    checksum: int


class Reserved(NamedTuple):
    """Slots to write, ascending. `removed`: how many objects were evicted for them."""

    slots: list[int]
    removed: int


class Pinned(NamedTuple):
    """Objects that this process must not evict, as they are being read or written: keys, places and generations.

    `mark`: of the state of the index in which they were found.
    """

    keys: Sequence[str]
    places: Sequence[Place | None]
    generations: Sequence[int]
    mark: int


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction, and the keys of the objects that it adds and removes."""

    tables: sqlite3.Connection
    added: list[str]
    removed: list[str]


VERSION = 2
"""In version 1 the checksum of a page did not depend on its name."""

BUSY_TIMEOUT_S = 60
"""How long a process waits for the write lock of another process."""

TABLES = """
CREATE TABLE state (mark INTEGER NOT NULL);
INSERT INTO state VALUES (1);
CREATE TABLE classes (slot_bytes INTEGER PRIMARY KEY, slots INTEGER NOT NULL);
CREATE TABLE free (slot_bytes INTEGER, slot INTEGER, PRIMARY KEY (slot_bytes, slot)) WITHOUT ROWID;
CREATE TABLE reserved (
    slot_bytes INTEGER, slot INTEGER, writer TEXT NOT NULL, PRIMARY KEY (slot_bytes, slot)
) WITHOUT ROWID;
CREATE TABLE objects (
    generation INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    slot_bytes INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    length INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    used_ns INTEGER NOT NULL
);
CREATE INDEX objects_by_use ON objects (slot_bytes, used_ns);
"""
"""`mark`: a new, unique value after each change of objects. Each slot of a class is in one of the last three tables.
Generations are unique: a slot that was freed and reused for the same key has another generation."""


FORGET = """
INSERT INTO free SELECT slot_bytes, slot FROM objects;
DELETE FROM objects;
UPDATE state SET mark = mark + 1;
"""
"""Removes all objects. The name table, which has the old mark, is out of date."""


def connect(path: Path, is_synced: bool) -> sqlite3.Connection:
    """Open the tables, and create them if they do not exist. Called by one process at a time.

    Raises ConfigurationError when they have another version, or cannot be opened.
    """
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
        connection.execute("PRAGMA mmap_size = 1073741824")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        if version == 1:
            connection.executescript(f"BEGIN; {FORGET} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.Error as error:
        connection.close()
        raise ConfigurationError(f"storage option 'root': {path} cannot be used: {error}") from error
    if version not in (0, 1, VERSION):
        connection.close()
        raise ConfigurationError(f"storage option 'root': {path} has version {version}, expected {VERSION}")
    return connection


MAX_KNOWN = 1 << 18
"""The most places in the memory cache, about 400 bytes each."""

GROWTH_BYTES = 1 << 24

FIND = """
SELECT key, generation, slot_bytes, slot, length, checksum FROM objects
WHERE key IN (SELECT value FROM json_each(?))
"""


Allocate = Callable[[int, int, int], bool]
"""Adds slots to a file: slot size, first new slot, number of slots. Returns whether the disk has room for them."""


class SlotIndex:
    """Objects, free slots and reserved slots. Every change is one transaction, so a crash loses no slot.

    Places are cached in memory until another process changes objects. This process does not evict pinned objects;
    another process may, which `unpin` reports. `holds` asks the name table, which has the same objects, and the tables
    for names that the name table cannot decide.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        names: NameTable,
        writer: str,
        capacity_slots: int,
        allocate: Allocate,
    ) -> None:
        self._tables = connection
        self._names = names
        self._writer = writer
        self._capacity_slots = capacity_slots
        self._allocate = allocate
        self._lock = RLock()
        self._known: dict[str, Place] = {}
        self._mark = 0
        self._pinned: list[Pinned] = []
        self._used_ns: dict[int, int] = {}
        self._last_ns = 0

    def holds(self, keys: Sequence[str]) -> list[bool]:
        """Whether each key has an object."""
        with self._lock:
            found = self._named(keys)
            if None not in found:
                return [bool(is_there) for is_there in found]
            unsure = [key for key, is_there in zip(keys, found, strict=True) if is_there is None]
            places = iter(self.find(unsure))
            return [next(places) is not None if is_there is None else is_there for is_there in found]

    def find(self, keys: Sequence[str]) -> list[Place | None]:
        """The place of each key's object, or None. All uncached keys are looked up in one statement."""
        with self._lock:
            self._read_mark()
            if len(self._known) + len(keys) > MAX_KNOWN:
                self._known.clear()
            places = list(map(self._known.get, keys))
            if all(places):
                return places
            unknown = json.dumps([key for key, place in zip(keys, places, strict=True) if place is None])
            self._known.update((row[0], Place(*row)) for row in self._tables.execute(FIND, (unknown,)))
            return list(map(self._known.get, keys))

    def pin(self, keys: Sequence[str]) -> Pinned:
        """As `find`, and pin what is found: this process does not evict it until it is unpinned."""
        with self._lock:
            # The mark is read before the lookup: a change in between makes `unpin` look again.
            mark = self._read_mark()
            places = self.find(keys)
            self._pinned.append(Pinned(keys, places, [place.generation for place in places if place], mark))
            return self._pinned[-1]

    def unpin(self, pinned: Pinned) -> bool:
        """Unpin objects, and mark them as used. Returns whether all of them stayed in their slots the whole time."""
        with self._lock:
            self._pinned = [other for other in self._pinned if other is not pinned]
            self._used_ns.update(zip(pinned.generations, self._use_times(len(pinned.generations)), strict=True))
            return self._read_mark() == pinned.mark or self.find(pinned.keys) == pinned.places

    def reserve(self, slot_bytes: int, count: int) -> Reserved:
        """Reserve up to `count` slots: free ones, then new ones, then those of the least recently used objects."""
        with self._lock, self._changing() as change:
            tables = change.tables
            self._write_uses()
            rows = tables.execute(
                "SELECT slot FROM free WHERE slot_bytes = ? ORDER BY slot LIMIT ?", (slot_bytes, count)
            )
            slots = [slot for (slot,) in rows]
            tables.executemany("DELETE FROM free WHERE slot_bytes = ? AND slot = ?", [(slot_bytes, s) for s in slots])
            slots += self._grow(slot_bytes, count - len(slots))
            evicted = self._evict(slot_bytes, count - len(slots), change)
            slots += evicted
            rows_reserved = [(slot_bytes, slot, self._writer) for slot in slots]
            tables.executemany("INSERT INTO reserved VALUES (?, ?, ?)", rows_reserved)
            return Reserved(sorted(slots), len(evicted))

    def confirm(self, pages: Sequence[Place]) -> list[bool]:
        """Make written pages visible. False for a key that has an object already: its slot is freed."""
        with self._lock, self._changing() as change:
            used_ns = self._use_times(len(pages))
            answers = [self._confirm_one(*each) for each in zip(pages, used_ns, strict=True)]
            change.added.extend(page.key for page, is_new in zip(pages, answers, strict=True) if is_new)
            return answers

    def release(self, slot_bytes: int, slots: Sequence[int]) -> None:
        """Free reserved slots that were not written."""
        with self._lock, self._changing() as change:
            for slot in slots:
                self._end_reservation(slot_bytes, slot)
                change.tables.execute("INSERT INTO free VALUES (?, ?)", (slot_bytes, slot))

    def remove(self, place: Place) -> None:
        """Remove an object, if it still exists."""
        with self._lock, self._changing() as change:
            if change.tables.execute("DELETE FROM objects WHERE generation = ?", (place.generation,)).rowcount:
                change.tables.execute("INSERT INTO free VALUES (?, ?)", (place.slot_bytes, place.slot))
                change.removed.append(place.key)

    def clear(self) -> None:
        """Remove all objects."""
        with self._lock, self._changing() as change:
            change.tables.execute("INSERT INTO free SELECT slot_bytes, slot FROM objects")
            change.tables.execute("DELETE FROM objects")
            self._known.clear()
            self._make_names(self._new_mark())

    def reclaim(self, writers: set[str]) -> None:
        """Free the slots reserved by writers other than these, and rebuild the name table if it is out of date."""
        with self._lock, self._changing() as change:
            tables = change.tables
            self._check_names(self._read_mark())
            rows = tables.execute("SELECT slot_bytes, slot, writer FROM reserved").fetchall()
            for slot_bytes, slot, writer in rows:
                if writer not in writers:
                    tables.execute("DELETE FROM reserved WHERE slot_bytes = ? AND slot = ?", (slot_bytes, slot))
                    tables.execute("INSERT INTO free VALUES (?, ?)", (slot_bytes, slot))

    def totals(self) -> tuple[int, int]:
        """The number of objects, and of their bytes. Reads the whole table."""
        with self._lock:
            objects, object_bytes = self._tables.execute("SELECT COUNT(*), TOTAL(length) FROM objects").fetchone()
            return objects, int(object_bytes)

    def close(self) -> None:
        """Write the last times of use for other processes, and close the tables."""
        with self._lock:
            try:
                with self._changing():
                    self._write_uses()
            finally:
                self._tables.close()
                self._names.close()

    def _named(self, keys: Sequence[str]) -> Sequence[bool | None]:
        """The answers of the name table, None where it has none."""
        with suppress(OSError):
            return self._names.look_up(keys, self._read_mark()) or [None] * len(keys)
        return [None] * len(keys)

    def _read_mark(self) -> int:
        """The current mark. If another process has changed objects, clear the memory cache."""
        (mark,) = self._tables.execute("SELECT mark FROM state").fetchone()
        if mark != self._mark:
            self._known.clear()
            self._mark = mark
        return self._mark

    @contextmanager
    def _changing(self) -> Iterator[Change]:
        """One transaction, exclusive among all processes."""
        self._tables.execute("BEGIN IMMEDIATE")
        try:
            change = Change(self._tables, [], [])
            yield change
            if change.added or change.removed:
                self._publish(change)
            self._tables.execute("COMMIT")
        except BaseException:
            self._known.clear()
            if self._tables.in_transaction:
                self._tables.execute("ROLLBACK")
            raise

    def _publish(self, change: Change) -> None:
        """Set a new mark, and apply the change to the name table."""
        for key in change.removed:
            self._known.pop(key, None)
        before = self._read_mark()
        after = self._new_mark()
        is_along = False
        with suppress(OSError):
            is_along = (
                self._names.change(before, after, change.added, change.removed) and not self._names.needs_more_buckets
            )
        if not is_along:
            self._make_names(after)

    def _new_mark(self) -> int:
        """Set a new random mark: the name table may have the mark of a failed transaction, which must not recur."""
        self._read_mark()
        self._mark = 1 + secrets.randbits(62)
        self._tables.execute("UPDATE state SET mark = ?", (self._mark,))
        return self._mark

    def _check_names(self, mark: int) -> None:
        """Rebuild the name table unless it has this mark."""
        with suppress(OSError):
            if self._names.mark == mark:
                return
        self._make_names(mark)

    def _make_names(self, mark: int) -> None:
        """Rebuild the name table from the tables. If the disk fails, its mark is out of date, and it is not used."""
        with suppress(OSError):
            (objects,) = self._tables.execute("SELECT COUNT(*) FROM objects").fetchone()
            self._names.make(mark, objects, (key for (key,) in self._tables.execute("SELECT key FROM objects")))

    def _use_times(self, count: int) -> range:
        """`count` different times of use, now."""
        first = max(time.time_ns(), self._last_ns + 1)
        self._last_ns = first + count
        return range(first, first + count)

    def _write_uses(self) -> None:
        uses = [(used_ns, generation) for generation, used_ns in self._used_ns.items()]
        self._tables.executemany("UPDATE objects SET used_ns = ? WHERE generation = ?", uses)
        self._used_ns.clear()

    def _grow(self, slot_bytes: int, wanted: int) -> list[int]:
        row = self._tables.execute("SELECT slots FROM classes WHERE slot_bytes = ?", (slot_bytes,)).fetchone()
        slots = row[0] if row else 0
        step = min(self._capacity_slots - slots, max(wanted, GROWTH_BYTES // slot_bytes))
        if wanted <= 0 or step <= 0 or not self._allocate(slot_bytes, slots, step):
            return []
        self._tables.execute("INSERT OR REPLACE INTO classes VALUES (?, ?)", (slot_bytes, slots + step))
        new = list(range(slots, slots + step))
        self._tables.executemany("INSERT INTO free VALUES (?, ?)", [(slot_bytes, slot) for slot in new[wanted:]])
        return new[:wanted]

    def _evict(self, slot_bytes: int, wanted: int, change: Change) -> list[int]:
        if wanted <= 0:
            return []
        held = {generation for pinned in self._pinned for generation in pinned.generations}
        oldest = self._tables.execute(
            "SELECT generation, key, slot FROM objects WHERE slot_bytes = ? ORDER BY used_ns LIMIT ?",
            (slot_bytes, wanted + len(held)),
        )
        victims = [row for row in oldest if row[0] not in held][:wanted]
        for generation, key, _ in victims:
            self._tables.execute("DELETE FROM objects WHERE generation = ?", (generation,))
            change.removed.append(key)
        return [slot for _, _, slot in victims]

    def _confirm_one(self, page: Place, used_ns: int) -> bool:
        self._end_reservation(page.slot_bytes, page.slot)
        row = (page.key, page.slot_bytes, page.slot, page.length, page.checksum, used_ns)
        added = self._tables.execute("INSERT OR IGNORE INTO objects VALUES (NULL, ?, ?, ?, ?, ?, ?)", row).rowcount
        if not added:
            self._tables.execute("INSERT INTO free VALUES (?, ?)", (page.slot_bytes, page.slot))
        return bool(added)

    def _end_reservation(self, slot_bytes: int, slot: int) -> None:
        """End a reservation. Raises sqlite3.Error if this writer does not hold it any more."""
        row = (slot_bytes, slot, self._writer)
        mine = "DELETE FROM reserved WHERE slot_bytes = ? AND slot = ? AND writer = ?"
        if not self._tables.execute(mine, row).rowcount:
            raise sqlite3.IntegrityError(f"slot {slot} of {slot_bytes} bytes is not reserved by {self._writer}")
