"""Store: objects that outlive the caches of a process, and everything that a test does to them or learns of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """One verb of a backend: full keys, and the keys of the pages before them."""

    verb: str
    keys: tuple[str, ...]
    prefix_keys: tuple[str, ...]


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on.

    `refused`: full keys that no `set` keeps. `failing_gets`, `failing_sets`: so many pages fail that are asked for
    next. `raising`: verbs that raise, which a backend must not do.
    """

    refused: set[str] = field(default_factory=set)
    failing_gets: int = 0
    failing_sets: int = 0
    raising: set[str] = field(default_factory=set)


class Store:
    """Objects by full key: scope, slash, key. Any thread may call.

    `objects`: what is there. `written`: every key under which there was once a whole object. `offered`: every key that
    a `set` was asked to keep. `has_refused`: some were not kept. `calls`: all verbs so far, the oldest first.
    `moved_pieces`: runs of memory that pages were read from or written to; `stray_pieces`: those of them that lay
    outside the memory that had been registered.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.empty()

    def empty(self) -> None:
        """Nothing was ever kept here, and nothing goes wrong."""
        with self._lock:
            self.objects: dict[str, bytes] = {}
            self.written: set[str] = set()
            self.offered: set[str] = set()
            self.has_refused = False
            self.moved_pieces = self.stray_pieces = 0
            self.calls: list[Call] = []
            self.faults = Faults()
            self._spoilt: dict[str, str] = {}

    def spoil(self, keys: Iterable[str], reason: str = "absent") -> None:
        """Let objects be lost or damaged, which nobody knows before they are read. Those that are not there stay so."""
        with self._lock:
            self._spoilt.update((key, reason) for key in keys if key in self.objects)

    def mend(self, contents: Mapping[str, bytes]) -> None:
        """Put objects back as they were; none is lost or damaged any more."""
        with self._lock:
            self.objects.update(contents)
            self._spoilt.clear()

    def readable(self, keys: Iterable[str]) -> list[bool]:
        """Which objects can be read whole, key by key. `has` knows less."""
        with self._lock:
            return [key in self.objects and key not in self._spoilt for key in keys]

    def was_written(self, key: str) -> bool:
        """Whether there was ever a whole object under a key."""
        with self._lock:
            return key in self.written

    def has(self, key: str) -> bool:
        """Whether an object seems to be there."""
        with self._lock:
            return key in self.objects

    def get(self, key: str, size: int) -> tuple[bytes, str]:
        """An object of so many bytes, or why it cannot be had; one that cannot is not there afterwards."""
        with self._lock:
            reason = self._reason(key, size)
            content = self.objects.pop(key, b"") if reason else self.objects[key]
            self._spoilt.pop(key, None)
            return content, reason

    def set(self, key: str, content: bytes) -> str:
        """Keep an object, if there is none: `written`, `present` or `refused`."""
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
        """A page was moved from or to so many runs of memory."""
        with self._lock:
            self.moved_pieces += pieces
            self.stray_pieces += strays

    def remove(self, scope: str) -> None:
        """Remove the objects of a scope."""
        with self._lock:
            for key in [key for key in self.objects if key.startswith(f"{scope}/")]:
                del self.objects[key]
                self._spoilt.pop(key, None)

    def note(self, call: Call) -> None:
        """Remember that a verb was called. Raises RuntimeError where the verb is to raise."""
        with self._lock:
            self.calls.append(call)
            if call.verb in self.faults.raising:
                self.has_refused |= call.verb == "set"
                raise RuntimeError(f"{call.verb} of {len(call.keys)} keys raises, as a test wants it")

    def _reason(self, key: str, size: int) -> str:
        """Why an object cannot be read, or nothing."""
        if self.faults.failing_gets:
            self.faults.failing_gets -= 1
            return "error"
        if key not in self.objects:
            return "absent"
        found = len(self.objects[key])
        return self._spoilt.get(key, "" if found == size else "short" if found < size else "long")
