"""MeteredStorage: measures what another backend is asked, whichever it is."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from hicache.storage.base import Pieces, PoolQuery
from hicache.storage.tally import page_bytes
from hicache.storage.wrapper import StorageWrapper

T = TypeVar("T")

VERBS = ("has", "exists", "get", "set")

BOUNDS_S = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
"""The longest that a call of each row of the histogram took; one more row has the rest."""


@dataclass(frozen=True, slots=True)
class Meter:
    """What was asked of one verb.

    `pages`: keys that it was asked for. `pages_done`: those it answered True (of `exists`: the usable ones).
    `bytes_done`: of those, for get and set. `seconds`: in all calls. `calls_within`: calls by row of BOUNDS_S.
    """

    calls: int
    pages: int
    pages_done: int
    bytes_done: int
    seconds: float
    calls_within: tuple[int, ...]


class MeteredStorage(StorageWrapper):
    """Counts calls, pages, bytes and seconds of has, exists, get and set. The option `clock` is for tests."""

    NAME = "metered"
    OWN = ("clock",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self._clock: Callable[[], float] = self.told.function("clock", time.perf_counter)
        self._lock = Lock()
        self._meters = {verb: Meter(0, 0, 0, 0, 0.0, (0,) * (len(BOUNDS_S) + 1)) for verb in VERBS}

    def meters(self) -> Mapping[str, Meter]:
        """By verb, since this instance was opened."""
        with self._lock:
            return dict(self._meters)

    def has(self, keys: Sequence[str]) -> list[bool]:
        answers, seconds = self._timed(lambda: self.inner.has(keys))
        self._count("has", len(keys), sum(answers), 0, seconds)
        return answers

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        pages, seconds = self._timed(lambda: self.inner.exists(keys, queries, prefix_keys))
        self._count("exists", len(keys), pages, 0, seconds)
        return pages

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers, seconds = self._timed(lambda: self.inner.get(keys, targets, prefix_keys))
        self._count("get", len(keys), sum(answers), _bytes_done(answers, targets), seconds)
        return answers

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers, seconds = self._timed(lambda: self.inner.set(keys, sources, prefix_keys))
        self._count("set", len(keys), sum(answers), _bytes_done(answers, sources), seconds)
        return answers

    def _timed(self, act: Callable[[], T]) -> tuple[T, float]:
        begin = self._clock()
        answer = act()
        return answer, self._clock() - begin

    def _count(self, verb: str, pages: int, pages_done: int, bytes_done: int, seconds: float) -> None:
        row = bisect_left(BOUNDS_S, seconds)
        with self._lock:
            old = self._meters[verb]
            self._meters[verb] = Meter(
                old.calls + 1,
                old.pages + pages,
                old.pages_done + pages_done,
                old.bytes_done + bytes_done,
                old.seconds + seconds,
                tuple([calls + (number == row) for number, calls in enumerate(old.calls_within)]),
            )


def _bytes_done(answers: Sequence[bool], pages: Sequence[Pieces]) -> int:
    return sum([page_bytes(page) for is_done, page in zip(answers, pages, strict=False) if is_done])
