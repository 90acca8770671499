"""STORE-13: bytes that were written under one name are never served under another, even with a wrong index."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import Found, files_of, find_page

from .names import page_keys

KEYS = page_keys(4)

Exchange = Callable[[StorageDriver, str, str], bool]
"""Exchanges two objects in the files of a backend that is closed. Returns whether any file changed."""


def exchange_names(store: StorageDriver, left: str, right: str) -> bool:
    """Exchange two names wherever a file or the name of a file has them, as in an index that is damaged."""
    names = [left.rpartition("/")[2], right.rpartition("/")[2]]
    files = files_of(store.place.directory)
    is_changed = False
    for path in files:
        content = path.read_bytes()
        exchanged = _exchanged(content, *(name.encode() for name in names))
        if exchanged != content:
            path.write_bytes(exchanged)
            is_changed = True
    found = {name: [path for path in files if name in path.name] for name in names}
    if all(len(paths) == 1 for paths in found.values()):
        _exchange_files(*(paths[0] for paths in found.values()))
        is_changed = True
    return is_changed


def _exchanged(content: bytes, left: bytes, right: bytes) -> bytes:
    between = b"\0" * len(left)
    return content.replace(left, between).replace(right, left).replace(between, right) if left in content else content


def _exchange_files(left: Path, right: Path) -> None:
    contents = left.read_bytes(), right.read_bytes()
    right.write_bytes(contents[0])
    left.write_bytes(contents[1])


def exchange_objects(store: StorageDriver, left: str, right: str) -> bool:
    """Exchange two objects with all that lies around their bytes, as where a file system mixes up two blocks."""
    found = [find_page(store.place.directory, store.bytes_of(key, 0)) for key in (left, right)]
    if found[0] is None or found[1] is None:
        return False
    if found[0].path != found[1].path:
        _exchange_files(found[0].path, found[1].path)
    else:
        stride = min(abs(one - other) for one, other in itertools.combinations(_offsets(store, found[0].path), 2))
        _exchange_slots(found[0], found[1], stride)
    return True


def _offsets(store: StorageDriver, path: Path) -> Iterator[int]:
    for key in KEYS:
        found = find_page(store.place.directory, store.bytes_of(key, 0))
        if found is not None and found.path == path:
            yield found.offset


def _exchange_slots(left: Found, right: Found, stride: int) -> None:
    """Exchange two pages and as many bytes before and after them as lie between neighbours."""
    content = bytearray(left.path.read_bytes())
    content += bytes(max(0, max(left.offset, right.offset) + stride - len(content)))
    around = stride - left.size
    first, second = sorted((left.offset, right.offset))
    heads = [slice(max(0, offset - around), offset + left.size) for offset in (first, second)]
    content[heads[0]], content[heads[1]] = content[heads[1]], content[heads[0]]
    left.path.write_bytes(content)


EXCHANGES = {"names": exchange_names, "objects": exchange_objects}


@clause("STORE-13")
@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_an_object_that_took_the_place_of_another_is_a_miss(store: StorageDriver, exchange: Exchange) -> None:
    if not store.place.subject.is_on_disk:
        pytest.skip(f"no option of {store.place.subject.name} is a folder: there is no file to change")
    exchanged = 0
    for left, right in itertools.permutations(KEYS, 2):
        store.set(KEYS, 0)
        store.instances[0].close()
        exchanged += exchange(store, left, right)
        for key in KEYS:
            store.model.was_damaged(key)
        try:
            store.reopen()
        except ConfigurationError:
            pytest.skip(f"{store.place.subject.name} refuses to open files in which two objects are exchanged")
        sheet = store.sheet(KEYS)
        answers = store.instances[0].get(KEYS, sheet.pages, [])
        served = {key: sheet.read(number) for number, key in enumerate(KEYS) if answers[number]}
        wrong = [key for key, found in served.items() if found != store.bytes_of(key, 0)]
        assert not wrong, (
            f"STORE-13: {left} and {right} were exchanged: expected no page or its own, got others for {wrong}"
        )
        store.clear()
    if not exchanged:
        pytest.skip(f"no file of {store.place.subject.name} holds a name or a page verbatim: nothing was exchanged")
