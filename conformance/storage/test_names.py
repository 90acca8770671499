"""STORE-1, KEY-2, SEC-5, SEC-6: keys and scopes are separate, no key leads out of its directory, no unpickling."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError, KeyFormError
from hicache.storage.registry import backend_class, open_backend
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import files_of
from hicache.testing.storage.page_bytes import Sheet
from hicache.testing.storage.subject import Place

from .names import LONGEST, MALFORMED, NEIGHBOURS, TRAVERSALS, page_keys

# STORE-1, KEY-2, SEC-5: keys and scopes are separate, and no key leads out of its directory.


@clause("KEY-2", "STORE-1")
def test_scopes_are_separate(place: Place) -> None:
    names = ("model", "model-1", "Model", "model_1", "model.1", "model.", "model--1", "1", "x" * 150, "x" * 149 + "y")
    stores = [StorageDriver(place, scope=name) for name in names]
    keys = page_keys(3)
    for version, store in enumerate(stores):
        assert store.has(keys) == [False] * 3, "STORE-1: what other scopes hold is out of sight"
        store.set(keys, version)
    for store in stores:
        assert store.get(keys) == [True] * 3, "STORE-1: each scope has its own objects"


@clause("KEY-2", "STORE-1")
def test_a_scope_and_the_first_segment_of_a_key_are_separate(place: Place) -> None:
    short, long = StorageDriver(place, scope="a"), StorageDriver(place, scope="a-b")
    short.set(["b/c", "b", "a-b/c"], 0)
    assert long.has(["c", "b/c", "b"]) == [False] * 3, "STORE-1: scope and key are divided, with any characters"
    long.set(["c", "b"], 1)
    assert short.get(["b/c", "b", "a-b/c"]) == [True] * 3, "STORE-1: each scope has its own objects"


RANKS = {
    "tensor": ("tp0of2.cp0of1.pp0of1", "tp1of2.cp0of1.pp0of1"),
    "tensor, of another number": ("tp0of2.cp0of1.pp0of1", "tp0of4.cp0of1.pp0of1", "tp0of1.cp0of1.pp0of1"),
    "context": ("tp0of1.cp0of2.pp0of1", "tp0of1.cp1of2.pp0of1"),
    "pipeline": ("tp0of1.cp0of1.pp0of2", "tp0of1.cp0of1.pp1of2"),
    "numbers in another order": ("tp0of2.cp1of2.pp0of2", "tp1of2.cp0of2.pp0of2", "tp0of2.cp0of2.pp1of2"),
}
"""Ranks by the axis of their mesh. Each has its own shard of every page."""


@clause("STORE-1")
@pytest.mark.parametrize("pool", ["kv", "indexer"])
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
def test_the_shards_of_a_page_are_separate_objects(store: StorageDriver, ranks: tuple[str, ...], pool: str) -> None:
    keys = [[f"{pool}.{rank}/{key.rpartition('/')[2]}" for key in page_keys(3)] for rank in ranks]
    for version, part in enumerate(keys):
        assert store.has(part) == [False] * 3, f"STORE-1: {ranks[version]} kept nothing, only {ranks[:version]} did"
        store.set(part, version)
    for part, rank in zip(keys, ranks, strict=True):
        assert store.get(part) == [True] * 3, f"STORE-1: {rank} reads what it kept"


@clause("STORE-1")
def test_similar_keys_are_separate_objects(store: StorageDriver) -> None:
    keys = [*NEIGHBOURS, *LONGEST]
    for version, key in enumerate(keys):
        assert store.has([key]) == [False], f"STORE-1: {key} was not kept, only {keys[:version]}"
        assert store.set([key], version) == [True], f"STORE-1: {key} finds room beside {keys[:version]}"
    assert store.get(keys) == [True] * len(keys), "STORE-1: each key has its own object"
    store.reopen()
    assert store.get(keys) == [True] * len(keys), "STORE-1: each key has its own object"


@clause("SEC-5")
@pytest.mark.parametrize("key", MALFORMED, ids=ascii)
def test_a_malformed_key_is_refused(store: StorageDriver, key: str) -> None:
    backend, good = store.instances[0], page_keys(1)[0]
    sheet = store.source([good, good], 0)
    with pytest.raises(KeyFormError):
        backend.set([good, key], sheet.pages, [])
    with pytest.raises(KeyFormError):
        backend.get([good, key], sheet.pages, [])
    with pytest.raises(KeyFormError):
        backend.has([good, key])
    with pytest.raises(KeyFormError):
        backend.exists([key], [], [])


@clause("SEC-5")
@pytest.mark.parametrize("scope", [*MALFORMED, "a/b"], ids=ascii)
def test_a_malformed_scope_is_refused(place: Place, scope: str) -> None:
    with pytest.raises(KeyFormError):
        open_backend(place.subject.name, scope, place.options)


@clause("SEC-5")
def test_no_key_leaves_its_directory(place: Place, tmp_path: Path) -> None:
    if not place.subject.is_on_disk:
        pytest.skip(f"no option of {place.subject.name} is a folder: there is nothing that a key could leave")
    store = StorageDriver(place)
    store.set([*NEIGHBOURS, *LONGEST])
    for key in TRAVERSALS:
        with pytest.raises(KeyFormError):
            store.instances[0].set([key], store.source([key], 0).pages, [])
    store.clear()
    place.close()
    found = [path for path in tmp_path.iterdir() if path != place.directory]
    assert not found, f"SEC-5: expected no file outside of {place.directory}, got {found}"
    inside = [
        path for path in place.directory.rglob("*") if not path.resolve().is_relative_to(place.directory.resolve())
    ]
    assert not inside, f"SEC-5: no link leads out, found {inside}"


@clause("STORE-11")
def test_a_backend_is_opened_by_the_path_of_its_class(place: Place) -> None:
    found = backend_class(place.subject.name)
    path = f"{found.__module__}:{found.__qualname__}"
    store = StorageDriver(place)
    store.set(page_keys(3))
    again = open_backend(path, store.scope, place.options)
    assert type(again) is found, f"STORE-11: {path} names {found}, got {type(again)}"
    assert again.has(page_keys(3)) == [True] * 3, "STORE-11: it is the same backend under each name"
    again.close()


# SEC-6: a backend never unpickles anything.


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
