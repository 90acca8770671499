"""PagedStorage: the base class of hicache's own backends: an answer for each page, statistics, and a safe close."""

from __future__ import annotations

import logging
import sqlite3
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from threading import Condition, Lock
from typing import TypeVar

from hicache.storage.base import Pieces, StorageBackend, StorageStats
from hicache.storage.keys import check_keys, check_scope


class Answer(str, Enum):
    """The outcome for one page: done, already present, or the reason of a failure, as StorageStats counts it."""

    DONE = "done"
    PRESENT = "present"
    ABSENT = "absent"
    SHORT = "short"
    LONG = "long"
    CORRUPT = "corrupt"
    FULL = "full"
    ERROR = "error"
    MISMATCH = "mismatch"

    @property
    def is_damage(self) -> bool:
        """Whether the object is unreadable for every reader. It must be removed before it can be written again."""
        return self in (Answer.SHORT, Answer.LONG, Answer.CORRUPT)


class Tally:
    """The counters behind StorageStats."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._removed = 0
        self._bytes_read = 0
        self._bytes_written = 0

    def read(self, answers: Sequence[Answer], targets: Sequence[Pieces]) -> None:
        """Count the pages of a get."""
        counts, moved = _counted(answers, targets)
        with self._lock:
            self._read.update(counts)
            self._bytes_read += moved

    def wrote(self, answers: Sequence[Answer], sources: Sequence[Pieces]) -> None:
        """Count the pages of a set."""
        counts, moved = _counted(answers, sources)
        with self._lock:
            self._written.update(counts)
            self._bytes_written += moved

    def removed(self, objects: int) -> None:
        """Count objects that were evicted for others."""
        with self._lock:
            self._removed += objects

    def stats(self, objects: int, object_bytes: int) -> StorageStats:
        """The totals, with the objects and bytes of the scope."""
        with self._lock:
            return StorageStats(
                objects=objects,
                object_bytes=object_bytes,
                hits=self._read[Answer.DONE],
                misses=_reasons(self._read),
                written=self._written[Answer.DONE],
                present=self._written[Answer.PRESENT],
                refused=_reasons(self._written),
                removed=self._removed,
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
            )


def page_bytes(pieces: Pieces) -> int:
    """The size of a page."""
    return pieces[0].nbytes if len(pieces) == 1 else sum([piece.nbytes for piece in pieces])


def _counted(answers: Sequence[Answer], pages: Sequence[Pieces]) -> tuple[dict[str, int], int]:
    """The count of each answer, and the bytes of the pages that are done."""
    done = Answer.DONE
    if answers.count(done) == len(pages):
        return {done.value: len(pages)}, sum(map(page_bytes, pages))
    counts = {answer.value: count for answer in Answer if (count := answers.count(answer))}
    return counts, sum([page_bytes(page) for answer, page in zip(answers, pages, strict=False) if answer is done])


def _reasons(counted: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in counted.items() if reason not in (Answer.DONE, Answer.PRESENT)}


class Gate:
    """Delays the closing of files until no verb uses them: the system reuses the numbers of closed files."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._is_open = True
        self._is_kept = False

    def enter(self) -> bool:
        """Register a running verb. Returns False after `close`; otherwise the caller has to call `leave`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_kept)
            self._inside += self._is_open
            return self._is_open

    def leave(self) -> None:
        """End a verb that `enter` has registered."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep all verbs out for a while. Yields False, and keeps none out, if one is running or the gate is closed."""
        with self._changed:
            is_alone = self._is_open and not self._inside and not self._is_kept
            self._is_kept = self._is_kept or is_alone
        try:
            yield is_alone
        finally:
            with self._changed:
                self._is_kept = self._is_kept and not is_alone
                self._changed.notify_all()

    def close(self) -> bool:
        """Refuse further verbs, and wait until all running ones have left. Returns whether the gate was open."""
        with self._changed:
            was_open, self._is_open = self._is_open, False
            self._changed.wait_for(lambda: not self._inside and not self._is_kept)
            return was_open


T = TypeVar("T")

LOG = logging.getLogger(__name__)

OPERATING_ERRORS = (OSError, sqlite3.Error)
"""Errors of the machine, which become answers. All other errors are bugs, and raise."""


class PagedStorage(StorageBackend):
    """A backend with an answer for each page. After `close` no object exists, and every get and set is an error."""

    def __init__(self, scope: str) -> None:
        self.scope = check_scope(scope)
        self.tally = Tally()
        self._gate = Gate()
        self._has_failed = False

    def has(self, keys: Sequence[str]) -> list[bool]:
        check_keys(keys)
        return self._guarded(lambda: self._present(keys), [False] * len(keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = self._answers(keys, targets, self._read)
        self.tally.read(answers, targets)
        done = Answer.DONE
        return [answer is done for answer in answers]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = self._answers(keys, sources, self._write)
        self.tally.wrote(answers, sources)
        return [answer in (Answer.DONE, Answer.PRESENT) for answer in answers]

    def register(self, regions: Sequence[memoryview]) -> bool:
        # A call returns when all bytes are moved.
        return True

    def clear(self) -> bool:
        return self._guarded(self._remove_all, False)

    def stats(self) -> StorageStats:
        return self.tally.stats(*self._guarded(self._holdings, (0, 0)))

    def close(self) -> None:
        if self._gate.close():
            try:
                self._release()
            except OPERATING_ERRORS as error:
                self.failed(error)

    def failed(self, error: Exception) -> Answer:
        """The answer for a failure. The first failure is logged, further ones are only counted."""
        if not self._has_failed:
            self._has_failed = True
            LOG.warning("%s of scope %s: %s; further failures are counted", type(self).__name__, self.scope, error)
        return Answer.ERROR

    def _answers(
        self,
        keys: Sequence[str],
        pages: Sequence[Pieces],
        act: Callable[[Sequence[str], Sequence[Pieces]], list[Answer]],
    ) -> list[Answer]:
        check_keys(keys)
        if len(keys) != len(pages):
            return [Answer.MISMATCH] * len(keys)
        return self._guarded(lambda: act(keys, pages), [Answer.ERROR] * len(keys))

    def _guarded(self, act: Callable[[], T], otherwise: T) -> T:
        if not self._gate.enter():
            return otherwise
        try:
            return act()
        except OPERATING_ERRORS as error:
            self.failed(error)
            return otherwise
        finally:
            self._gate.leave()

    @abstractmethod
    def _present(self, keys: Sequence[str]) -> list[bool]:
        """Implement `has`."""

    @abstractmethod
    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        """Implement `get`: read objects, and remove damaged ones."""

    @abstractmethod
    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        """Implement `set`: store pages."""

    @abstractmethod
    def _remove_all(self) -> bool:
        """Implement `clear`."""

    @abstractmethod
    def _holdings(self) -> tuple[int, int]:
        """The number of objects of the scope, and of their bytes."""

    @abstractmethod
    def _release(self) -> None:
        """Release files and memory. Called when no verb is running."""
