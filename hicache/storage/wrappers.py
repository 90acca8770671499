"""Backends around another backend: StorageWrapper, and subclasses that measure, audit, or inject faults."""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Any, TypeVar

from hicache.errors import InvariantError
from hicache.storage.base import Breaker, Pieces, PoolQuery, StorageBackend, StorageStats
from hicache.storage.page_io import checksum
from hicache.storage.paged import page_bytes
from hicache.storage.registry import Options, open_backend


class StorageWrapper(StorageBackend):
    """Options: `inner`, a backend or its name; `inner_options`, the options of that backend; and those of `OWN`."""

    NAME = "wrapper"
    OWN: tuple[str, ...] = ()

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        # The options of the inner backend may have secrets, and a value other than a table may be one.
        self.parsed = Options(self.NAME, options, ("inner", "inner_options", *self.OWN), ("inner_options",))
        inner = options.get("inner")
        if not isinstance(inner, StorageBackend):
            inner = open_backend(self.parsed.text("inner"), scope, self.parsed.table("inner_options"))
        self.inner = inner

    def has(self, keys: Sequence[str]) -> list[bool]:
        return self.inner.has(keys)

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self.inner.get(keys, targets, prefix_keys)

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self.inner.set(keys, sources, prefix_keys)

    def clear(self) -> bool:
        return self.inner.clear()

    def stats(self) -> StorageStats:
        return self.inner.stats()

    def close(self) -> None:
        self.inner.close()

    def register_pools(self, page_bytes: Mapping[str, int]) -> None:
        self.inner.register_pools(page_bytes)

    def register(self, regions: Sequence[memoryview]) -> bool:
        return self.inner.register(regions)

    def breaker(self) -> Breaker | None:
        return self.inner.breaker()

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return self.inner.exists(keys, queries, prefix_keys)


T = TypeVar("T")

VERBS = ("has", "exists", "get", "set")

BOUNDS_S = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper bounds of the rows of the histogram, in seconds; one more row counts slower calls."""


@dataclass(frozen=True, slots=True)
class Meter:
    """The totals of one verb.

    `pages`: keys of all calls. `pages_done`: keys with the answer True (for `exists`: usable pages). `bytes_done`:
    bytes of those pages, for get and set. `seconds`: of all calls. `calls_within`: calls by row of BOUNDS_S.
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
        self._clock: Callable[[], float] = self.parsed.function("clock", time.perf_counter)
        self._lock = Lock()
        self._meters = {verb: Meter(0, 0, 0, 0, 0.0, (0,) * (len(BOUNDS_S) + 1)) for verb in VERBS}

    def meters(self) -> Mapping[str, Meter]:
        """The totals by verb, since this instance was opened."""
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


