"""SlotIndex: which slot of which file has a page, kept in SQLite; and what changes it."""

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
    """Where an object lies, and what it should be.

    `generation`: unlike that of any other object that there ever was; 0 for a page in a slot that is still reserved.
    """

    key: str
    generation: int
    slot_bytes: int
    slot: int
    length: int
    checksum: int


class Reserved(NamedTuple):
    """Slots that are to be written, ascending; and how many objects went to make room."""

    slots: list[int]
    removed: int


class Loan(NamedTuple):
    """What is being read or counted on, and must stay: keys, where their objects lie, and the generations of those.

    `mark`: of the state that was seen.
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


VERSION = 1

PATIENCE_S = 60
"""Until a process that cannot write, because another does, gives up."""

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
"""`mark`: another one whenever objects change, and none twice. Each slot of a class is in one of the last three tables.
No generation comes twice: a slot that was given away and came back under the same key has another."""


def connect(path: Path, is_synced: bool) -> sqlite3.Connection:
    """Open the tables, and make them where there are none. One process at a time.

    Raises ConfigurationError when they are of another version, or cannot be opened.
    """
    connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
        connection.execute("PRAGMA mmap_size = 1073741824")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.Error as error:
        connection.close()
        raise ConfigurationError(f"storage option 'root': {path} cannot be used: {error}") from error
    if version not in (0, VERSION):
        connection.close()
        raise ConfigurationError(f"storage option 'root': {path} has version {version}, expected {VERSION}")
    return connection


MOST_KNOWN = 1 << 18
"""Places that are remembered, about 400 bytes each."""

GROWTH_BYTES = 1 << 24

FIND = """
SELECT key, generation, slot_bytes, slot, length, checksum FROM objects
WHERE key IN (SELECT value FROM json_each(?))
"""


Allocate = Callable[[int, int, int], bool]
"""Add slots to the file of a slot size, after its first so many; whether the disk has room for them."""


class SlotIndex:
    """Objects, free slots and reserved ones. Every change is one transaction, so a crash leaves no slot in between.

    What was looked up is remembered until another process changes objects. What is being read here is not given away
    here; another process may do so, which `give_back` tells. Whether an object is there is asked of the names, which
    say the same, or of the tables, where the names do not know.
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
        self._loans: list[Loan] = []
        self._used_ns: dict[int, int] = {}
        self._last_ns = 0

    def holds(self, keys: Sequence[str]) -> list[bool]:
        """Whether objects are there, key by key."""
        with self._lock:
            found = self._named(keys)
            if None not in found:
                return [bool(is_there) for is_there in found]
            unsure = [key for key, is_there in zip(keys, found, strict=True) if is_there is None]
            places = iter(self.find(unsure))
            return [next(places) is not None if is_there is None else is_there for is_there in found]

    def find(self, keys: Sequence[str]) -> list[Place | None]:
        """Where objects lie, key by key. One statement for all that is not remembered."""
        with self._lock:
            self._look()
            if len(self._known) + len(keys) > MOST_KNOWN:
                self._known.clear()
            places = list(map(self._known.get, keys))
            if all(places):
                return places
            unknown = json.dumps([key for key, place in zip(keys, places, strict=True) if place is None])
            self._known.update((row[0], Place(*row)) for row in self._tables.execute(FIND, (unknown,)))
            return list(map(self._known.get, keys))

    def borrow(self, keys: Sequence[str]) -> Loan:
        """As `find`; what is found is kept in its slot until it is given back, by this process at least."""
        with self._lock:
            # Seen before: what changes in between is looked at again when it is given back.
            mark = self._look()
            places = self.find(keys)
            self._loans.append(Loan(keys, places, [place.generation for place in places if place], mark))
            return self._loans[-1]

    def give_back(self, loan: Loan) -> bool:
        """End what `borrow` began, which is a use; whether all that was found then was there all the time."""
        with self._lock:
            self._loans = [other for other in self._loans if other is not loan]
            self._used_ns.update(zip(loan.generations, self._ticks(len(loan.generations)), strict=True))
            return self._look() == loan.mark or self.find(loan.keys) == loan.places

    def reserve(self, slot_bytes: int, count: int) -> Reserved:
        """Slots to write: free ones, new ones, then those of the least recently used objects; perhaps fewer."""
        with self._lock, self._changing() as change:
            tables = change.tables
            self._note_uses()
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
        """Make what was written visible; False where there was an object already, and the slot is free again."""
        with self._lock, self._changing() as change:
            used_ns = self._ticks(len(pages))
            answers = [self._confirm_one(*each) for each in zip(pages, used_ns, strict=True)]
            change.added.extend(page.key for page, is_new in zip(pages, answers, strict=True) if is_new)
            return answers

    def release(self, slot_bytes: int, slots: Sequence[int]) -> None:
        """Free reserved slots that were not written."""
        with self._lock, self._changing() as change:
            for slot in slots:
                self._take_back(slot_bytes, slot)
                change.tables.execute("INSERT INTO free VALUES (?, ?)", (slot_bytes, slot))

    def remove(self, place: Place) -> None:
        """Remove an object, unless it is gone."""
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
        """Free what all but these writers had reserved, and have the names say what the tables do."""
        with self._lock, self._changing() as change:
            tables = change.tables
            self._check_names(self._look())
            rows = tables.execute("SELECT slot_bytes, slot, writer FROM reserved").fetchall()
            for slot_bytes, slot, writer in rows:
                if writer not in writers:
                    tables.execute("DELETE FROM reserved WHERE slot_bytes = ? AND slot = ?", (slot_bytes, slot))
                    tables.execute("INSERT INTO free VALUES (?, ?)", (slot_bytes, slot))

    def totals(self) -> tuple[int, int]:
        """Objects and their bytes. Reads the whole table."""
        with self._lock:
            objects, object_bytes = self._tables.execute("SELECT COUNT(*), TOTAL(length) FROM objects").fetchone()
            return objects, int(object_bytes)

    def close(self) -> None:
        """Tell the others what was used, and let go of the tables."""
        with self._lock:
            try:
                with self._changing():
                    self._note_uses()
            finally:
                self._tables.close()
                self._names.close()

    def _named(self, keys: Sequence[str]) -> Sequence[bool | None]:
        """What the names know."""
        with suppress(OSError):
            return self._names.look_up(keys, self._look()) or [None] * len(keys)
        return [None] * len(keys)

    def _look(self) -> int:
        """The mark of the objects; what was remembered is forgotten when another process changed them."""
        (mark,) = self._tables.execute("SELECT mark FROM state").fetchone()
        if mark != self._mark:
            self._known.clear()
            self._mark = mark
        return self._mark

    @contextmanager
    def _changing(self) -> Iterator[Change]:
        """One transaction, which nobody else's overlaps."""
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
        """Say that objects changed."""
        for key in change.removed:
            self._known.pop(key, None)
        before = self._look()
        after = self._new_mark()
        is_along = False
        with suppress(OSError):
            is_along = self._names.change(before, after, change.added, change.removed) and not self._names.is_crowded
        if not is_along:
            self._make_names(after)

    def _new_mark(self) -> int:
        """Mark a change of objects. A mark of a transaction that failed comes no second time: the names may have it."""
        self._look()
        self._mark = 1 + secrets.randbits(62)
        self._tables.execute("UPDATE state SET mark = ?", (self._mark,))
        return self._mark

    def _check_names(self, mark: int) -> None:
        """Make the names anew unless they say what the tables do."""
        with suppress(OSError):
            if self._names.mark == mark:
                return
        self._make_names(mark)

    def _make_names(self, mark: int) -> None:
        """Have the names say what the tables do. Where the disk fails they are behind, and nobody believes them."""
        with suppress(OSError):
            (objects,) = self._tables.execute("SELECT COUNT(*) FROM objects").fetchone()
            self._names.make(mark, objects, (key for (key,) in self._tables.execute("SELECT key FROM objects")))

    def _ticks(self, count: int) -> range:
        """The time, so often; never the same twice."""
        first = max(time.time_ns(), self._last_ns + 1)
        self._last_ns = first + count
        return range(first, first + count)

    def _note_uses(self) -> None:
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
        held = {generation for loan in self._loans for generation in loan.generations}
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
        self._take_back(page.slot_bytes, page.slot)
        row = (page.key, page.slot_bytes, page.slot, page.length, page.checksum, used_ns)
        added = self._tables.execute("INSERT OR IGNORE INTO objects VALUES (NULL, ?, ?, ?, ?, ?, ?)", row).rowcount
        if not added:
            self._tables.execute("INSERT INTO free VALUES (?, ?)", (page.slot_bytes, page.slot))
        return bool(added)

    def _take_back(self, slot_bytes: int, slot: int) -> None:
        """End a reservation. Raises sqlite3.Error when it is no longer this writer's."""
        row = (slot_bytes, slot, self._writer)
        mine = "DELETE FROM reserved WHERE slot_bytes = ? AND slot = ? AND writer = ?"
        if not self._tables.execute(mine, row).rowcount:
            raise sqlite3.IntegrityError(f"slot {slot} of {slot_bytes} bytes is not reserved by {self._writer}")
