"""NameTable: what it answers is right, or that it does not know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from errno import EIO
from pathlib import Path
from random import Random

import pytest

from hicache.storage.slotfile import name_table
from hicache.storage.slotfile.name_table import BUCKET_NAMES, MIN_BUCKETS, NameTable


@pytest.fixture
def table(tmp_path: Path) -> Iterator[NameTable]:
    """A table of state 1, without names."""
    with closing(NameTable(tmp_path / "names")) as opened:
        opened.make(1, 0, ())
        yield opened


def names_of(count: int, first: int = 0) -> list[str]:
    return [f"kv.all/{number}" for number in range(first, first + count)]


def put_in_one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on all names lie in the first bucket."""
    monkeypatch.setattr(name_table, "_bucket", lambda *_: 0)


@pytest.mark.parametrize("seed", range(4))
def test_after_any_changes_it_knows_what_is_there(table: NameTable, seed: int) -> None:
    random, there, state = Random(seed), set[str](), 1
    for _ in range(60):
        removed = random.sample(sorted(there), random.randint(0, len(there) // 2))
        added = sorted(set(names_of(random.randint(0, 300), random.randrange(2_000))) - there)
        assert table.change(state, state + 1, added, removed), f"seed {seed}: it goes along"
        state, there = state + 1, there.difference(removed).union(added)
        if table.needs_more_buckets:
            table.make(state, len(there), there)
        asked = names_of(2_500)
        answers = table.look_up(asked, state)
        assert answers is not None, f"seed {seed}: it is of state {state}"
        wrong = [name for name, answer in zip(asked, answers, strict=True) if answer not in (None, name in there)]
        assert not wrong, f"seed {seed}: {wrong[:5]} of {len(there)} names are answered wrongly"
        unsure = answers.count(None)
        assert unsure < len(asked) // 10, f"seed {seed}: it does not know {unsure} of {len(asked)} names"


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_what_it_was_made_of_is_there(table: NameTable, count: int) -> None:
    table.make(5, count, names_of(count))
    answers = table.look_up(names_of(2 * count + 1), 5)
    assert answers is not None, "it is of the state that it was made in"
    assert False not in answers[:count], "each name is there, or was one too many for its bucket"
    assert True not in answers[count:], "and no other"
    assert answers.count(None) <= len(answers) // 100, f"it knows nearly all: {answers.count(None)} unsure"


def test_of_another_state_it_says_nothing(table: NameTable) -> None:
    assert table.look_up(["a"], 2) is None, "the index has changed since"
    assert not table.change(2, 3, ["a"], []), "nor does it go along from there"
    assert table.look_up(["a"], 1) == [False], "and nothing happened to it"


def test_a_full_bucket_asks_for_the_index(table: NameTable, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_one_bucket(monkeypatch)
    assert table.change(1, 2, names_of(BUCKET_NAMES), []), "there is room for these"
    assert table.look_up(["other"], 2) == [False], "all that are in the bucket are known"
    assert table.change(2, 3, ["one too many"], []), "it is counted"
    expected = [*[True] * BUCKET_NAMES, None, None]
    assert table.look_up([*names_of(BUCKET_NAMES), "one too many", "other"], 3) == expected, "it may be any"
    assert table.change(3, 4, [], ["one too many"]), "it is gone"
    assert table.look_up(["one too many", "other"], 4) == [False, False], "and all are known again"


def test_a_name_that_is_not_there_cannot_be_removed(table: NameTable) -> None:
    assert not table.change(1, 2, [], ["nowhere"]), "it says something else than the index"
    assert (table.look_up(["a"], 1), table.look_up(["a"], 2)) == (None, None), "and says nothing until it is made anew"


def test_it_needs_more_buckets_above_half_of_its_capacity(table: NameTable) -> None:
    most = MIN_BUCKETS * BUCKET_NAMES // 2
    assert table.change(1, 2, names_of(most), []), "it takes them"
    needs_more = [table.needs_more_buckets]
    assert table.change(2, 3, ["one more"], []), "it takes more than that"
    needs_more.append(table.needs_more_buckets)
    table.make(4, most + 1, [*names_of(most), "one more"])
    found = [*needs_more, table.needs_more_buckets]
    assert found == [False, True, False], f"expected True above half of its capacity, False when rebuilt, got {found}"


def test_what_changes_while_it_is_looked_up_is_no_answer(table: NameTable, monkeypatch: pytest.MonkeyPatch) -> None:
    row = table._row

    def change_meanwhile(bucket: int) -> tuple[int, ...] | None:
        monkeypatch.setattr(table, "_row", row)
        table.make(2, 0, ())
        return row(bucket)

    monkeypatch.setattr(table, "_row", change_meanwhile)
    assert table.look_up(["a"], 1) is None, "by now it is of another state"


class FailingDisk:
    """Takes so many bytes, and then none."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._pwritev = os.pwritev

    def pwritev(self, file: int, pieces: Sequence[memoryview], offset: int) -> int:
        if not self.room:
            raise OSError(EIO, os.strerror(EIO))
        piece = pieces[0][: self.room]
        self.room -= piece.nbytes
        return self._pwritev(file, [piece], offset)


@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.change(2, 3, ["b", "c"], ["a"]),
        lambda table: table.make(3, 2, ["b", "c"]),
        lambda table: table.make(3, 9_000, names_of(9_000)),
    ],
    ids=["change", "make", "grow"],
)
def test_a_disk_that_fails_at_any_byte_leaves_the_old_state_or_none(
    table: NameTable, monkeypatch: pytest.MonkeyPatch, act: Callable[[NameTable], object]
) -> None:
    for room in range(260):
        table.make(2, 1, ["a"])
        with monkeypatch.context() as failing:
            failing.setattr(os, "pwritev", FailingDisk(room).pwritev)
            with suppress(OSError):
                act(table)
        old, new = table.look_up(["a", "b"], 2), table.look_up(["a", "b"], 3)
        assert old in (None, [True, False]), f"after {room} bytes: a state that ended is believed, {old}"
        assert new in (None, [False, True]), f"after {room} bytes: a state that did not begin is believed, {new}"


@pytest.mark.parametrize("size", [0, 63, 64, 100])
def test_a_file_that_lost_its_end_is_survived(table: NameTable, tmp_path: Path, size: int) -> None:
    table.change(1, 2, ["a"], [])
    with (tmp_path / "names").open("r+b") as file:
        file.truncate(size)
    answers = table.look_up(["a"], 2)
    assert answers in (None, [None]), f"nothing is known, nothing raises: {answers}"
    table.make(2, 1, ["a"])
    assert table.look_up(["a"], 2) == [True], "it is made anew"


def test_no_flipped_bit_is_believed(table: NameTable, tmp_path: Path) -> None:
    table.make(1, 3, ["a", "b", "c"])
    content = (tmp_path / "names").read_bytes()
    expected = [True, True, True, False]
    buckets = [name_table._bucket(name_table._fingerprint(name), MIN_BUCKETS) for name in "abcd"]
    begins = [0, *map(name_table._offset, buckets)]
    used = [at for begin in begins for at in range(begin, begin + name_table.ROW.size)]
    wrong = list[tuple[int, int]]()
    for at, bit in ((at, bit) for at in used for bit in range(8)):
        with (tmp_path / "names").open("r+b", buffering=0) as file:
            file.seek(at)
            file.write(bytes([content[at] ^ 1 << bit]))
            answers = table.look_up(["a", "b", "c", "d"], 1) or [None] * 4
            if any(answer not in (None, right) for answer, right in zip(answers, expected, strict=True)):
                wrong.append((at, bit))
            file.seek(at)
            file.write(content[at : at + 1])
        if len(wrong) > 5:
            break
    assert not wrong, f"STORE-3: expected True, False or no answer, got others after flips of byte and bit {wrong}"


def test_a_damaged_bucket_is_found_and_made_anew(table: NameTable, tmp_path: Path) -> None:
    assert table.verify(), "nothing is damaged"
    with (tmp_path / "names").open("r+b") as file:
        file.seek(name_table.HEADER.size + 64 * 5 + 17)
        file.write(b"x")
    assert not table.verify(), "one bucket is"
    table.make(2, 0, ())
    assert table.verify(), "it was made anew"
