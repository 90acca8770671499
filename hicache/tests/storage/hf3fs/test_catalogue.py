"""Catalogue: what was answered is there after a crash at any moment, and no page is handed out twice."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock, Thread
from types import FrameType
from typing import Any

import pytest

from hicache.clock import VirtualClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs import catalogue as catalogue_module
from hicache.storage.hf3fs import journal as journal_module
from hicache.storage.hf3fs.catalogue import (
    MAX_NAMESPACE_PAGES,
    Catalogue,
    NamespaceSizeError,
    UnknownNamespaceError,
)
from hicache.storage.hf3fs.pages import Pages
from hicache.storage.hf3fs.snapshot import MAX_PAGES

AGE_LIMIT_S = 10.0
STATE = "0:kv"
KEYS = "abcdefgh"


def open_at(file: Path, clock: VirtualClock | None = None) -> Catalogue:
    return Catalogue(file, clock or VirtualClock(), AGE_LIMIT_S)


def keep(catalogue: Catalogue, *keys: str) -> None:
    found = catalogue.reserve(STATE, keys).indices
    catalogue.confirm(STATE, [(key, page) for key, (_, page) in zip(keys, found, strict=True)], [])


def journal_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.journal")


@contextmanager
def after_a_crash(file: Path) -> Iterator[Catalogue]:
    """What a service would find if the one that has the file died now."""
    folder = file.parent / "after"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in file.parent.glob(f"{file.name}*"):
        shutil.copy(path, folder / path.name)
    with closing(open_at(folder / file.name)) as found:
        yield found


def holdings(catalogue: Catalogue) -> tuple[dict[str, int], set[int]]:
    """Keys with their pages, and the pages that are free."""
    pages = catalogue._namespaces[STATE].pages
    found = pages.part(0, pages.num_pages)
    return {key: page for _, key, page in found.keys}, {*range(pages.fresh), *found.free}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a catalogue lasts."""
    return tmp_path / "metadata.json"


class Requests:
    """Random requests, good and bad ones, to one namespace."""

    def __init__(self, catalogue: Catalogue, seed: int) -> None:
        self.catalogue, self.dice = catalogue, random.Random(seed)
        self.told = dict[str, tuple[int, str]]()
        self.made = 0

    def one(self) -> None:
        """One request, with a reservation of its own or with one of before."""
        keys = self.dice.sample(KEYS, 2)
        match self.dice.randrange(8):
            case 0 | 1 | 2:
                self.made += 1
                found = self.catalogue.reserve(STATE, keys, f"{self.made:016x}").indices
                pages = [(key, page) for key, (_, page) in zip(keys, found, strict=True) if page >= 0]
                self.told |= {key: (page, f"{self.made:016x}") for key, page in pages}
            case 3 | 4 | 5:
                for key in set(keys).intersection(self.told):
                    page, reservation = self.told[key]
                    self.catalogue.confirm(STATE, [(key, page)], [self.dice.randrange(5)], reservation)
            case 6:
                self.catalogue.remove(STATE, keys[:1])
            case _ if self.dice.random() < 0.2:
                self.catalogue.clear(STATE)
            case _ if self.dice.random() < 0.2:
                self.catalogue.delete(STATE)
                self.catalogue.initialise(STATE, 5)
            case _:
                self.catalogue.find(STATE, keys)


