"""Store: objects that outlive the caches of a process; a test reads, corrupts and counts them here."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a backend: the verb, the full keys, and the keys of the preceding pages."""

    verb: str
    keys: tuple[str, ...]
    prefix_keys: tuple[str, ...]


@dataclass(slots=True)
class Faults:
    """The faults from now on.

    `refused`: full keys that `set` refuses. `failing_gets`, `failing_sets`: how many of the next pages fail.
    `raising`: verbs that raise, which a backend must not do.
    """

    refused: set[str] = field(default_factory=set)
    failing_gets: int = 0
    failing_sets: int = 0
    raising: set[str] = field(default_factory=set)


class Store:
    """Objects by full key: scope, slash, key. Thread-safe.

    `objects`: the present objects. `written`: every key that ever had a whole object. `offered`: every key that was
    passed to `set`. `has_refused`: whether a `set` was refused. `calls`: all calls so far, oldest first.
    `moved_pieces`: pieces of memory that pages were read from or written to; `stray_pieces`: those outside of the
    registered memory.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.empty()

    def empty(self) -> None:
        """Remove all objects, records and faults."""
        with self._lock:
            self.objects: dict[str, bytes] = {}
            self.written: set[str] = set()
            self.offered: set[str] = set()
            self.has_refused = False
            self.moved_pieces = self.stray_pieces = 0
            self.calls: list[Call] = []
            self.faults = Faults()
            self._corrupted: dict[str, str] = {}

    def corrupt(self, keys: Iterable[str], reason: str = "absent") -> None:
        """Lose or damage objects that are present, which a read detects but `has` does not."""
        with self._lock:
            self._corrupted.update((key, reason) for key in keys if key in self.objects)

    def restore(self, contents: Mapping[str, bytes]) -> None:
        """Restore objects to their contents, and undo all losses and damage."""
        with self._lock:
            self.objects.update(contents)
            self._corrupted.clear()

    def readable(self, keys: Iterable[str]) -> list[bool]:
        """Which objects can be read whole, key by key. `has` does not show this."""
        with self._lock:
            return [key in self.objects and key not in self._corrupted for key in keys]

    def was_written(self, key: str) -> bool:
        """Whether a key ever had a whole object."""
        with self._lock:
            return key in self.written

    def has(self, key: str) -> bool:
        """Whether an object seems to be present."""
        with self._lock:
            return key in self.objects

    def get(self, key: str, size: int) -> tuple[bytes, str]:
        """An object of `size` bytes, or the reason why it cannot be read; then it is removed."""
        with self._lock:
            reason = self._reason(key, size)
            content = self.objects.pop(key, b"") if reason else self.objects[key]
            self._corrupted.pop(key, None)
            return content, reason

    def set(self, key: str, content: bytes) -> str:
        """Store an object if the key has none: `written`, `present` or `refused`."""
        with self._lock:
            self.offered.add(key)
            if key in self.objects:
                return "present"
            is_failing = self.faults.failing_sets > 0
            self.faults.failing_sets -= is_failing
            if is_failing or key in self.faults.refused:
                self.has_refused = True
                return "refused"
            self.objects[key] = content
            self.written.add(key)
            return "written"

    def moved(self, pieces: int, strays: int) -> None:
        """Count the pieces of memory of a copied page."""
        with self._lock:
            self.moved_pieces += pieces
            self.stray_pieces += strays

    def remove(self, scope: str) -> None:
        """Remove the objects of a scope."""
        with self._lock:
            for key in [key for key in self.objects if key.startswith(f"{scope}/")]:
                del self.objects[key]
                self._corrupted.pop(key, None)

    def note(self, call: Call) -> None:
        """Record a call. Raises RuntimeError when the test has set the verb to raise."""
        with self._lock:
            self.calls.append(call)
            if call.verb in self.faults.raising:
                self.has_refused |= call.verb == "set"
                raise RuntimeError(f"{call.verb} of {len(call.keys)} keys raises, as the test has set")

    def _reason(self, key: str, size: int) -> str:
        """The reason why an object cannot be read, or empty."""
        if self.faults.failing_gets:
            self.faults.failing_gets -= 1
            return "error"
        if key not in self.objects:
            return "absent"
        found = len(self.objects[key])
        return self._corrupted.get(key, "" if found == size else "short" if found < size else "long")
