"""SEC-6: a backend never unpickles anything."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import files_of
from hicache.testing.storage.page_bytes import Sheet

from .names import page_keys


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def trap(tmp_path: Path) -> bytes:
    """A pickle that makes the folder `sprung` in the folder of the test when it is loaded."""
    return pickle.dumps(Trap(tmp_path / "sprung"))


@clause("SEC-6")
def test_a_page_that_is_a_pickle_stays_bytes(store: StorageDriver, trap: bytes, tmp_path: Path) -> None:
    backend, keys = store.instances[0], page_keys(1)
    source, target = Sheet([(len(trap),)]), Sheet([(len(trap),)])
    source.write(0, trap)
    assert backend.set(keys, source.pages, []) == [True], "STORE-3: a page of any bytes finds room"
    backend.exists(keys, [], [])
    assert backend.get(keys, target.pages, []) == [True], "STORE-3: a page of any bytes comes back"
    assert target.read(0) == trap, "STORE-3: the bytes are those that were kept"
    assert not (tmp_path / "sprung").exists(), "SEC-6: a page was unpickled"


@clause("SEC-6")
def test_no_verb_unpickles(store: StorageDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("SEC-6: expected nothing to be unpickled, got a call")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    keys = page_keys(3)
    store.set(keys)
    store.reopen()
    store.exists(keys)
    assert store.get(keys) == [True] * 3, "STORE-3: what was kept comes back"
    store.clear()


@clause("SEC-6")
def test_a_file_that_is_a_pickle_is_a_miss(store: StorageDriver, trap: bytes, tmp_path: Path) -> None:
    if not store.place.subject.is_on_disk:
        pytest.skip(f"no option of {store.place.subject.name} is a folder: there is no file to replace")
    keys = page_keys(3)
    store.set(keys)
    store.instances[0].close()
    for path in files_of(store.place.directory):
        path.write_bytes(trap)
    for key in keys:
        store.model.was_damaged(key)
    # With a damaged index a backend may refuse to open.
    with suppress(ConfigurationError):
        store.reopen()
        answers = store.get(keys)
        assert answers == [False] * 3, f"STORE-3: no object is left, got {answers}"
    assert not (tmp_path / "sprung").exists(), "SEC-6: a file was unpickled"