class Interrupted:
    """A lock: each release is followed by `act`, which may take it."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._lock, self._act, self._is_acting = Lock(), act, False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if not self._is_acting:
            self._is_acting = True
            self._act()
            self._is_acting = False


@pytest.mark.parametrize("seed", range(6))
def test_all_that_was_answered_is_there_after_a_crash(file: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "MAX_KEYS", 1)
    dice = random.Random(seed)
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 5)
        requests = Requests(catalogue, seed)

        def check(when: str) -> None:
            with after_a_crash(file) as found:
                assert holdings(found) == holdings(catalogue), f"STORE-10: {when} with seed {seed}"

        def act() -> None:
            for _ in range(dice.randrange(4)):
                requests.one()
            check(f"after {requests.made} reservations, while the file is written")

        for step in range(20):
            requests.one()
            check(f"step {step}")
            if dice.random() < 0.2:
                with monkeypatch.context() as patch:
                    # Each page is a step of its own, and requests come between the steps.
                    patch.setattr(catalogue._namespaces[STATE], "lock", Interrupted(act))
                    if dice.random() < 0.5:
                        patch.setattr(catalogue._journal, "drop_old", lambda: None)
                    catalogue.save()
                check(f"step {step}, when the file was written anew")
    with closing(open_at(file)) as found:
        assert holdings(found) == holdings(catalogue), f"STORE-10: at the end with seed {seed}"


CALLS = ("open", "write", "fdatasync", "fsync", "rename", "replace", "unlink", "ftruncate")
"""What changes files, or makes a change durable."""


@contextmanager
def seen_at_each_call(monkeypatch: pytest.MonkeyPatch, file: Path) -> Iterator[list[dict[str, bytes]]]:
    """The contents of the files before each of these calls, and after the last one."""
    seen = list[dict[str, bytes]]()

    def look() -> None:
        contents = {path.name: path.read_bytes() for path in file.parent.glob(f"{file.name}*")}
        if contents not in seen:
            seen.append(contents)

    def looking(call: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*arguments: Any, **options: Any) -> Any:
            look()
            return call(*arguments, **options)

        return looked

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, looking(getattr(os, name)))
        yield seen
    look()


def test_a_crash_at_any_call_of_a_save_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = 0
    for unfinished in (False, True):
        with closing(open_at(file)) as catalogue:
            catalogue.initialise(STATE, 4)
            keep(catalogue, "a", "b")
            if unfinished:
                # The save before this one failed after its first step.
                assert catalogue._journal is not None, "the catalogue has a file"
                catalogue._journal.rotate()
                keep(catalogue, "c")
            catalogue.reserve(STATE, ["d"], "0" * 16)
            expected, usage = holdings(catalogue), catalogue.usage(STATE)
            with seen_at_each_call(monkeypatch, file) as seen:
                catalogue.save()
        states += len(seen)
        for number, contents in enumerate(seen):
            folder = file.parent / f"state-{unfinished}-{number}"
            folder.mkdir()
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            with closing(open_at(folder / file.name)) as found:
                assert (holdings(found), found.usage(STATE)) == (expected, usage), f"STORE-14: {sorted(contents)}"
        for path in file.parent.glob(f"{file.name}*"):
            path.unlink()
    assert states >= 8, f"expected the states between the steps of a save, got {states}"


def test_an_old_page_does_not_come_back_with_another_s_bytes(file: Path) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 1)
        keep(catalogue, "a")
    with closing(open_at(file)) as catalogue:
        catalogue.reserve(STATE, ["b"])
        with after_a_crash(file) as found:
            assert found.find(STATE, "ab") == [None, None], (
                "STORE-10: the page is being overwritten, and is a's no more"
            )
            assert found.reserve(STATE, ["c"]).indices == [(False, -1)], "STORE-10: nor is it free"


def test_what_a_dead_writer_reserved_is_free_some_time_after_a_restart(file: Path) -> None:
    clock = VirtualClock()
    with closing(open_at(file, clock)) as catalogue:
        catalogue.initialise(STATE, 1)
        catalogue.reserve(STATE, ["a"])
    with closing(open_at(file, clock)) as catalogue:
        assert catalogue.reserve(STATE, ["b"]).indices == [(False, -1)], "its writer may still be there"
        clock.advance(AGE_LIMIT_S)
        assert catalogue.reserve(STATE, ["b"]).indices == [(False, 0)], "but not forever"


def test_a_line_that_was_not_finished_was_not_answered(file: Path) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 3)
        keep(catalogue, "a")
        whole = journal_of(file).read_bytes()
        lines = whole.splitlines(keepends=True)
        for cut in range(len(whole) - len(lines[-1]), len(whole)):
            with after_a_crash(file) as found:
                found.close()
                torn = file.parent / "after" / "torn"
                torn.write_text("{}")
                journal_of(torn).write_bytes(whole[:cut])
                with closing(open_at(torn)) as again:
                    assert again.find(STATE, "a") == [None], f"STORE-10: {cut} of {len(whole)} bytes: not confirmed"


@pytest.mark.parametrize(
    "line", [b"no json\n", b"{}\n", b'{"state":"0:other","taken":[1]}\n', b'{"state":"0:kv","x":1}\n']
)
def test_a_journal_that_does_not_fit_is_refused_and_stays(file: Path, line: bytes) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 3)
    journal_of(file).write_bytes(line)
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match="journal is invalid"):
        open_at(file)
    assert (file.read_bytes(), journal_of(file).read_bytes()) == (before, line), "STORE-10: both stay unchanged"


def test_lines_that_the_file_has_taken_over_change_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = open_at(file)
    catalogue.initialise(STATE, 2)
    for key in "abcab":
        keep(catalogue, key)
    expected = holdings(catalogue)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(OSError, match="Input/output"):
        catalogue.close()
    monkeypatch.undo()
    assert json.loads(file.read_text())[STATE]["key_to_index"], "the file was written, and the journal not emptied"
    with closing(open_at(file)) as found:
        assert holdings(found) == expected, "STORE-10: a key that came back has its last page"


def fails_to_write(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def writes_a_part(file: int, data: bytes) -> int:
    return os.pwrite(file, data[: len(data) // 2], 0)


@pytest.mark.parametrize("write", [fails_to_write, writes_a_part])
def test_what_cannot_be_written_down_is_told_to_nobody(
    file: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., int]
) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 2)
        keep(catalogue, "a")
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", write)
            with pytest.raises(OSError, match=r"No space|only a part of a line"):
                catalogue.reserve(STATE, ["b"])
        assert catalogue.reserve(STATE, ["c"]).indices == [(False, 1)], "STORE-10: another page is handed out"
        with after_a_crash(file) as found:
            assert holdings(found) == holdings(catalogue), "STORE-10: the file was written anew before that"


def descriptors_of_this_process() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("call", ["open", "fsync", "ftruncate"])
def test_a_full_disk_at_the_start_is_a_mistake_of_the_configuration(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 2)
        keep(catalogue, "a")
    before, descriptors = file.read_bytes(), descriptors_of_this_process()
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fails_to_write)
        with pytest.raises(ConfigurationError, match=r"metadata\.json cannot be used: .*No space left"):
            open_at(file)
    assert descriptors_of_this_process() == descriptors, "no file stays open"
    assert file.read_bytes() == before, "STORE-10: it stays unchanged"
    with closing(open_at(file)) as found:
        assert found.exist(STATE, "a") == [True], "STORE-10: nothing is lost"


@pytest.mark.parametrize(
    "name", ["nul\0", "folder", "missing/file", "x" * 300], ids=["nul", "folder", "missing", "long"]
)
def test_a_path_that_cannot_be_used_is_a_mistake_of_the_configuration(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    descriptors = descriptors_of_this_process()
    with pytest.raises(ConfigurationError, match="metadata file"):
        open_at(tmp_path / name)
    assert descriptors_of_this_process() == descriptors, "no file stays open"


def test_a_file_has_one_service_at_a_time(file: Path) -> None:
    with closing(open_at(file)), pytest.raises(ConfigurationError, match=r"metadata\.json .* another service uses it"):
        open_at(file)
    open_at(file).close()


def test_the_journal_does_not_grow_without_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MIN_GROWTH_BYTES", 1_000)
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 4)
        sizes = []
        for number in range(60):
            keep(catalogue, f"key{number}")
            if catalogue.is_long:
                catalogue.save()
            sizes.append(journal_of(file).stat().st_size)
    assert max(sizes) < 2_000, f"the file is written anew when the journal is long, got {max(sizes)} bytes"


def test_a_file_of_another_server_is_read(file: Path) -> None:
    tables = {
        "0": {"num_pages": 4, "free_pages": [0], "key_to_index": {"a": 3}},
        "1:mamba": {"num_pages": 2, "free_pages": [1, 0], "key_to_index": []},
    }
    file.write_text(json.dumps(tables, indent=4))
    with closing(open_at(file)) as catalogue:
        assert catalogue.find("0:kv", "a") == [3], "STORE-10: a rank alone is its kv, in a table as well"
        assert catalogue.usage("0:kv") == (4, 1, 2, 1), "pages that were lost are reserved, until they are too old"
        assert catalogue.reserve("1:mamba", "ab").indices == [(False, 0), (False, 1)], "the last one free is first"


WRONG = {
    "a page twice": {"num_pages": 3, "free_pages": [0, 0], "key_to_index": []},
    "a page that is free and a key's": {"num_pages": 3, "free_pages": [0], "key_to_index": [["a", 0]]},
    "two keys of a page": {"num_pages": 3, "free_pages": [], "key_to_index": [["a", 0], ["b", 0]]},
    "a page that there is not": {"num_pages": 3, "free_pages": [3], "key_to_index": []},
    "a page in a text": {"num_pages": 3, "free_pages": [], "key_to_index": [["a", "0"]]},
    "a key that is a number": {"num_pages": 3, "free_pages": [], "key_to_index": [[1, 0]]},
    "pages in a text": {"num_pages": "3", "free_pages": [], "key_to_index": []},
}


@pytest.mark.parametrize("table", WRONG.values(), ids=WRONG)
def test_a_file_that_is_wrong_is_refused_and_stays(file: Path, table: object) -> None:
    file.write_text(json.dumps({"0:kv": table}))
    with pytest.raises(ConfigurationError, match="'0:kv'"):
        open_at(file)
    assert json.loads(file.read_text()) == {"0:kv": table}, "STORE-10: it stays unchanged"


def test_a_rank_with_and_without_its_namespace_is_refused(file: Path) -> None:
    table = {"num_pages": 1, "free_pages": [0], "key_to_index": []}
    file.write_text(json.dumps({"0": table, "0:kv": table}))
    with pytest.raises(ConfigurationError, match="a namespace occurs twice"):
        open_at(file)


def test_there_is_room_for_so_many_pages_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "MAX_PAGES", 5)
    catalogue = Catalogue(None)
    catalogue.initialise("0:kv", 3)
    with pytest.raises(NamespaceSizeError, match="at most the 2 pages that are left"):
        catalogue.initialise("1:kv", 3)
    catalogue.initialise("1:kv", 2)
    catalogue.delete("0:kv")
    catalogue.initialise("2:kv", 3)


def test_no_namespace_takes_the_room_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue(None)
    with pytest.raises(NamespaceSizeError, match=f"a namespace has at most {MAX_NAMESPACE_PAGES} pages"):
        catalogue.initialise("0:kv", MAX_PAGES)
    assert 4 * MAX_NAMESPACE_PAGES <= MAX_PAGES, "SEC-4: there is room for others"
    catalogue.initialise("0:kv", MAX_NAMESPACE_PAGES)
    catalogue.initialise("1:kv", MAX_NAMESPACE_PAGES)
    monkeypatch.setattr(catalogue_module, "MAX_NAMESPACES", 2)
    with pytest.raises(NamespaceSizeError, match="there are 2 namespaces; delete_namespace makes room"):
        catalogue.initialise("2:kv", 1)


def test_a_namespace_that_was_deleted_is_gone_after_a_crash(file: Path) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 3)
        keep(catalogue, "a")
        catalogue.save()
        keep(catalogue, "b")
        catalogue.delete(STATE)
        with pytest.raises(UnknownNamespaceError):
            catalogue.exist(STATE, "a")
        with after_a_crash(file) as found, pytest.raises(UnknownNamespaceError):
            found.exist(STATE, "a")
        catalogue.initialise(STATE, 2)
        keep(catalogue, "c")
        with after_a_crash(file) as found:
            assert holdings(found) == ({"c": 1}, {0}), "STORE-10: another namespace has its name now"


def test_a_namespace_does_not_wait_for_another(file: Path) -> None:
    with closing(open_at(file)) as catalogue:
        for state in ("0:kv", "1:kv"):
            catalogue.initialise(state, 3)

        def ask() -> None:
            found = catalogue.reserve("1:kv", ["a"]).indices
            catalogue.confirm("1:kv", [("a", found[0][1])], [])
            catalogue.clear("1:kv")
            catalogue.initialise("2:kv", 1)
            catalogue.delete("2:kv")

        with catalogue._namespaces["0:kv"].lock:
            other = Thread(target=ask, daemon=True)
            other.start()
            other.join(60)
            assert not other.is_alive(), "the lock of 0:kv is held, and only its own requests wait for it"


# The work of a call, in lines that are executed while a lock is held, and in bytes.

LINES = Path(catalogue_module.__file__).parent.as_posix()


class Counted:
    """A lock that counts the lines of this package that are executed under it: `most` of one holder."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines = self.most = 0
        self._before: Any = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self._lines = 0
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        sys._getframe(1).f_trace = self._trace

    def __exit__(self, *_: object) -> None:
        sys._getframe(1).f_trace = None
        sys.settrace(self._before)
        self.most = max(self.most, self._lines)
        self._lock.release()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        self._lines += event == "line" and frame.f_code.co_filename.startswith(LINES)
        return self._trace


