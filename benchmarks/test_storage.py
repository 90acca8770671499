"""What it costs to keep and fetch pages beside a plain file of the same bytes, and to ask what is there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hicache.storage.registry import open_backend

from .pages import KIB, MIB, Pages
from .turns import Turns

SCOPE = "bench-1"
PAGE_BYTES = (64 * KIB, MIB, 4 * MIB)
TOTAL_BYTES = 32 * MIB
SHARED_BYTES = 64 * MIB
"""More than the processor's caches hold, so that neither of the two finds its bytes there."""

SMOKE_PAGES = 2
ROUNDS = 50

BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "file": {},
    "slotfile": {"capacity_slots": SHARED_BYTES // min(PAGE_BYTES)},
    "slotfile, unverified": {"capacity_slots": SHARED_BYTES // min(PAGE_BYTES), "verify": False},
}

SHARES = {"slotfile": 0.8, "slotfile, unverified": 0.9}
"""Of the speed of preadv: what a get reaches. What the first one lacks is mostly the checksum: 1.5 to 2 us for 64 KiB,
which preadv reads in 10 to 12."""

FEWEST_ROUNDS, MOST_ROUNDS = 5, 100

FEW_OBJECTS, MANY_OBJECTS, ASKED = 1_000, 1_000_000, 10_000
LIMIT = 1.3
"""What a thousand times as many objects may cost: the same work, in memory that is in no cache of the processor."""

OpenPages = Callable[[str, int, int], Pages]


@pytest.fixture
def open_pages(tmp_path: Path) -> Iterator[OpenPages]:
    """Opens pages of a size on a backend of its own until the test ends."""
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
    """Pages on each backend; two of them when nothing is measured."""
    return open_pages(request.param, page_bytes, TOTAL_BYTES if benchmark.enabled else SMOKE_PAGES * page_bytes)


@pytest.fixture
def measure(benchmark: BenchmarkFixture, page_bytes: int) -> Callable[..., None]:
    """Does the same again and again, each time after the plain file, and notes how much of its speed that is."""

    def measure_each(prepare: Callable[[], None], plain: Callable[[], None], act: Callable[[], None]) -> None:
        turns = Turns()

        def set_up() -> None:
            prepare()
            turns.take("plain", lambda _: plain(), [None])

        benchmark.group = f"storage, pages of {page_bytes // KIB} KiB, {plain.__name__}"
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            lambda: turns.take("storage", lambda _: act(), [None]),
            setup=set_up,
            rounds=ROUNDS if benchmark.enabled else 1,
        )
        if benchmark.enabled:
            share = turns.least_us["plain"] / turns.least_us["storage"]
            benchmark.extra_info["share of a plain file"] = round(share, 2)

    return measure_each


def test_set(pages: Pages, measure: Callable[..., None]) -> None:
    measure(pages.forget, pages.write_plainly, pages.keep)


def test_get(pages: Pages, measure: Callable[..., None]) -> None:
    pages.keep()
    measure(lambda: None, pages.read_plainly, pages.fetch)


@pytest.mark.parametrize("name", SHARES)
def test_a_get_is_nearly_as_fast_as_preadv(name: str, page_bytes: int, open_pages: OpenPages, tmp_path: Path) -> None:
    pages, turns, share = open_pages(name, page_bytes, SHARED_BYTES), Turns(), 0.0
    pages.keep()
    # The same bytes of the same file: how a file lies in the machine's memory decides how fast it is read.
    pages.read_from(tmp_path / SCOPE / f"slots-{page_bytes}")
    for taken in range(MOST_ROUNDS):
        turns.take("preadv", lambda _: pages.read_plainly(), [None])
        turns.take("get", lambda _: pages.fetch(), [None])
        share = turns.least_us["preadv"] / turns.least_us["get"]
        if taken >= FEWEST_ROUNDS and share >= SHARES[name]:
            break
    assert share >= SHARES[name], (
        f"{name}, pages of {page_bytes // KIB} KiB: {share:.2f} of the speed of preadv, expected {SHARES[name]}"
    )


FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :objects)
INSERT INTO objects SELECT NULL, printf('kv.tp0of1/%064x', n * :gap), 4096, n, 4096, 0, 0 FROM numbers
"""


def gap(objects: int) -> int:
    """How far the numbers of so many keys are from each other; a part of many are those of few."""
    return (MANY_OBJECTS // objects) << 32


def fill_index(root: Path, objects: int) -> None:
    """Say in a backend's index that so many objects are there, whose bytes nobody wrote."""
    with closing(sqlite3.connect(root / SCOPE / "index.sqlite")) as tables, tables:
        tables.execute("UPDATE state SET mark = mark + 1")
        # Nobody asks in this order, and it takes as long again.
        tables.execute("DROP INDEX objects_by_use")
        tables.execute(FILL, {"objects": objects, "gap": gap(objects)})


def asked_keys() -> list[str]:
    """Keys in no order: all that are there where there are few, and others that are nowhere."""
    few = [number * gap(FEW_OBJECTS) for number in range(FEW_OBJECTS)]
    nowhere = [number * gap(ASKED) + 1 for number in range(ASKED - FEW_OBJECTS)]
    return sorted([f"kv.tp0of1/{number:064x}" for number in few + nowhere], key=hash_of)


def hash_of(key: str) -> bytes:
    return sha256(key.encode()).digest()


def test_existence_costs_as_much_among_many_objects_as_among_few(tmp_path: Path) -> None:
    asked, turns = asked_keys(), {FEW_OBJECTS: Turns(), MANY_OBJECTS: Turns()}
    for objects in turns:
        open_backend("slotfile", SCOPE, options_of(tmp_path, objects)).close()
        fill_index(tmp_path / str(objects), objects)
    few, many = (turns[objects].least_us for objects in (FEW_OBJECTS, MANY_OBJECTS))
    for taken in range(MOST_ROUNDS):
        for objects, own in turns.items():
            with closing(open_backend("slotfile", SCOPE, options_of(tmp_path, objects))) as backend:
                own.take("the first time", backend.has, [asked])
                own.take("again", backend.has, [asked])
                assert sum(backend.has(asked)) == FEW_OBJECTS, f"so many of the {ASKED} keys are there"
        if taken >= FEWEST_ROUNDS and all(least_us <= LIMIT * few[time] for time, least_us in many.items()):
            break
    for time, least_us in many.items():
        assert least_us <= LIMIT * few[time], (
            f"{ASKED} keys took {least_us:.0f} us {time} among {MANY_OBJECTS} objects, {few[time]:.0f} us among "
            f"{FEW_OBJECTS}: expected at most {LIMIT} times as long"
        )


def options_of(folder: Path, objects: int) -> Mapping[str, Any]:
    return {"root": str(folder / str(objects)), "capacity_slots": objects}
