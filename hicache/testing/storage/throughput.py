"""The throughput of a backend, compared with preadv, pwritev and memcpy of the same bytes, measured alternately."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from hicache.storage.base import BATCH_PAGES, StorageBackend
from hicache.testing.storage.page_bytes import Sheet
from hicache.testing.storage.subject import BackendSubject, Place
from hicache.testing.violation import violation

PAGE_SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)

_BATCH_BYTES = 32 << 20
_ROUNDS = 5
_VECTOR = 64
"""The number of pages per preadv or pwritev."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Bytes per second, the best of several rounds."""

    page_bytes: int
    set_rate: float
    get_rate: float
    pwritev_rate: float
    preadv_rate: float
    memcpy_rate: float


def measure(subject: BackendSubject, folder: Path, page_bytes: int) -> Throughput:
    """Store and read batches of pages of one size. Raises InvariantError when a page is refused or lost."""
    with closing(Place(subject, folder, page_bytes=page_bytes)) as place:
        return measure_backend(place.open(place.scope("a")), folder / f"{place.name}.raw", page_bytes)


def measure_backend(backend: StorageBackend, raw: Path, page_bytes: int) -> Throughput:
    """The same, on a backend that is open. `raw`: a new file for the bytes that pass by the backend."""
    sheet = Sheet([(page_bytes,)] * pages_of_batch(page_bytes))
    for page in range(len(sheet.pages)):
        sheet.write(page, os.urandom(page_bytes))
    with raw.open("w+b", buffering=0) as file:
        return _measured(backend, sheet, file.fileno(), page_bytes)


def pages_of_batch(page_bytes: int) -> int:
    """How many pages are stored and read at a time."""
    return min(BATCH_PAGES, max(4, _BATCH_BYTES // page_bytes))


def _measured(backend: StorageBackend, sheet: Sheet, raw: int, page_bytes: int) -> Throughput:
    pages = len(sheet.pages)
    target = Sheet([(page_bytes,)] * pages)

    def keys(turn: int) -> list[str]:
        return [f"turn{turn}/{page}" for page in range(pages)]

    calls: list[Callable[[int], None]] = [
        lambda turn: _all_true("set", backend.set(keys(turn), sheet.pages, [])),
        lambda turn: _all_true("get", backend.get(keys(turn), target.pages, [])),
        lambda _: _move(os.pwritev, raw, sheet),
        lambda _: _move(os.preadv, raw, target),
        lambda _: _copy(sheet, target),
    ]
    best = [float("inf")] * len(calls)
    for turn in range(_ROUNDS):
        for number, call in enumerate(calls):
            begin = perf_counter()
            call(turn)
            best[number] = min(best[number], perf_counter() - begin)
    return Throughput(page_bytes, *(pages * page_bytes / duration for duration in best))


def _all_true(verb: str, answers: list[bool]) -> None:
    if not all(answers):
        raise violation("STORE-3", f"{verb} of {len(answers)} pages", "True for each, as there is capacity", answers)


def _move(call: Callable[[int, list[memoryview], int], int], raw: int, sheet: Sheet) -> None:
    pieces = [piece for page in sheet.pages for piece in page]
    size = len(pieces[0])
    for begin in range(0, len(pieces), _VECTOR):
        moved = call(raw, pieces[begin : begin + _VECTOR], begin * size)
        assert moved == size * len(pieces[begin : begin + _VECTOR]), f"the disk moved only {moved} bytes"


def _copy(source: Sheet, target: Sheet) -> None:
    for given, taken in zip(source.pages, target.pages, strict=True):
        taken[0][:] = given[0]