def cleared_and_reserved(catalogue: Catalogue) -> None:
    catalogue.clear(STATE)
    catalogue.reserve(STATE, ["a"])


WORK: dict[str, Callable[[Catalogue], object]] = {
    "exist": lambda catalogue: catalogue.exist(STATE, ["a", "b"]),
    "find": lambda catalogue: catalogue.find(STATE, [f"key{number}" for number in range(100)]),
    "reserve": lambda catalogue: catalogue.reserve(STATE, [f"new{number}" for number in range(100)]),
    "remove": lambda catalogue: catalogue.remove(STATE, [f"key{number}" for number in range(100)]),
    "clear": lambda catalogue: catalogue.clear(STATE),
    "reserve after a clear": cleared_and_reserved,
    "save": lambda catalogue: list(catalogue._pieces()),
    "delete": lambda catalogue: catalogue.delete(STATE),
}


def work(file: Path, verb: str, num_pages: int) -> tuple[int, int]:
    """The most lines of one locked section, and the most memory, of a call to a namespace with so many keys."""
    keys = [(f"key{number}", number) for number in range(num_pages)]
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 1)
        namespace, lock = catalogue._namespaces[STATE], Counted()
        namespace.pages = Pages(num_pages, (), keys, (), 0.0)
        namespace.lock = lock  # type: ignore[assignment]
        tracemalloc.start()
        try:
            WORK[verb](catalogue)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        namespace.lock = Lock()
        return lock.most, peak


@pytest.mark.parametrize("verb", WORK)
def test_no_call_holds_a_lock_for_longer_when_there_are_more_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(catalogue_module, "MAX_KEYS", 256)
    (few, _), (many, memory) = (work(tmp_path / str(number), verb, number) for number in (1_000, 20_000))
    assert few == many > 0, f"{verb}: expected the same work under the lock, got {few} and {many} lines"
    assert verb == "save" or memory < 1 << 20, f"{verb}: a call takes little memory, got {memory} bytes"


def test_to_create_a_namespace_takes_no_memory_for_its_pages() -> None:
    catalogue = Catalogue(None)
    tracemalloc.start()
    try:
        catalogue.initialise(STATE, MAX_NAMESPACE_PAGES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16, f"free pages need no memory, got {peak} bytes"