class AuditedStorage(StorageWrapper):
    """Raises InvariantError if a get returns bytes that were not set under this key since the last clear.

    Keys that this instance has not set are not checked. `audited`: how many pages were compared.
    """

    NAME = "audited"

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.audited = 0
        self._given: dict[str, set[int]] = {}
        self._lock = Lock()

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        # Refused pages count too: another thread may have stored the same page.
        with self._lock:
            for key, pieces in zip(keys, sources, strict=False):
                self._given.setdefault(key, set()).add(checksum(pieces, 0))
        return _counted("set", keys, super().set(keys, sources, prefix_keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = _counted("get", keys, super().get(keys, targets, prefix_keys))
        with self._lock:
            for key, pieces, is_there in zip(keys, targets, answers, strict=False):
                if is_there and key in self._given:
                    self._compare(key, pieces)
        return answers

    def has(self, keys: Sequence[str]) -> list[bool]:
        return _counted("has", keys, super().has(keys))

    def clear(self) -> bool:
        is_clear = super().clear()
        if is_clear:
            with self._lock:
                self._given.clear()
        return is_clear

    def _compare(self, key: str, pieces: Pieces) -> None:
        self.audited += 1
        found, given = checksum(pieces, 0), self._given[key]
        if found not in given:
            expected = " or ".join([f"{each:016x}" for each in sorted(given)])
            raise InvariantError(f"STORE-3: get answered True for {key} with checksum {found:016x}, given: {expected}")


def _counted(verb: str, keys: Sequence[str], answers: list[bool]) -> list[bool]:
    if len(answers) != len(keys):
        raise InvariantError(f"STORE-3: {verb} gave {len(answers)} answers for {len(keys)} keys")
    return answers


class Fault(str, Enum):
    """The faults that can be injected.

    Per call: ERROR, every answer is False; SLOW, a pause; PARTIAL, only the first pages of a batch are done. Per page:
    SHORT, a read that ends early; TORN, a write of which the inner backend gets the first half, as a complete object;
    GONE, an object that exists for `has` and is absent for `get`, until it is set again.
    """

    ERROR = "error"
    SLOW = "slow"
    PARTIAL = "partial"
    SHORT = "short"
    TORN = "torn"
    GONE = "gone"


class FaultyStorage(StorageWrapper):
    """Injects faults. Every fault makes the answer False: no answer True is wrong.

    Options: `seed`; for each fault, by its name, its probability from 0 to 1; `delay_s`, the length of a pause, and
    `pause`, the function that waits. `injected`: how often each fault was injected.
    """

    NAME = "faulty"
    OWN = ("seed", "delay_s", "pause", *[fault.value for fault in Fault])

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.injected: Counter[Fault] = Counter()
        self._rates = {fault: self.parsed.number(fault.value, 0, 1) for fault in Fault}
        self._random = random.Random(self.parsed.whole("seed", 0))
        self._delay_s = self.parsed.number("delay_s", 0, 3_600)
        self._pause: Callable[[float], None] = self.parsed.function("pause", time.sleep)
        self._gone: set[str] = set()
        self._lock = Lock()

    def has(self, keys: Sequence[str]) -> list[bool]:
        if self._fails():
            return [False] * len(keys)
        present = [is_there and key not in self._gone for key, is_there in zip(keys, super().has(keys), strict=True)]
        self._gone.update(
            [key for key, is_there in zip(keys, present, strict=True) if is_there and self._draw(Fault.GONE)]
        )
        return present

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if self._fails():
            return [False] * len(keys)
        if len(keys) != len(targets):
            return super().get(keys, targets, prefix_keys)
        count = self._part(len(keys))
        answers = super().get(keys[:count], targets[:count], prefix_keys)
        for number, key in enumerate(keys[:count]):
            if key in self._gone:
                answers[number] = False
            elif answers[number] and self._draw(Fault.SHORT):
                _corrupt_end(targets[number])
                answers[number] = False
        return answers + [False] * (len(keys) - count)

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if self._fails():
            return [False] * len(keys)
        if len(keys) != len(sources):
            return super().set(keys, sources, prefix_keys)
        count = self._part(len(keys))
        torn = [self._draw(Fault.TORN) for _ in range(count)]
        given = [_first_half(page) if is_torn else page for page, is_torn in zip(sources, torn, strict=False)]
        answers = super().set(keys[:count], given, prefix_keys)
        self._gone.difference_update(keys[:count])
        whole = [is_kept and not is_torn for is_kept, is_torn in zip(answers, torn, strict=True)]
        return whole + [False] * (len(keys) - count)

    def clear(self) -> bool:
        if self._fails():
            return False
        self._gone.clear()
        return super().clear()

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        # The `exists` of the inner backend would bypass the faults of `has`.
        return StorageBackend.exists(self, keys, queries, prefix_keys)

    def _fails(self) -> bool:
        if self._draw(Fault.SLOW):
            self._pause(self._delay_s)
        return self._draw(Fault.ERROR)

    def _part(self, pages: int) -> int:
        """How many pages of a batch are passed to the inner backend."""
        if not pages or not self._draw(Fault.PARTIAL):
            return pages
        with self._lock:
            return self._random.randrange(pages)

    def _draw(self, fault: Fault) -> bool:
        with self._lock:
            happens = self._random.random() < self._rates[fault]
            self.injected[fault] += happens
            return happens


def _first_half(page: Pieces) -> Pieces:
    return [piece[: len(piece) // 2] for piece in page]


def _corrupt_end(page: Pieces) -> None:
    for last in page[-1:]:
        last[:] = bytes([byte ^ 0xFF for byte in last])
