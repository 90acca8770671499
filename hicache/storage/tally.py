"""Tally: counts what a backend did, from any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from threading import Lock

from hicache.storage.answers import Answer
from hicache.storage.base import Pieces
from hicache.storage.stats import StorageStats


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
        """Count objects that made room for others."""
        with self._lock:
            self._removed += objects

    def stats(self, objects: int, object_bytes: int) -> StorageStats:
        """The totals, with what the scope holds."""
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
    """How often there is each answer, and the bytes of the pages that are done."""
    done = Answer.DONE
    if answers.count(done) == len(pages):
        return {done.value: len(pages)}, sum(map(page_bytes, pages))
    counts = {answer.value: count for answer in Answer if (count := answers.count(answer))}
    return counts, sum([page_bytes(page) for answer, page in zip(answers, pages, strict=False) if answer is done])


def _reasons(counted: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in counted.items() if reason not in (Answer.DONE, Answer.PRESENT)}
