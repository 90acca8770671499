"""FileStorage: what lies in its folder, what processes do to each other there, damage, and what goes first."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage import file as module
from hicache.storage.file import HEADER, read_object, write_object

from .conftest import PAGE_BYTES, SCOPE, Open, page, put, take

OBJECT_BYTES = HEADER.size + PAGE_BYTES

DIE_IN_A_SET = f"""
import os, signal
from hicache.storage.file import FileStorage
import hicache.storage.file as module
def die(source, path):
    os.kill(os.getpid(), signal.SIGKILL)
module._link = die
FileStorage({SCOPE!r}, {{"root": "."}}).set(["a"], [[memoryview(bytes({PAGE_BYTES}))]], ())
"""


def files_of(root: Path) -> list[Path]:
    return [path for path in (root / SCOPE).glob("??/*") if path.is_file()]


def the_file(root: Path) -> Path:
    (found,) = files_of(root)
    return found


def test_an_object_is_one_file_below_its_scope(open_in: Open, tmp_path: Path) -> None:
    key = "kv.tp0of1/9f86"
    assert put(open_in("file"), **{key: page(1)}) == [True], "the folder is empty"
    found = the_file(tmp_path)
    assert (found.name, found.stat().st_size) == ("kv.tp0of1+9f86", OBJECT_BYTES), f"a header and the page: {found}"
    assert take(open_in("file"), key) == page(1), "FLOW-9: another instance reads what was kept"


def test_the_file_of_an_object_that_is_there_is_not_written(open_in: Open, tmp_path: Path) -> None:
    backend = open_in("file")
    put(backend, a=page(1))
    before = the_file(tmp_path).stat()
    put(backend, a=page(2))
    after = the_file(tmp_path).stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size), "STORE-5: nothing is written"


def flip(path: Path, offset: int = OBJECT_BYTES - 1) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def lead_away(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (lambda path: os.truncate(path, OBJECT_BYTES - 1), "short"),
    "empty": (lambda path: os.truncate(path, 0), "short"),
    "lengthened": (lambda path: os.truncate(path, OBJECT_BYTES + 1), "long"),
    "a bit of the page": (flip, "corrupt"),
    "a bit of the format": (lambda path: flip(path, 0), "corrupt"),
    "a bit of the checksum": (lambda path: flip(path, HEADER.size - 8), "corrupt"),
    "a link": (lead_away, "corrupt"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_object_is_a_miss_and_goes(open_in: Open, tmp_path: Path, damage: str) -> None:
    backend, (corrupt, reason) = open_in("file"), DAMAGES[damage]
    put(backend, a=page(1))
    corrupt(the_file(tmp_path))
    assert take(backend, "a") is None, f"STORE-3: {damage} makes it a miss"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: counted with its reason: {backend.stats()}"
    assert not list((tmp_path / SCOPE).glob("??/*")), "PF13: a damaged object is removed by the get that found it"
    assert put(backend, a=page(2)) == [True], "PF13: so it can be written anew"
    assert take(backend, "a") == page(2), "PF13: and read"


def test_an_object_under_another_name_is_no_data(open_in: Open, tmp_path: Path) -> None:
    backend = open_in("file")
    put(backend, a=page(1))
    first = the_file(tmp_path)
    put(backend, b=page(2))
    (second,) = set(files_of(tmp_path)) - {first}
    first.replace(second)
    assert take(backend, "b") is None, "SEC-2: the bytes of a are none of b's"


@pytest.mark.parametrize("link", [".", "writers", "ab"])
def test_a_folder_that_leads_elsewhere_is_refused(open_in: Open, tmp_path: Path, link: str) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    place = tmp_path / SCOPE / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)
    with pytest.raises(ConfigurationError, match="is a link"):
        open_in("file")


def test_what_took_the_place_of_a_damaged_object_stays(
    open_in: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = open_in("file"), open_in("file")
    put(mine, a=page(1))
    flip(the_file(tmp_path))

    def read_while_it_is_renewed(file: int, pieces: Any, seed: int) -> Any:
        monkeypatch.setattr(module, "read_object", read_object)
        assert take(theirs, "a") is None, "another process finds the damage first"
        assert put(theirs, a=page(2)) == [True], "and writes the object anew"
        return read_object(file, pieces, seed)

    monkeypatch.setattr(module, "read_object", read_while_it_is_renewed)
    assert take(mine, "a") is None, "STORE-3: the file that was opened is damaged"
    assert take(mine, "a") == page(2), "PF13: the one in its place is not"


@pytest.mark.parametrize(("number", "reason"), [(ENOSPC, "full"), (EIO, "error")])
def test_a_page_that_cannot_be_written_leaves_nothing(
    open_in: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    backend = open_in("file")

    def write_some(file: int, pieces: Any, seed: int) -> None:
        write_object(file, pieces[:1], seed)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "write_object", write_some)
    assert put(backend, a=page(1)) == [False], "STORE-4: it was not written whole"
    assert backend.stats().refused == {reason: 1}, f"counted with its reason: {backend.stats()}"
    assert backend.has(["a"]) == [False], "STORE-4: an object appears whole or not at all"
    assert not list((tmp_path / SCOPE / "writers").glob("*/*")), "nothing stays of it"


def test_what_a_dead_writer_left_goes_and_a_live_one_is_let_be(open_in: Open, tmp_path: Path) -> None:
    alive = open_in("file")
    dead = subprocess.run([sys.executable, "-c", DIE_IN_A_SET], cwd=tmp_path, check=False)
    assert dead.returncode < 0, f"the writer is killed by a signal, got {dead.returncode}"
    left = list((tmp_path / SCOPE / "writers").glob("*/*"))
    assert len(left) == 1, f"it had written a page that was not linked yet: {left}"
    assert alive.stats().objects == 1, "it had counted the page already: never too low"
    after = open_in("file")
    assert not list((tmp_path / SCOPE / "writers").glob("*/*")), "STORE-4: who opens next removes what it left"
    assert (after.has(["a"]), after.stats().objects) == ([False], 0), "STORE-4: nothing of it is there, nor counted"
    assert put(alive, b=page(1)) == [True], "who lives goes on writing"


def test_existence_lists_no_folder(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_in("file")
    put(backend, a=page(1))
    monkeypatch.setattr(os, "scandir", lambda _: pytest.fail("a folder was listed"))
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("a folder was listed"))
    assert backend.has(["a", "b"]) == [True, False], "existence is asked of the file itself"
    assert take(backend, "a") == page(1), "and so are its bytes"


def test_threads_that_keep_the_same_page_keep_one(open_in: Open, tmp_path: Path) -> None:
    backend, answers = open_in("file", fsync=True), list[bool]()
    start = threading.Barrier(8)

    def keep() -> None:
        start.wait()
        answers.extend(put(backend, a=page(1)))

    threads = [threading.Thread(target=keep) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 8, f"STORE-4: there is one object, of either writer: {answers}"
    assert (len(files_of(tmp_path)), backend.stats().objects) == (1, 1), "STORE-4: one file, counted once"
    assert take(backend, "a") == page(1), "STORE-4: and it is whole"


def test_a_page_of_many_pieces_comes_back(open_in: Open) -> None:
    backend, content, target = open_in("file"), page(1, 5_000), bytearray(5_000)
    pieces, targets = (
        [whole[at : at + 2] for at in range(0, 5_000, 2)] for whole in (memoryview(content), memoryview(target))
    )
    assert backend.set(["a"], [pieces], ()) == [True], "more pieces than one call of the system takes"
    assert backend.get(["a"], [targets], ()) == [True], "and read likewise"
    assert target == content, "STORE-3: byte for byte"
    assert take(backend, "a", 5_000) == content, "and in other pieces too"


# Where room is short: what goes first, and what is spared.


def test_the_least_recently_used_of_all_processes_goes(open_in: Open) -> None:
    mine, theirs = (open_in("file", capacity_bytes=4 * PAGE_BYTES) for _ in range(2))
    put(mine, a=page(1), b=page(2))
    put(theirs, c=page(3), d=page(4))
    take(theirs, "a")
    assert put(mine, e=page(5), f=page(6)) == [True, True], "STORE-8: the oldest make room"
    assert mine.has(list("abcdef")) == [True, False, False, True, True, True], "STORE-8: a was read by the other one"
    take(theirs, "d")
    put(theirs, g=page(7))
    assert theirs.has(list("adefg")) == [False, True, True, True, True], "STORE-8: a is the oldest now"
    stats = theirs.stats()
    assert (stats.objects, stats.object_bytes) == (4, 4 * PAGE_BYTES), f"STORE-8: both count together: {stats}"


def test_a_use_after_the_folder_was_read_counts(open_in: Open) -> None:
    mine, theirs = (open_in("file", capacity_bytes=3 * PAGE_BYTES) for _ in range(2))
    put(mine, a=page(1), b=page(2), c=page(3))
    put(mine, d=page(4))
    assert take(theirs, "b") == page(2), "a made room, and b is used"
    put(mine, e=page(5))
    assert mine.has(list("bcde")) == [True, False, True, True], "STORE-8: c was used least recently"


def test_an_object_that_came_after_the_folder_was_read_counts(open_in: Open) -> None:
    backend = open_in("file", capacity_bytes=3 * PAGE_BYTES)
    put(backend, a=page(1), b=page(2), c=page(3))
    put(backend, d=page(4))
    assert [take(backend, key) for key in "bc"] == [page(2), page(3)], "a made room, and b and c are used"
    put(backend, e=page(5))
    assert backend.has(list("bcde")) == [True, True, False, True], "STORE-8: d was used least recently"


def test_what_was_spared_is_still_the_oldest(open_in: Open) -> None:
    backend = open_in("file", capacity_bytes=2 * PAGE_BYTES)
    put(backend, a=page(1), b=page(2))
    assert put(backend, a=page(1), b=page(2), c=page(3)) == [True, True, False], "STORE-8: a batch spares its own"
    put(backend, d=page(4))
    assert backend.has(["a", "b", "d"]) == [False, True, True], "STORE-8: a was used before b"


def test_an_object_is_whole_for_who_is_reading_it(open_in: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_in("file", capacity_bytes=PAGE_BYTES)
    put(backend, a=page(1))

    def read_late(file: int, pieces: Any, seed: int) -> Any:
        monkeypatch.setattr(module, "read_object", read_object)
        assert put(backend, b=page(2)) == [True], "a makes room while it is being read"
        return read_object(file, pieces, seed)

    monkeypatch.setattr(module, "read_object", read_late)
    assert take(backend, "a") == page(1), "STORE-8: who has begun to read gets it whole"
    assert backend.has(["a", "b"]) == [False, True], "and then it is gone"
