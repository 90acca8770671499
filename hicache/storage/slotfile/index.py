"""SlotIndex: an index in SQLite of the slots of objects, of free slots and of reserved slots."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple

from hicache.storage.database import DamagedDatabaseError, changing
from hicache.storage.slotfile.place import MAX_OFFSET, Place
from hicache.storage.slotfile.tables import is_damage


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


MAX_KNOWN = 1 << 18
"""The most places in the memory cache, about 400 bytes each."""

START_BYTES, GROWTH_BYTES = 1 << 20, 1 << 24
"""The least and the most bytes by which a file grows at once, if the disk has room for them."""

MAX_TIME_NS = 1 << 62
"""Times of use above this are damaged."""

FIND = """
SELECT key, generation, slot_bytes, slot, length, checksum FROM objects
WHERE key IN (SELECT value FROM json_each(?))
"""

TOTALS = "SELECT COUNT(*), TOTAL(CASE typeof(length) WHEN 'integer' THEN length END) FROM objects"

Allocate = Callable[[int, int, int], bool]
"""Adds slots to a file: slot size, first new slot, number of slots. Returns whether the disk has room for them."""


class SlotIndex:
    """Objects, free slots and reserved slots. Every change is one transaction, so a crash loses no slot.

    Places are cached in memory until another process changes objects. This process does not evict pinned objects;
    another process may, which `unpin` reports.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        writer: str,
        capacity_slots: int,
        allocate: Allocate,
        is_current: Callable[[], bool],
    ) -> None:
        self._tables = connection
        self._is_current = is_current
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
        return [place is not None for place in self.find(keys)]

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
            found = [Place(*row) for row in self._tables.execute(FIND, (unknown,)).fetchall()]
            self._known.update((place.key, place) for place in found if place.is_sound)
            for place in found:
                if not place.is_sound:
                    self.remove(place)
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
        with self._lock, self._changing():
            self._read_last_use(slot_bytes)
            self._write_uses()
            slots = self._take_free(slot_bytes, count)
            slots += self._grow(slot_bytes, count - len(slots))
            evicted = self._evict(slot_bytes, count - len(slots))
            slots += evicted
            rows = [(slot_bytes, slot, self._writer) for slot in slots]
            self._tables.executemany("INSERT OR REPLACE INTO reserved VALUES (?, ?, ?)", rows)
            return Reserved(sorted(slots), len(evicted))

    def confirm(self, pages: Sequence[Place]) -> list[bool]:
        """Make written pages visible. False for a key that has an object already: its slot is freed."""
        with self._lock, self._changing():
            used_ns = self._use_times(len(pages))
            answers = [self._confirm_one(*each) for each in zip(pages, used_ns, strict=True)]
            if any(answers):
                self._set_mark()
            return answers

    def release(self, slot_bytes: int, slots: Sequence[int]) -> None:
        """Free reserved slots that were not written."""
        with self._lock, self._changing():
            for slot in slots:
                self._end_reservation(slot_bytes, slot)
                self._free(slot_bytes, slot)

    def remove(self, place: Place) -> None:
        """Remove an object, if it still exists."""
        with self._lock, self._changing():
            if self._tables.execute("DELETE FROM objects WHERE generation = ?", (place.generation,)).rowcount:
                if place.is_sound:
                    self._free(place.slot_bytes, place.slot)
                self._known.pop(place.key, None)
                self._set_mark()

    def clear(self) -> None:
        """Remove all objects."""
        with self._lock, self._changing():
            self._tables.execute("INSERT OR IGNORE INTO free SELECT slot_bytes, slot FROM objects")
            self._tables.execute("DELETE FROM objects")
            self._known.clear()
            self._set_mark()

    def reclaim(self, writers: set[str]) -> None:
        """Free the slots reserved by writers other than these."""
        with self._lock, self._changing():
            self._read_mark()
            alive = json.dumps(sorted(writers))
            dead = "FROM reserved WHERE writer NOT IN (SELECT value FROM json_each(?))"
            self._tables.execute(f"INSERT OR IGNORE INTO free SELECT slot_bytes, slot {dead}", (alive,))
            self._tables.execute(f"DELETE {dead}", (alive,))

    def totals(self) -> tuple[int, int]:
        """The number of objects, and of their bytes. Reads the whole table."""
        with self._lock:
            objects, object_bytes = self._tables.execute(TOTALS).fetchone()
            return objects, int(object_bytes)

    def close(self) -> None:
        """Write the last times of use for other processes, and close the tables."""
        with self._lock:
            try:
                with self._changing():
                    self._write_uses()
            finally:
                self._tables.close()

    def close_removed(self, remove: Callable[[], None]) -> None:
        """Remove the tables if they are current, while no process changes them, and close them unsaved.

        Raises sqlite3.OperationalError if another process holds a lock, with nothing changed.
        """
        with self._lock:
            if self._is_current():
                try:
                    self._tables.execute("BEGIN EXCLUSIVE")
                except sqlite3.Error as error:
                    if not is_damage(error):
                        raise
                remove()
            self._tables.close()

    def _read_mark(self) -> int:
        """The current mark. If another process has changed objects, clear the memory cache."""
        self._require_current()
        (mark,) = self._tables.execute("SELECT mark FROM state").fetchone() or (None,)
        if not (type(mark) is int and mark > 0):
            raise DamagedDatabaseError(f"expected a positive mark, got {mark!r}")
        if mark != self._mark:
            self._known.clear()
            self._mark = mark
        return self._mark

    def _require_current(self) -> None:
        """Raise DamagedDatabaseError if another process has replaced these tables, as they were damaged."""
        if not self._is_current():
            raise DamagedDatabaseError("these tables were removed or replaced")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One transaction, exclusive among all processes."""
        try:
            with changing(self._tables):
                # The process that replaces the tables holds this lock where it can get it.
                self._require_current()
                yield
        except BaseException:
            self._known.clear()
            raise

    def _set_mark(self) -> None:
        """Objects change: set a new random mark, so that all processes clear their memory caches.

        A mark of a transaction that failed must not recur.
        """
        self._read_mark()
        self._mark = 1 + secrets.randbits(62)
        self._tables.execute("UPDATE state SET mark = ?", (self._mark,))

    def _use_times(self, count: int) -> range:
        """`count` different times of use, now, and not before the last one that is known: a clock may go back."""
        first = max(time.time_ns(), self._last_ns + 1)
        self._last_ns = first + count
        return range(first, first + count)

    def _read_last_use(self, slot_bytes: int) -> None:
        """Find the last time of use of the objects of this slot size, by any process."""
        (last_ns,) = self._tables.execute(
            "SELECT MAX(used_ns) FROM objects WHERE slot_bytes = ? AND used_ns < ?", (slot_bytes, MAX_TIME_NS)
        ).fetchone()
        if type(last_ns) is int:
            self._last_ns = max(self._last_ns, last_ns)

    def _write_uses(self) -> None:
        uses = [(used_ns, generation) for generation, used_ns in self._used_ns.items()]
        self._tables.executemany("UPDATE objects SET used_ns = ? WHERE generation = ?", uses)
        self._used_ns.clear()

    def _free(self, slot_bytes: int, slot: int) -> None:
        self._tables.execute("INSERT OR IGNORE INTO free VALUES (?, ?)", (slot_bytes, slot))

    def _take_free(self, slot_bytes: int, count: int) -> list[int]:
        query = "SELECT slot FROM free WHERE slot_bytes = ? ORDER BY slot LIMIT ?"
        rows = self._tables.execute(query, (slot_bytes, count)).fetchall()
        self._tables.executemany(
            "DELETE FROM free WHERE slot_bytes = ? AND slot = ?", [(slot_bytes, slot) for (slot,) in rows]
        )
        slots = self._slots(slot_bytes)
        return [slot for (slot,) in rows if _is_number(slot, slots)]

    def _slots(self, slot_bytes: int) -> int:
        """The number of slots of a file. Raises DamagedDatabaseError."""
        row = self._tables.execute("SELECT slots FROM classes WHERE slot_bytes = ?", (slot_bytes,)).fetchone()
        slots: int = row[0] if row else 0
        if not _is_number(slots, MAX_OFFSET // slot_bytes):
            raise DamagedDatabaseError(f"expected the number of slots of {slot_bytes} bytes, got {slots!r}")
        return slots

    def _grow(self, slot_bytes: int, wanted: int) -> list[int]:
        """Add slots to a file: by more at once than are wanted, or by as many as a disk that is nearly full has."""
        slots, new = self._slots(slot_bytes), list[int]()
        ample = min(GROWTH_BYTES, max(START_BYTES, slots * slot_bytes)) // slot_bytes
        step = min(self._capacity_slots - slots, max(wanted, ample))
        while step > 0 and len(new) < wanted:
            if self._allocate(slot_bytes, slots, step):
                new.extend(range(slots, slots + step))
                slots += step
                step = min(step, self._capacity_slots - slots)
            else:
                step //= 2
        if new:
            self._tables.execute("INSERT OR REPLACE INTO classes VALUES (?, ?)", (slot_bytes, slots))
        for slot in new[wanted:]:
            self._free(slot_bytes, slot)
        return new[:wanted]

    def _evict(self, slot_bytes: int, wanted: int) -> list[int]:
        if wanted <= 0:
            return []
        held = {generation for pinned in self._pinned for generation in pinned.generations}
        oldest = self._tables.execute(
            "SELECT generation, CAST(key AS BLOB), slot FROM objects WHERE slot_bytes = ? ORDER BY used_ns LIMIT ?",
            (slot_bytes, wanted + len(held)),
        ).fetchall()
        victims = [row for row in oldest if row[0] not in held][:wanted]
        for generation, key, _ in victims:
            self._tables.execute("DELETE FROM objects WHERE generation = ?", (generation,))
            self._known.pop(_text(key), None)
        if victims:
            self._set_mark()
        slots = self._slots(slot_bytes)
        return [slot for _, _, slot in victims if _is_number(slot, slots)]

    def _confirm_one(self, page: Place, used_ns: int) -> bool:
        self._end_reservation(page.slot_bytes, page.slot)
        row = (page.key, page.slot_bytes, page.slot, page.length, page.checksum, used_ns)
        added = self._tables.execute("INSERT OR IGNORE INTO objects VALUES (NULL, ?, ?, ?, ?, ?, ?)", row).rowcount
        if not added:
            self._free(page.slot_bytes, page.slot)
        return bool(added)

    def _end_reservation(self, slot_bytes: int, slot: int) -> None:
        """End a reservation. Raises sqlite3.Error if this writer does not hold it any more."""
        row = (slot_bytes, slot, self._writer)
        mine = "DELETE FROM reserved WHERE slot_bytes = ? AND slot = ? AND writer = ?"
        if not self._tables.execute(mine, row).rowcount:
            raise sqlite3.IntegrityError(f"slot {slot} of {slot_bytes} bytes is not reserved by {self._writer}")


def _is_number(value: Any, end: int) -> bool:
    """Whether a value of the tables, which may be damaged, is a number from 0 to before `end`."""
    return type(value) is int and 0 <= value < end


def _text(key: bytes | None) -> str:
    """A key of the tables, which may be damaged."""
    return (key or b"").decode(errors="replace")
