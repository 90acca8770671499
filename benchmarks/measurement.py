"""What a call costs: times measured alternately, so that a slow machine slows both, and counts of its work."""

from __future__ import annotations

import gc
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time_ns
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hicache.testing.adapter import CacheAdapter


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long one kind of work takes as the other.

    `pairs`: how many pairs of times were measured. `of_minima`: the ratio of the shortest times. `median`: the median
    of the ratios of all pairs.
    """

    pairs: int
    of_minima: float
    median: float

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        """The ratio of times that were measured alternately, in the same unit."""
        by_pair = [one / other for one, other in zip(numerators, denominators, strict=True)]
        return cls(len(by_pair), min(numerators) / min(denominators), median(by_pair))


class AlternatingTimes:
    """The CPU times of each kind of work, by name. CPU time excludes the time of other processes."""

    def __init__(self) -> None:
        self._taken_us: dict[str, list[float]] = {}

    def measure(self, name: str, call: Callable[[Any], object], arguments: Iterable[Any]) -> None:
        """Call once with each argument, and record the CPU time of all calls together under this name."""
        begin = process_time_ns()
        for argument in arguments:
            call(argument)
        self._taken_us.setdefault(name, []).append((process_time_ns() - begin) / 1000)

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        """The ratio of the times recorded under two names."""
        return Ratio.of(self._taken_us[numerator], self._taken_us[denominator])


def counts(cache: CacheAdapter, call: Callable[[], object]) -> Mapping[str, int]:
    """What one call adds to each counter, without the counters that do not change."""
    before = dict(cache.counters())
    call()
    after = cache.counters()
    return {name: count - before[name] for name, count in after.items() if count != before[name]}


def functions_entered(call: Callable[[], object]) -> int:
    """How many functions, of Python and of C, one call enters on this thread, plus a constant few of this function."""
    entered = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event in ("call", "c_call")

    before = sys.getprofile()
    # A garbage collection would call functions that others have registered with it.
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        gc.enable()
    return entered


def address(memory: memoryview | bytearray) -> int:
    """The address of the first byte."""
    first: int = np.frombuffer(memory, np.uint8).ctypes.data
    return first


class FileReads:
    """Counts the reads of files from now on, until the test ends.

    `preads`: the number of bytes that each os.pread returned. `preadvs`: the same for os.preadv. `filled`: address and
    size of each buffer that os.preadv was called with, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.preads: list[int] = []
        self.preadvs: list[int] = []
        self.filled: list[tuple[int, int]] = []
        self._pread, self._preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", self._count_pread)
        monkeypatch.setattr(os, "preadv", self._count_preadv)

    def clear(self) -> None:
        """Forget all reads so far."""
        for counted in (self.preads, self.preadvs, self.filled):
            counted.clear()

    def _count_pread(self, file: int, size: int, offset: int) -> bytes:
        found = self._pread(file, size, offset)
        self.preads.append(len(found))
        return found

    def _count_preadv(self, file: int, pieces: Sequence[memoryview], offset: int) -> int:
        count = self._preadv(file, pieces, offset)
        self.preadvs.append(count)
        self.filled += [(address(piece), piece.nbytes) for piece in pieces]
        return count


def trace_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by each statement that SQLite runs on connections that are opened from now on."""
    statements = list[str]()
    connect = sqlite3.connect

    def connect_traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_traced)
    return statements
