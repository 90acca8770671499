"""SlotIndex: what is in which slot, as all processes of a folder see it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import NamedTuple

MOST_KNOWN = 1 << 18
"""Places that are remembered, about 400 bytes each."""

GROWTH_BYTES = 1 << 24

FIND = """
SELECT key, generation, slot_bytes, slot, length, checksum FROM objects
WHERE key IN (SELECT value FROM json_each(?))
"""


class Place(NamedTuple):
    """Where an object lies, and what it should be. `generation`: unlike that of any other object there ever was."""

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


class Written(NamedTuple):
    """A page that lies in a reserved slot by now."""

    key: str
    slot: int
    length: int
    checksum: int


Allocate = Callable[[int, int], bool]
"""Make the file of a slot size so many slots long; whether there was room for it."""


class SlotIndex:
    """Objects, free slots and reserved ones. Every change is one transaction, so a crash leaves no slot in between.

    What was looked up is remembered until another process changes anything. What is being read here is not given away
    here; another process may do so, which `give_back` tells.
    """

    def __init__(self, connection: sqlite3.Connection, writer: str, capacity_slots: int, allocate: Allocate) -> None:
        self._tables = connection
        self._writer = writer
        self._capacity_slots = capacity_slots
        self._allocate = allocate
        self._lock = RLock()
        self._known: dict[str, Place] = {}
        self._version = -1
        self._reading: Counter[int] = Counter()
        self._used_ns: dict[int, int] = {}
        self._last_ns = 0

    def find(self, keys: Sequence[str]) -> list[Place | None]:
        """Where objects lie, key by key. One statement for all that is not remembered."""
        with self._lock:
            (version,) = self._tables.execute("PRAGMA data_version").fetchone()
            if version != self._version or len(self._known) + len(keys) > MOST_KNOWN:
                self._known.clear()
                self._version = version
            unknown = [key for key in keys if key not in self._known]
            if unknown:
                self._known.update((row[0], Place(*row)) for row in self._tables.execute(FIND, (json.dumps(unknown),)))
            return [self._known.get(key) for key in keys]

    def borrow(self, keys: Sequence[str]) -> list[Place | None]:
        """As `find`; what is found is kept in its slot until it is given back, by this process at least."""
        with self._lock:
            places = self.find(keys)
            self._reading.update([place.generation for place in places if place])
            return places

    def give_back(self, places: Sequence[Place | None]) -> list[bool]:
        """End what `borrow` began; whether each object was there all the time. Those that were are used by this."""
        with self._lock:
            held = [place for place in places if place]
            self._reading.subtract([place.generation for place in held])
            self._reading = +self._reading
            now = self.find([place.key for place in held])
            kept = {place.generation for place in now if place}
            for place in held:
                self._used_ns[place.generation] = self._tick()
            return [place is not None and place.generation in kept for place in places]

    def reserve(self, slot_bytes: int, count: int) -> Reserved:
        """Slots to write: free ones, new ones, then those of the least recently used objects; perhaps fewer."""
        with self._lock, self._changing() as tables:
            self._note_uses()
            rows = tables.execute(
                "SELECT slot FROM free WHERE slot_bytes = ? ORDER BY slot LIMIT ?", (slot_bytes, count)
            )
            slots = [slot for (slot,) in rows]
            tables.executemany("DELETE FROM free WHERE slot_bytes = ? AND slot = ?", [(slot_bytes, s) for s in slots])
            slots += self._grow(slot_bytes, count - len(slots))
            evicted = self._evict(slot_bytes, count - len(slots))
            slots += evicted
            rows_reserved = [(slot_bytes, slot, self._writer) for slot in slots]
            tables.executemany("INSERT INTO reserved VALUES (?, ?, ?)", rows_reserved)
            return Reserved(sorted(slots), len(evicted))

    def confirm(self, slot_bytes: int, pages: Sequence[Written]) -> list[bool]:
        """Make what was written visible; False where there was an object already, and the slot is free again."""
        with self._lock, self._changing():
            return [self._confirm_one(slot_bytes, page) for page in pages]

    def release(self, slot_bytes: int, slots: Sequence[int]) -> None:
        """Free reserved slots that were not written."""
        with self._lock, self._changing():
            for slot in slots:
                self._free(slot_bytes, slot)

    def remove(self, place: Place) -> None:
        """Remove an object, unless it is gone."""
        with self._lock, self._changing() as tables:
            removed = tables.execute("DELETE FROM objects WHERE generation = ?", (place.generation,)).rowcount
            if removed:
                tables.execute("INSERT INTO free VALUES (?, ?)", (place.slot_bytes, place.slot))
                self._known.pop(place.key, None)

    def clear(self) -> None:
        """Remove all objects."""
        with self._lock, self._changing() as tables:
            self._known.clear()
            tables.execute("INSERT INTO free SELECT slot_bytes, slot FROM objects")
            tables.execute("DELETE FROM objects")

    def reclaim(self, writers: set[str]) -> None:
        """Free what all but these writers had reserved."""
        with self._lock, self._changing() as tables:
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

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which nobody else's overlaps."""
        self._tables.execute("BEGIN IMMEDIATE")
        try:
            yield self._tables
            self._tables.execute("COMMIT")
        except BaseException:
            self._known.clear()
            if self._tables.in_transaction:
                self._tables.execute("ROLLBACK")
            raise

    def _tick(self) -> int:
        """The time; never the same twice."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        return self._last_ns

    def _note_uses(self) -> None:
        uses = [(used_ns, generation) for generation, used_ns in self._used_ns.items()]
        self._tables.executemany("UPDATE objects SET used_ns = ? WHERE generation = ?", uses)
        self._used_ns.clear()

    def _grow(self, slot_bytes: int, wanted: int) -> list[int]:
        row = self._tables.execute("SELECT slots FROM classes WHERE slot_bytes = ?", (slot_bytes,)).fetchone()
        slots = row[0] if row else 0
        step = min(self._capacity_slots - slots, max(wanted, GROWTH_BYTES // slot_bytes))
        if wanted <= 0 or step <= 0 or not self._allocate(slot_bytes, slots + step):
            return []
        self._tables.execute("INSERT OR REPLACE INTO classes VALUES (?, ?)", (slot_bytes, slots + step))
        new = list(range(slots, slots + step))
        self._tables.executemany("INSERT INTO free VALUES (?, ?)", [(slot_bytes, slot) for slot in new[wanted:]])
        return new[:wanted]

    def _evict(self, slot_bytes: int, wanted: int) -> list[int]:
        if wanted <= 0:
            return []
        oldest = self._tables.execute(
            "SELECT generation, key, slot FROM objects WHERE slot_bytes = ? ORDER BY used_ns LIMIT ?",
            (slot_bytes, wanted + len(self._reading)),
        )
        victims = [row for row in oldest if row[0] not in self._reading][:wanted]
        for generation, key, _ in victims:
            self._tables.execute("DELETE FROM objects WHERE generation = ?", (generation,))
            self._known.pop(key, None)
        return [slot for _, _, slot in victims]

    def _confirm_one(self, slot_bytes: int, page: Written) -> bool:
        self._free(slot_bytes, page.slot)
        row = (page.key, slot_bytes, page.slot, page.length, page.checksum, self._tick())
        added = self._tables.execute("INSERT OR IGNORE INTO objects VALUES (NULL, ?, ?, ?, ?, ?, ?)", row).rowcount
        if added:
            self._tables.execute("DELETE FROM free WHERE slot_bytes = ? AND slot = ?", (slot_bytes, page.slot))
        return bool(added)

    def _free(self, slot_bytes: int, slot: int) -> None:
        """Take back a slot of this writer's. Raises sqlite3.Error when it is no longer the writer's."""
        row = (slot_bytes, slot, self._writer)
        mine = "DELETE FROM reserved WHERE slot_bytes = ? AND slot = ? AND writer = ?"
        if not self._tables.execute(mine, row).rowcount:
            raise sqlite3.IntegrityError(f"slot {slot} of {slot_bytes} bytes is not reserved by {self._writer}")
        self._tables.execute("INSERT INTO free VALUES (?, ?)", (slot_bytes, slot))
