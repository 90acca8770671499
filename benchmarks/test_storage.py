"""The cost of set, get and has: reads and statements are counted, and time is measured against a plain file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.storage import page_io
from hicache.storage.base import BATCH_PAGES, Pieces, StorageBackend
from hicache.storage.registry import open_backend

from .conftest import MeasureBeside
from .measurement import FileReads, address, trace_statements

KIB, MIB = 1 << 10, 1 << 20

Verb: TypeAlias = Callable[[Sequence[str], Sequence[Pieces], Sequence[str]], list[bool]]
"""`get` or `set` of a backend."""


class Pages:
    """Pages of `total_bytes` in all, in the order in which they are set and read.

    Each call of the backend takes a batch of BATCH_PAGES. The plain file is read and written one page at a time, with
    the same memory.
    """

    def __init__(self, backend: StorageBackend, folder: Path, page_bytes: int, total_bytes: int) -> None:
        self.backend = backend
        count = total_bytes // page_bytes
        random = np.random.default_rng(page_bytes)
        # Written once before the measurement, so that the system has mapped every page of memory.
        memory = [memoryview(random.bytes(total_bytes)), memoryview(bytearray(random.bytes(total_bytes)))]
        self._sources, self._targets = (
            [[whole[at : at + page_bytes]] for at in range(0, total_bytes, page_bytes)] for whole in memory
        )
        self._keys = [f"kv.tp0of1.cp0of1.pp0of1/{number:064x}" for number in range(count)]
        self._offsets = range(0, total_bytes, page_bytes)
        self._batches = [slice(at, at + BATCH_PAGES) for at in range(0, count, BATCH_PAGES)]
        self._file = os.open(folder / "plain", os.O_RDWR | os.O_CREAT)
        self.write_plain_file()

    def write_plain_file(self) -> None:
        """Overwrite each page of the plain file."""
        for source, offset in zip(self._sources, self._offsets, strict=True):
            os.pwritev(self._file, source, offset)

    def read_plain_file(self) -> None:
        """Read each page of the plain file."""
        for target, offset in zip(self._targets, self._offsets, strict=True):
            os.preadv(self._file, target, offset)

    def read_from(self, path: Path) -> None:
        """Use another file as the plain file. It must have the pages one after the other."""
        os.close(self._file)
        self._file = os.open(path, os.O_RDONLY)
        self.read_plain_file()
        self.require_equal_bytes()

    @property
    def targets(self) -> list[tuple[int, int]]:
        """The memory that each page is read into: address and size in bytes."""
        return [(address(target), target.nbytes) for (target,) in self._targets]

    def require_equal_bytes(self) -> None:
        """Raise AssertionError unless the bytes that were read equal the bytes that were set."""
        assert self._targets == self._sources, "expected the bytes that were set, got other bytes"

    def set_all(self) -> None:
        """Set all pages in the backend."""
        assert all(self._in_batches(self.backend.set, self._sources)), "expected the backend to store all pages"

    def get_all(self, count: int | None = None) -> None:
        """Get the first `count` pages from the backend, or all."""
        assert all(self._in_batches(self.backend.get, self._targets[:count])), "expected the backend to have all pages"

    def clear(self) -> None:
        """Remove all pages from the backend."""
        assert self.backend.clear(), "expected the backend to remove its pages"

    def close(self) -> None:
        """Close the backend and the plain file."""
        self.backend.close()
        os.close(self._file)

    def _in_batches(self, verb: Verb, pages: Sequence[Pieces]) -> list[bool]:
        keys = self._keys[: len(pages)]
        return [answer for part in self._batches if keys[part] for answer in verb(keys[part], pages[part], ())]


SCOPE = "bench-1"
PAGE_BYTES = (64 * KIB, MIB, 4 * MIB)
TOTAL_BYTES = 32 * MIB
SHARED_BYTES = 64 * MIB
"""More than the processor's caches hold, so that neither of the two is served from them."""

SMOKE_PAGES = 2
ROUNDS = 50

BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "file": {},
    "slotfile": {"capacity_slots": SHARED_BYTES // min(PAGE_BYTES)},
    "slotfile, unverified": {"capacity_slots": SHARED_BYTES // min(PAGE_BYTES), "verify": False},
}

IS_VERIFIED = {"slotfile": True, "slotfile, unverified": False}
"""Whether a get verifies checksums."""

SLOTFILES = pytest.mark.parametrize("name", IS_VERIFIED)

COUNTED_BYTES = 16 * MIB
READ_BYTES = 4 * MIB
"""The largest read of a get, unless a page is larger."""

LONG_BATCH, SHORT_BATCH = 128, 1
"""Pages of one get."""

FEW_OBJECTS, MANY_OBJECTS, ASKED = 1_000, 1_000_000, 10_000
SMALL_PAGE_BYTES = 4 * KIB

MARK_READS = 3
"""How often one get reads the mark, which says whether the index has changed: when it pins slots, looks them up and
releases them."""

OpenPages = Callable[[str, int, int], Pages]


@pytest.fixture
def open_pages(tmp_path: Path) -> Iterator[OpenPages]:
    """Opens pages on backends that are closed after the test."""
    opened: list[Pages] = []

    def open_one(name: str, page_bytes: int, total_bytes: int) -> Pages:
        backend = open_backend(name.partition(",")[0], SCOPE, {"root": str(tmp_path), **BACKENDS[name]})
        opened.append(Pages(backend, tmp_path, page_bytes, total_bytes))
        return opened[-1]

    yield open_one
    for pages in opened:
        pages.close()


@pytest.fixture(params=PAGE_BYTES, ids=lambda size: f"{size // KIB}KiB")
def page_bytes(request: pytest.FixtureRequest) -> int:
    """The size of a page."""
    size: int = request.param
    return size


@pytest.fixture(params=BACKENDS)
def pages(request: pytest.FixtureRequest, open_pages: OpenPages, page_bytes: int, benchmark: BenchmarkFixture) -> Pages:
    """Pages on each backend; two pages if nothing is measured."""
    return open_pages(request.param, page_bytes, TOTAL_BYTES if benchmark.enabled else SMOKE_PAGES * page_bytes)


@pytest.fixture
def measure(benchmark: BenchmarkFixture, page_bytes: int, measure_beside: MeasureBeside) -> Callable[..., None]:
    """Measures a verb alternately with the plain file, and reports its share of the plain file's speed."""

    def measure_each(prepare: Callable[[], None], plain: Callable[[], None], act: Callable[[], None]) -> None:
        benchmark.group = f"storage, pages of {page_bytes // KIB} KiB, {plain.__name__}"
        measure_beside(prepare, plain, act, ROUNDS, "share of the speed of a plain file")

    return measure_each


def test_set(pages: Pages, measure: Callable[..., None]) -> None:
    measure(pages.clear, pages.write_plain_file, pages.set_all)


def test_get(pages: Pages, measure: Callable[..., None]) -> None:
    pages.set_all()
    measure(lambda: None, pages.read_plain_file, pages.get_all)


@SLOTFILES
def test_get_beside_preadv_of_the_same_file(
    name: str,
    page_bytes: int,
    open_pages: OpenPages,
    tmp_path: Path,
    benchmark: BenchmarkFixture,
    measure_beside: MeasureBeside,
) -> None:
    pages = open_pages(name, page_bytes, SHARED_BYTES if benchmark.enabled else SMOKE_PAGES * page_bytes)
    pages.set_all()
    # The same bytes of the same file: its place in the page cache decides how fast it is read.
    pages.read_from(tmp_path / SCOPE / f"slots-{page_bytes}")
    benchmark.group = f"storage, pages of {page_bytes // KIB} KiB, the same file"
    measure_beside(lambda: None, pages.read_plain_file, pages.get_all, ROUNDS, "share of the speed of preadv")


@SLOTFILES
def test_a_get_reads_adjacent_pages_in_one_read_into_their_memory(
    name: str, page_bytes: int, open_pages: OpenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = open_pages(name, page_bytes, COUNTED_BYTES)
    pages.set_all()
    reads = FileReads(monkeypatch)
    pages.get_all()
    expected = [READ_BYTES] * (COUNTED_BYTES // READ_BYTES)
    assert reads.preadvs == expected, f"bytes by preadv: expected {expected}, got {reads.preadvs}"
    assert reads.filled == pages.targets, (
        "expected preadv to fill the memory of each page once, in order, and no other memory"
    )
    assert reads.preads == [], f"expected no other reads of files, got reads of {reads.preads} bytes"
    pages.require_equal_bytes()


@SLOTFILES
def test_a_get_hashes_each_byte_once_or_not_at_all(
    name: str, page_bytes: int, open_pages: OpenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, hashed = open_pages(name, page_bytes, COUNTED_BYTES), list[int]()
    pages.set_all()
    digest: Callable[[memoryview, int], int] = vars(page_io)["xxh3_64_intdigest"]

    def count(data: memoryview, seed: int) -> int:
        hashed.append(data.nbytes)
        return digest(data, seed)

    monkeypatch.setattr(page_io, "xxh3_64_intdigest", count)
    pages.get_all()
    expected = [page_bytes] * (COUNTED_BYTES // page_bytes) if IS_VERIFIED[name] else []
    assert hashed == expected, f"expected {len(expected)} checksums of {page_bytes} bytes, got {hashed}"


@SLOTFILES
def test_a_get_queries_the_index_equally_often_for_any_number_of_pages(
    name: str, open_pages: OpenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_pages(name, SMALL_PAGE_BYTES, LONG_BATCH * SMALL_PAGE_BYTES).set_all()
    statements, asked = trace_statements(monkeypatch), list[list[str]]()
    pages = open_pages(name, SMALL_PAGE_BYTES, LONG_BATCH * SMALL_PAGE_BYTES)
    for count in (LONG_BATCH, SHORT_BATCH, LONG_BATCH):
        statements.clear()
        pages.get_all(count)
        asked.append([statement.lstrip().partition("WHERE")[0] for statement in statements])
    first, *again = asked
    read = "SELECT mark FROM state"
    assert len(first) == 1 + MARK_READS, f"expected {MARK_READS} reads of the mark and one for all slots, got {first}"
    assert again == [[read] * MARK_READS] * 2, f"expected {MARK_READS} times {read!r} for known slots, got {again}"


FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :objects)
INSERT INTO objects SELECT NULL, printf('kv.tp0of1/%064x', n * :gap), 4096, n, 4096, 0, 0 FROM numbers
"""


def gap(objects: int) -> int:
    """The distance between the numbers of `objects` keys: the few keys are among the many."""
    return (MANY_OBJECTS // objects) << 32


def fill_index(root: Path, objects: int) -> None:
    """Add `objects` objects to a backend's index, without writing their bytes."""
    with closing(sqlite3.connect(root / SCOPE / "index.sqlite")) as tables, tables:
        tables.execute("UPDATE state SET mark = mark + 1")
        # No query uses this index, and updating it would double the time.
        tables.execute("DROP INDEX objects_by_use")
        tables.execute(FILL, {"objects": objects, "gap": gap(objects)})


def asked_keys() -> list[str]:
    """Keys in no particular order: the FEW_OBJECTS keys that always exist, and others that never exist."""
    few = [number * gap(FEW_OBJECTS) for number in range(FEW_OBJECTS)]
    nowhere = [number * gap(ASKED) + 1 for number in range(ASKED - FEW_OBJECTS)]
    return sorted([f"kv.tp0of1/{number:064x}" for number in few + nowhere], key=hash_of)


def hash_of(key: str) -> bytes:
    return sha256(key.encode()).digest()


@pytest.mark.parametrize("objects", [FEW_OBJECTS, MANY_OBJECTS])
def test_existence_takes_one_statement_among_any_number_of_objects(
    objects: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_keys()
    fill_backend(tmp_path, objects)
    statements = trace_statements(monkeypatch)
    with closing(open_backend("slotfile", SCOPE, options_of(tmp_path, objects))) as backend:
        for _ in range(2):
            statements.clear()
            assert sum(backend.has(asked)) == FEW_OBJECTS, f"expected {FEW_OBJECTS} of the {ASKED} keys to exist"
            assert len(statements) == 2, f"expected one read of the mark and one of all unknown keys, got {statements}"


def test_existence_among_many_objects(
    tmp_path: Path, benchmark: BenchmarkFixture, measure_beside: MeasureBeside
) -> None:
    asked, many_objects = asked_keys(), MANY_OBJECTS if benchmark.enabled else FEW_OBJECTS
    folders = {tmp_path / "few": FEW_OBJECTS, tmp_path / "many": many_objects}
    for folder, objects in folders.items():
        fill_backend(folder, objects)
    few, many = (open_backend("slotfile", SCOPE, options_of(*pair)) for pair in folders.items())
    with closing(few), closing(many):
        benchmark.group = f"existence of {ASKED} keys"
        what = f"speed among {many_objects} objects, as a share of that among {FEW_OBJECTS}"
        measure_beside(lambda: None, lambda: few.has(asked), lambda: many.has(asked), ROUNDS, what)
        assert sum(many.has(asked)) == FEW_OBJECTS, f"expected {FEW_OBJECTS} of the {ASKED} keys to exist"


def fill_backend(folder: Path, objects: int) -> None:
    open_backend("slotfile", SCOPE, options_of(folder, objects)).close()
    fill_index(folder / str(objects), objects)


def options_of(folder: Path, objects: int) -> Mapping[str, Any]:
    return {"root": str(folder / str(objects)), "capacity_slots": objects}
