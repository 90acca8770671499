"""Catalogue: the namespaces of all ranks. One caller changes it at a time; changes are durable before the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

from hicache.clock import Clock, WallClock
from hicache.storage.hf3fs.journal import Journal
from hicache.storage.hf3fs.pages import Change, Confirmed, Pages, Reserved, Usage
from hicache.storage.hf3fs.snapshot import Snapshot

MAX_PAGES = 1 << 24
"""The most pages of all namespaces together: free pages need memory too."""

RESERVATION_S = 600.0
"""How long a writer has by default from the reservation of a page until it confirms it."""


class UnknownNamespaceError(LookupError):
    """A namespace that was not initialised."""


class NamespaceSizeError(ValueError):
    """A namespace exists with another number of pages, or would exceed the limit of all pages."""


class Catalogue:
    """The pages of all keys, in all namespaces.

    `file`: where it is stored, None for memory alone. `clock`: by default that of the machine. `age_limit_s`: the age
    after which a reserved page may be reserved again for another key.

    A name such as `0:kv` stands for a namespace of a rank. Methods raise UnknownNamespaceError for one that was not
    initialised, and OSError when a change cannot be stored: the caller must not answer with it then, and a page that
    was reserved stays so until its age limit. Raises ConfigurationError for a file that cannot be used or read.
    """

    def __init__(self, file: Path | None, clock: Clock | None = None, age_limit_s: float = RESERVATION_S) -> None:
        self._clock = clock or WallClock()
        self._age_limit_s = age_limit_s
        self._lock = Lock()
        self._journal = None if file is None else Journal(file)
        found = {} if self._journal is None else self._journal.snapshots
        self._pages = {
            state: Pages(one.num_pages, one.free_pages, one.keys.items(), self._clock.now())
            for state, one in found.items()
        }
        if self._journal is not None:
            self._journal.save(self._snapshots())

    def initialise(self, state: str, num_pages: int) -> None:
        """Create a namespace, unless it exists. Raises NamespaceSizeError."""
        with self._lock:
            if state in self._pages:
                there = self._pages[state].num_pages
                if there != num_pages:
                    raise NamespaceSizeError(f"{state} exists with {there} pages, got {num_pages}")
                return
            room = MAX_PAGES - sum(pages.num_pages for pages in self._pages.values())
            if num_pages > room:
                raise NamespaceSizeError(f"{state}: expected at most the {room} pages that are left, got {num_pages}")
            self._compact()
            self._pages[state] = Pages(num_pages, range(num_pages), (), self._clock.now())
            if self._journal is not None:
                self._journal.open(state, num_pages)

    def exist(self, state: str, keys: Iterable[str]) -> list[bool]:
        """Whether each key has a confirmed page."""
        with self._lock:
            return self._of(state).exist(keys)

    def find(self, state: str, keys: Iterable[str]) -> list[int | None]:
        """The page of each key. Marks the keys as used."""
        with self._lock:
            return self._of(state).find(keys)

    def reserve(self, state: str, keys: Sequence[str]) -> Reserved:
        """The page of each key, or a page reserved for it."""
        with self._lock:
            self._compact()
            found = self._of(state).reserve(keys, self._clock.now(), self._age_limit_s)
            self._record(state, found.change)
            return found

    def confirm(self, state: str, written: Iterable[tuple[str, int]], released: Iterable[int]) -> Confirmed:
        """Make written pages visible, and free released pages."""
        with self._lock:
            self._compact()
            done = self._of(state).confirm(written, released)
            self._record(state, done.change)
            return done

    def remove(self, state: str, keys: Iterable[str]) -> None:
        """Free the pages of keys."""
        with self._lock:
            self._compact()
            self._record(state, self._of(state).remove(keys))

    def clear(self, state: str) -> None:
        """Free all pages but the reserved ones."""
        with self._lock:
            self._compact()
            self._record(state, self._of(state).clear())

    def usage(self, state: str) -> Usage:
        """How the pages of a namespace are used."""
        with self._lock:
            return self._of(state).usage

    def close(self) -> None:
        """Write the file a last time. Raises OSError; the journal is then still complete."""
        with self._lock:
            if self._journal is None:
                return
            journal, self._journal = self._journal, None
            try:
                journal.save(self._snapshots())
            finally:
                journal.close()

    def _of(self, state: str) -> Pages:
        if state not in self._pages:
            raise UnknownNamespaceError(state)
        return self._pages[state]

    def _compact(self) -> None:
        """Rewrite the file if the journal is long. Called before a change, which is appended to the journal."""
        if self._journal is not None and self._journal.is_long:
            self._journal.save(self._snapshots())

    def _record(self, state: str, change: Change) -> None:
        if self._journal is not None:
            self._journal.change(state, change)

    def _snapshots(self) -> dict[str, Snapshot]:
        return {
            state: Snapshot(pages.num_pages, pages.free_pages, dict(pages.key_to_index))
            for state, pages in self._pages.items()
        }
