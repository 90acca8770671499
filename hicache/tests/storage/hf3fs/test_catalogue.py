"""Catalogue: what was answered is there after a crash at any moment, and no page is handed out twice."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hicache.clock import VirtualClock
from hicache.errors import ConfigurationError
from hicache.storage.hf3fs import catalogue as catalogue_module
from hicache.storage.hf3fs import journal as journal_module
from hicache.storage.hf3fs.catalogue import Catalogue, NamespaceSizeError

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
    for path in (file, journal_of(file)):
        shutil.copy(path, folder / path.name)
    with closing(open_at(folder / file.name)) as found:
        yield found


def holdings(catalogue: Catalogue) -> tuple[dict[str, int], set[int]]:
    """Keys with their pages, and the pages that are free."""
    pages = catalogue._pages[STATE]
    return dict(pages.key_to_index), set(pages.free_pages)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a catalogue lasts."""
    return tmp_path / "metadata.json"


@pytest.mark.parametrize("seed", range(4))
def test_all_that_was_answered_is_there_after_a_crash(file: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file is written anew every few requests.
    monkeypatch.setattr(journal_module, "MIN_GROWTH_BYTES", 300)
    dice, told = random.Random(seed), dict[str, int]()
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 5)
        for step in range(60):
            keys = dice.sample(KEYS, 2)
            match dice.randrange(6):
                case 0 | 1 | 2:
                    found = catalogue.reserve(STATE, keys).indices
                    told |= {key: page for key, (_, page) in zip(keys, found, strict=True) if page >= 0}
                case 3 | 4:
                    catalogue.confirm(STATE, [(key, told[key]) for key in keys if key in told], [dice.randrange(5)])
                case _:
                    catalogue.remove(STATE, keys[:1])
            with after_a_crash(file) as found_after:
                assert holdings(found_after) == holdings(catalogue), f"STORE-10: step {step} with seed {seed}"


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
        assert catalogue.reserve(STATE, ["b"]).indices == [(False, 0)], "but not for ever"


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
    assert (file.read_bytes(), journal_of(file).read_bytes()) == (before, line), "STORE-10: both stay as they are"


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


def test_a_file_has_one_service_at_a_time(file: Path) -> None:
    with closing(open_at(file)), pytest.raises(ConfigurationError, match=r"metadata\.json cannot be used"):
        open_at(file)
    open_at(file).close()


def test_the_journal_does_not_grow_without_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MIN_GROWTH_BYTES", 1_000)
    with closing(open_at(file)) as catalogue:
        catalogue.initialise(STATE, 4)
        sizes = []
        for number in range(60):
            keep(catalogue, f"key{number}")
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
    assert json.loads(file.read_text()) == {"0:kv": table}, "STORE-10: it stays as it is"


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
