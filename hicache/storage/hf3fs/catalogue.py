"""Catalogue: the namespaces of all ranks, each with its own lock. Changes are durable before they are answered."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from hicache.clock import Clock, WallClock
from hicache.storage.hf3fs.journal import Journal
from hicache.storage.hf3fs.pages import MAX_PAGES, Change, Confirmed, Pages, Reserved, Stored, Usage

MAX_NAMESPACE_PAGES = 1 << 22
"""The most pages of one namespace, so that no namespace leaves nothing to the others."""

MAX_NAMESPACES = 1 << 12

RESERVATION_S = 600.0
"""How long a writer has by default from the reservation of a page until it confirms it."""


class UnknownNamespaceError(LookupError):
    """A namespace that was not initialised."""


class NamespaceSizeError(ValueError):
    """A namespace exists with another number of pages, or would exceed a limit."""


class _Namespace:
    """Its pages, and the lock of who uses them. `is_there`: it was not deleted."""

    def __init__(self, pages: Pages) -> None:
        self.lock = Lock()
        self.pages = pages
        self.is_there = True


class Catalogue:
    """The pages of all keys, in all namespaces.

    `file`: where it is stored, None for memory alone. `clock`: by default that of the machine. `age_limit_s`: the age
    after which a reserved page may be reserved again for another key.

    A name such as `0:kv` stands for a namespace of a rank. Namespaces do not wait for each other, except for the
    journal, and no call holds a lock for more than MAX_KEYS keys. Methods raise UnknownNamespaceError for a namespace
    that was not initialised, and OSError when a change cannot be stored: the caller must not answer with it then, and a
    page that was reserved stays so until its age limit. Raises ConfigurationError for a file that cannot be used.
    """

    def __init__(self, file: Path | None, clock: Clock | None = None, age_limit_s: float = RESERVATION_S) -> None:
        self._clock = clock or WallClock()
        self._age_limit_s = age_limit_s
        self._creating = Lock()
        self._journal = None if file is None else Journal(file)
        found = {} if self._journal is None else self._journal.found
        self._namespaces = {state: _Namespace(Pages(one, self._clock.now())) for state, one in found.items()}

    def initialise(self, state: str, num_pages: int) -> None:
        """Create a namespace, unless it exists. Raises NamespaceSizeError."""
        with self._creating:
            if state in self._namespaces:
                there = self._namespaces[state].pages.num_pages
                if there != num_pages:
                    raise NamespaceSizeError(f"{state} exists with {there} pages, got {num_pages}")
                return
            self._check_room(state, num_pages)
            self._flush()
            if self._journal is not None:
                self._journal.open(state, num_pages)
            self._namespaces[state] = _Namespace(Pages(Stored(num_pages, OrderedDict(), {}), self._clock.now()))

    def delete(self, state: str) -> None:
        """Remove a namespace with all its keys and reservations."""
        with self._creating:
            self._flush()
            with self._locked(state):
                if self._journal is not None:
                    self._journal.drop(state)
                self._namespaces.pop(state).is_there = False

    def usages(self, prefix: str) -> dict[str, Usage]:
        """How the pages of each namespace are used whose name begins so."""
        return {state: one.pages.usage for state, one in list(self._namespaces.items()) if state.startswith(prefix)}

    def exist(self, state: str, keys: Iterable[str]) -> list[bool]:
        """Whether each key has a confirmed page."""
        with self._locked(state) as pages:
            return pages.exist(keys)

    def find(self, state: str, keys: Iterable[str]) -> list[int | None]:
        """The page of each key. Marks the keys as used."""
        with self._locked(state) as pages:
            return pages.find(keys)

    def reserve(self, state: str, keys: Sequence[str], reservation: str | None = None) -> Reserved:
        """The page of each key, or a page reserved for it. `reservation`: of `new_reservation`, for who names it."""
        self._flush()
        with self._locked(state) as pages:
            found = pages.reserve(keys, self._clock.now(), self._age_limit_s, reservation)
            self._record(state, found.change)
            return found

    def confirm(
        self, state: str, written: Iterable[tuple[str, int]], released: Iterable[int], reservation: str | None = None
    ) -> Confirmed:
        """Make written pages visible, and free released pages. `reservation`: of the call that reserved them."""
        self._flush()
        with self._locked(state) as pages:
            done = pages.confirm(written, released, reservation)
            self._record(state, done.change)
            return done

    def remove(self, state: str, keys: Iterable[str]) -> None:
        """Free the pages of keys."""
        self._flush()
        with self._locked(state) as pages:
            self._record(state, pages.remove(keys))

    def clear(self, state: str) -> None:
        """Free all pages but the reserved ones."""
        self._flush()
        with self._locked(state) as pages:
            self._record(state, pages.clear())

    def usage(self, state: str) -> Usage:
        """How the pages of a namespace are used."""
        with self._locked(state) as pages:
            return pages.usage

    def close(self) -> None:
        """Store in which order keys were used; no other call may run meanwhile. Raises OSError; no change is lost."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close({state: one.pages.used for state, one in self._namespaces.items()})

    def _check_room(self, state: str, num_pages: int) -> None:
        if num_pages > MAX_NAMESPACE_PAGES:
            raise NamespaceSizeError(f"{state}: a namespace has at most {MAX_NAMESPACE_PAGES} pages, got {num_pages}")
        room = MAX_PAGES - sum(one.pages.num_pages for one in self._namespaces.values())
        if num_pages > room:
            raise NamespaceSizeError(
                f"{state}: expected at most the {room} pages that are left of {MAX_PAGES}, got {num_pages}; "
                "delete_namespace makes room"
            )
        if len(self._namespaces) >= MAX_NAMESPACES:
            raise NamespaceSizeError(f"{state}: there are {MAX_NAMESPACES} namespaces; delete_namespace makes room")

    @contextmanager
    def _locked(self, state: str) -> Iterator[Pages]:
        found = self._namespaces.get(state)
        if found is None:
            raise UnknownNamespaceError(state)
        with found.lock:
            if not found.is_there:
                raise UnknownNamespaceError(state)
            yield found.pages

    def _flush(self) -> None:
        if self._journal is not None:
            self._journal.flush()

    def _record(self, state: str, change: Change) -> None:
        if self._journal is not None and any(change):
            self._journal.change(state, change)


def new_reservation() -> str:
    """An id that no other reservation has, before or after a restart."""
    return secrets.token_hex(8)
