"""Catalogue: what was answered is there after a crash at any moment, and no page is handed out twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import sys
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock, Thread
from types import FrameType
from typing import Any
from zlib import crc32

import pytest

from hicache.clock import VirtualClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs import catalogue as catalogue_module
from hicache.storage.hf3fs import journal as journal_module
from hicache.storage.hf3fs.catalogue import MAX_NAMESPACE_PAGES, Catalogue, NamespaceSizeError, UnknownNamespaceError
from hicache.storage.hf3fs.pages import MAX_PAGES, Held, Pages, Stored
from hicache.tests.storage.conftest import descriptors_of_this_process, full_disk

AGE_LIMIT_S = 10.0
STATE = "0:kv"
KEYS = "abcdefgh"


def open_at(file: Path, clock: VirtualClock | None = None) -> Catalogue:
    return Catalogue(file, clock or VirtualClock(), AGE_LIMIT_S)


def keep(catalogue: Catalogue, *keys: str) -> None:
    found = catalogue.reserve(STATE, keys).indices
    catalogue.confirm(STATE, [(key, page) for key, (_, page) in zip(keys, found, strict=True)], [])


def log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


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


def stored(num_pages: int, keys: Mapping[str, int], reserved: Mapping[int, Held]) -> Stored:
    return Stored(num_pages, OrderedDict(keys), dict(reserved))


def holdings(catalogue: Catalogue, state: str = STATE) -> Stored:
    """The keys with their pages, in the order of use, and the reserved pages."""
    pages = catalogue._namespaces[state].pages
    return stored(pages.num_pages, pages._keys, {page: Held(*one[:2]) for page, one in pages._reserved.items()})


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


@pytest.mark.parametrize("seed", range(6))
def test_all_that_was_answered_is_there_after_a_crash(file: Path, seed: int) -> None:
    catalogue = open_at(file)
    catalogue.initialise(STATE, 5)
    requests = Requests(catalogue, seed)
    for step in range(40):
        requests.one()
        with after_a_crash(file) as found:
            there, kept = holdings(found), holdings(catalogue)
            assert there._replace(keys=OrderedDict()) == kept._replace(keys=OrderedDict()), f"STORE-14: {seed}, {step}"
            assert dict(there.keys) == dict(kept.keys), f"STORE-10: step {step} with seed {seed}"
        if requests.dice.random() < 0.2:
            expected = holdings(catalogue)
            catalogue.close()
            catalogue = requests.catalogue = open_at(file)
            assert holdings(catalogue) == expected, f"STORE-10, STORE-8: after an end at step {step} with seed {seed}"
    catalogue.close()


# Files of JSON, of other servers and of earlier versions of this one, become databases.

WRITTEN = Path(__file__).parent / "written"
"""Files of a service of version 0.1.0 with a journal of its own: one that was ended, one that was killed after a save
that was cut off at its beginning, and one that was killed at the end of a save."""

MINE = {2: Held("r", "1" * 16)}
LATER = {**MINE, 4: Held("s", "2" * 16), 3: Held("t", "2" * 16)}

EXPECTED: dict[str, dict[str, Stored]] = {
    "ended": {
        "0:kv": stored(6, {"b": 4, "c": 3, "a": 5}, MINE),
        "1:mamba": stored(2, {"m": 1}, {}),
        "0:gone": stored(3, {"g": 2}, {}),
    },
    "killed": {
        "0:kv": stored(6, {"a": 5, "d": 1, "é": 0}, LATER),
        "1:mamba": stored(2, {"n": 1}, {}),
        "2:kv": stored(3, {"x": 2, "y": 1}, {}),
    },
    "rewritten": {
        "0:kv": stored(6, {"d": 1, "é": 0, "a2": 5}, LATER),
        "1:mamba": stored(2, {}, {}),
        "2:kv": stored(3, {"v": 2, "u": 0, "w": 1}, {}),
    },
}

CALLS = ("open", "fsync", "replace", "unlink")
"""What changes files, or makes a change durable, besides SQLite."""


@contextmanager
def seen_at_each_call(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[list[dict[str, bytes]]]:
    """The contents of a folder before each of these calls, and after the last one."""
    seen = list[dict[str, bytes]]()

    def look() -> None:
        contents = {path.name: path.read_bytes() for path in folder.iterdir()}
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


@pytest.mark.parametrize("written", EXPECTED)
def test_a_store_of_an_earlier_version_opens_after_a_crash_at_any_call_of_its_conversion(
    file: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    shutil.copytree(WRITTEN / written, file.parent, dirs_exist_ok=True)
    # What a crash leaves: a part of the new file, and a log of SQLite that belongs to no file.
    for name in (f"{file.name}.new", f"{file.name}-wal", f"{file.name}.new-wal"):
        (file.parent / name).write_bytes(b"SQLite format 3\0 and no more")
    with seen_at_each_call(monkeypatch, file.parent) as seen:
        open_at(file).close()
    states = [*seen, {path.name: path.read_bytes() for path in (WRITTEN / written).iterdir()}]
    for number, contents in enumerate(states):
        folder = file.parent / f"state-{number}"
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        for opening in range(2):
            with closing(open_at(folder / file.name)) as found:
                for state, expected in EXPECTED[written].items():
                    assert holdings(found, state) == expected, f"STORE-10: opening {opening} after {sorted(contents)}"
                assert found.usages("0:gone").keys() == {"0:gone"} & EXPECTED[written].keys(), "STORE-10: dropped"
        left = {path.name for path in folder.iterdir()}
        assert left == {file.name, f"{file.name}.lock"}, f"expected the database and its lock, got {left}"
    assert len(seen) >= 5, f"expected the states between the steps of a conversion, got {len(seen)}"


def test_a_file_of_a_newer_version_is_refused_in_a_line_and_stays(file: Path) -> None:
    open_at(file).close()
    for pragma, message in {"user_version = 2": "it has version 2 of", "application_id = 5": "application 0x5"}.items():
        with closing(sqlite3.connect(file)) as database:
            database.execute(f"PRAGMA {pragma}")
        before = file.read_bytes()
        with pytest.raises(ConfigurationError, match=f"metadata.json cannot be used: .*{message}") as raised:
            open_at(file)
        assert "\n" not in str(raised.value), f"expected one line, got {raised.value}"
        assert file.read_bytes() == before, "STORE-10: it stays unchanged"


def test_a_file_that_can_only_be_read_is_refused(file: Path) -> None:
    open_at(file).close()
    with file.open("r+b") as head:
        # The version of SQLite that is needed to write the file.
        head.seek(18)
        head.write(b"\x06")
    before, descriptors = file.read_bytes(), descriptors_of_this_process()
    with pytest.raises(ConfigurationError, match=r"metadata\.json cannot be used: .*readonly"):
        open_at(file)
    assert (file.read_bytes(), descriptors_of_this_process()) == (before, descriptors), "STORE-10: it stays unchanged"


def test_a_file_on_a_network_file_system_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = file.parent.stat().st_dev
    mounts = file.parent / "mounts"
    mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw shared:1 - nfs4 host:/x rw\n")
    monkeypatch.setattr(journal_module, "MOUNTS", mounts)
    warnings = list[str]()
    monkeypatch.setattr(journal_module.LOG, "warning", lambda text, *values: warnings.append(text % values))
    open_at(file).close()
    assert ["nfs4" in one for one in warnings] == [True], f"expected one warning, got {warnings}"


def test_no_file_of_the_metadata_is_mapped_into_memory(file: Path) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 3)
        keep(catalogue, "a")
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if file.name in line]
        assert not mapped, f"a file that is truncated while it is mapped ends the process, got {mapped}"
        assert not file.with_name(f"{file.name}-shm").exists(), "its log needs no shared memory"


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


def test_a_change_that_was_not_finished_was_not_answered(file: Path) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 3)
        ((_, page),) = catalogue.reserve(STATE, ["a"]).indices
        before = log_of(file).stat().st_size
        catalogue.confirm(STATE, [("a", page)], [])
        whole = log_of(file).read_bytes()
        folder = file.parent / "torn"
        folder.mkdir()
        for cut in (before, before + 1, before + 24, len(whole) - 4096, len(whole) - 1):
            shutil.copy(file, folder)
            log_of(folder / file.name).write_bytes(whole[:cut])
            with closing(open_at(folder / file.name)) as found:
                assert found.find(STATE, "a") == [None], f"STORE-10: {cut} of {len(whole)} bytes: not confirmed"
                assert holdings(found).reserved == {page: Held("a", None)}, f"STORE-14: {cut} of {len(whole)} bytes"


def test_a_head_that_was_lost_while_it_was_written_is_read_from_the_log(file: Path) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 3)
        keep(catalogue, "a")
        folder = file.parent / "after a loss of power"
        folder.mkdir()
        for path in (file, log_of(file)):
            shutil.copy(path, folder)
        with (folder / file.name).open("r+b") as head:
            head.write(bytes(4096))
        with closing(open_at(folder / file.name)) as found:
            assert holdings(found) == holdings(catalogue), "STORE-10: the log has what was to be written"


@pytest.mark.parametrize(
    "line", [b"no json\n", b"{}\n", b'{"state":"0:other","taken":[1]}\n', b'{"state":"0:kv","x":1}\n']
)
@pytest.mark.parametrize("has_checksum", [False, True])
def test_a_journal_that_does_not_fit_is_refused_and_stays(file: Path, line: bytes, has_checksum: bool) -> None:
    shutil.copytree(WRITTEN / "killed", file.parent, dirs_exist_ok=True)
    with file.with_name(f"{file.name}.journal").open("ab") as journal:
        journal.write(b"%08x %s" % (crc32(line[:-1]), line) if has_checksum else line)
    before = contents_of(file)
    with pytest.raises(ConfigurationError, match=r"journal is invalid|Expecting value"):
        open_at(file)
    assert contents_of(file) == before, "STORE-10: all stay unchanged"


def contents_of(file: Path) -> dict[str, bytes]:
    """The files of a catalogue, without its lock."""
    return {path.name: path.read_bytes() for path in file.parent.glob(f"{file.name}*") if path.suffix != ".lock"}


@pytest.mark.parametrize("left_bytes", [0, 1000, 4000])
def test_a_change_that_cannot_be_stored_is_not_answered(file: Path, left_bytes: int) -> None:
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 2)
        keep(catalogue, "a")
        with full_disk(log_of(file).stat().st_size + left_bytes):
            for _ in range(2):
                with pytest.raises(OSError, match=r"metadata\.json: .*(disk|full)"):
                    catalogue.reserve(STATE, ["b"])
        assert catalogue.reserve(STATE, ["c"]).indices == [(False, 1)], "STORE-10: another page is handed out"
        with after_a_crash(file) as found:
            assert holdings(found) == holdings(catalogue), "STORE-10: the first change was stored with it"


@pytest.mark.parametrize("written", [None, *EXPECTED])
@pytest.mark.parametrize("room_bytes", [0, 5000, 12_000])
def test_a_full_disk_at_the_start_is_a_mistake_of_the_configuration(
    file: Path, written: str | None, room_bytes: int
) -> None:
    if written is not None:
        shutil.copytree(WRITTEN / written, file.parent, dirs_exist_ok=True)
    before, descriptors = contents_of(file), descriptors_of_this_process()
    with (
        full_disk(room_bytes),
        pytest.raises(ConfigurationError, match=r"metadata\.json cannot be used: .*(disk|full)"),
    ):
        open_at(file)
    assert descriptors_of_this_process() == descriptors, "no file stays open"
    left = {name: content for name, content in contents_of(file).items() if ".new" not in name}
    assert left == before, "STORE-10: it stays unchanged"
    with closing(open_at(file)) as found:
        assert len(found.usages("")) == (0 if written is None else 3), "STORE-10: nothing is lost"


def test_a_full_disk_at_the_end_loses_nothing(file: Path) -> None:
    catalogue = open_at(file)
    catalogue.initialise(STATE, 4)
    keep(catalogue, "a", "b")
    catalogue.find(STATE, ["a"])
    descriptors = descriptors_of_this_process()
    with full_disk(log_of(file).stat().st_size), pytest.raises(OSError, match=r"metadata\.json: .*(disk|full)"):
        catalogue.close()
    assert len(descriptors_of_this_process()) < len(descriptors), "its files are closed"
    with closing(open_at(file)) as found:
        assert found.find(STATE, "ab") == [3, 2], "STORE-10: the log has all changes"


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


def test_its_files_do_not_grow_without_end(file: Path) -> None:
    sizes = list[int]()
    with closing(open_at(file)) as catalogue:
        for turn in range(30):
            catalogue.initialise(STATE, 300)
            keep(catalogue, *(f"{turn}/{number:0200}" for number in range(200)))
            catalogue.remove(STATE, [f"{turn}/{number:0200}" for number in range(100)])
            keep(catalogue, *(f"{turn}/new/{number:0200}" for number in range(200)))
            sizes.append(sum(map(len, contents_of(file).values())))
            catalogue.delete(STATE)
    assert max(sizes) < 6 << 20, f"expected no more than a log of 1,000 blocks and the rows, got {max(sizes)} bytes"


def test_a_file_of_another_server_is_read(file: Path) -> None:
    tables = {
        "0": {"num_pages": 4, "free_pages": [0], "key_to_index": {"a": 3}},
        "1:mamba": {"num_pages": 2, "free_pages": [1, 0], "key_to_index": []},
    }
    file.write_text(json.dumps(tables, indent=4))
    with closing(open_at(file)) as catalogue:
        assert catalogue.find("0:kv", "a") == [3], "STORE-10: a rank alone is its kv, in a table as well"
        assert catalogue.usage("0:kv") == (4, 1, 2, 1), "pages that were lost are reserved, until they are too old"
        assert catalogue.reserve("1:mamba", "ab").indices == [(False, 1), (False, 0)], "the last one is first"


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
        keep(catalogue, "a", "b")
        catalogue.delete(STATE)
        with pytest.raises(UnknownNamespaceError):
            catalogue.exist(STATE, "a")
        with after_a_crash(file) as found, pytest.raises(UnknownNamespaceError):
            found.exist(STATE, "a")
        catalogue.initialise(STATE, 2)
        keep(catalogue, "c")
        with after_a_crash(file) as found:
            assert holdings(found) == stored(2, {"c": 1}, {}), "STORE-10: another namespace has its name now"


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
    "delete": lambda catalogue: catalogue.delete(STATE),
}


def work(file: Path, verb: str, num_pages: int) -> tuple[int, int]:
    """The most lines of one locked section, and the most memory, of a call to a namespace with so many keys."""
    keys = {f"key{number}": number for number in range(num_pages)}
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 1)
        namespace, lock = catalogue._namespaces[STATE], Counted()
        namespace.pages = Pages(stored(num_pages, keys, {}), 0.0)
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
def test_no_call_holds_a_lock_for_longer_when_there_are_more_pages(tmp_path: Path, verb: str) -> None:
    (few, _), (many, memory) = (work(tmp_path / str(number), verb, number) for number in (1_000, 20_000))
    assert few == many > 0, f"{verb}: expected the same work under the lock, got {few} and {many} lines"
    assert memory < 1 << 20, f"{verb}: a call takes little memory, got {memory} bytes"


def test_to_create_a_namespace_takes_no_memory_for_its_pages() -> None:
    catalogue = Catalogue(None)
    tracemalloc.start()
    try:
        catalogue.initialise(STATE, MAX_NAMESPACE_PAGES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16, f"free pages need no memory, got {peak} bytes"
