"""STORE-3: a damaged object is a miss, and can be written again; the backend validates everything on the disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import DAMAGES, Found, files_of, find_page

from .names import page_keys

KEYS = page_keys(6)
DAMAGED = KEYS[2]


def found_page(store: StorageDriver) -> Found:
    """The place of the page to damage; skips the test if no file shows it."""
    name = store.place.subject.name
    if not store.place.subject.is_on_disk:
        pytest.skip(f"no option of {name} is a folder: there is no file to damage")
    found = find_page(store.place.directory, store.bytes_of(DAMAGED, 0))
    if found is None:
        pytest.skip(f"no file of {name} holds a page as it is: there is nothing to aim at")
    return found


def require_writable(store: StorageDriver) -> None:
    """Every key can be written again after damage, and read."""
    store.get(KEYS)
    store.has(KEYS)
    assert store.set(KEYS, 1) == [True] * len(KEYS), "STORE-3: expected every page to be written again after damage"
    assert store.get(KEYS) == [True] * len(KEYS), (
        "STORE-3: expected every page to be readable after it was written again"
    )


@clause("STORE-3")
@pytest.mark.parametrize("is_open", [True, False], ids=["while open", "while closed"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_object_is_a_miss_and_can_be_written_again(
    store: StorageDriver, damage: Callable[[Found], None], is_open: bool
) -> None:
    store.set(KEYS, 0)
    found = found_page(store)
    if not is_open:
        store.instances[0].close()
    damage(found)
    # A file may have several objects, and their index.
    for key in KEYS:
        store.model.was_damaged(key)
    if not is_open:
        store.reopen()
    require_writable(store)


@clause("STORE-3")
def test_a_miss_by_damage_is_counted_and_the_others_are_read(store: StorageDriver) -> None:
    store.set(KEYS, 0)
    DAMAGES["a flipped bit"](found_page(store))
    store.model.was_damaged(DAMAGED)
    answers = store.get(KEYS)
    assert answers == [key != DAMAGED for key in KEYS], f"STORE-3: one object is damaged, got {answers}"
    misses = dict(store.instances[0].stats().misses)
    assert sum(misses.values()) == 1, f"STORE-3: the miss is counted with its reason: expected 1, got {misses}"
    assert "absent" not in misses, f"STORE-3: a damaged object is not an absent one, got {misses}"
    assert store.has(KEYS) == answers, "STORE-3: expected `has` to agree with `get`"


@clause("STORE-3")
@pytest.mark.parametrize(
    "damage", ["a flipped bit", "a file that ends within the page", "an empty file", "a file that is gone"]
)
def test_any_damaged_file_causes_only_misses(store: StorageDriver, damage: str) -> None:
    store.set(KEYS, 0)
    found_page(store)
    store.instances[0].close()
    for number, _ in enumerate(files_of(store.place.directory)):
        files = files_of(store.place.directory)
        if number >= len(files) or not files[number].stat().st_size:
            continue
        DAMAGES[damage](Found(files[number], 0, files[number].stat().st_size))
        for key in KEYS:
            store.model.was_damaged(key)
        try:
            store.reopen()
        except ConfigurationError:
            # With a damaged index a backend may refuse to open.
            continue
        store.get(KEYS)
        store.set(KEYS, number + 1)
        assert store.get(KEYS) == [True] * len(KEYS), (
            f"STORE-3: {damage}, {files[number].name}: expected every page to be written again"
        )
        store.instances[0].close()


@clause("STORE-3")
def test_removed_files_are_misses(store: StorageDriver) -> None:
    store.set(KEYS, 0)
    found_page(store)
    for path in files_of(store.place.directory):
        path.unlink()
    for key in KEYS:
        store.model.was_damaged(key)
    store.get(KEYS)
    store.model.forgets = True
    store.set(KEYS, 1)
    store.get(KEYS)
    store.clear()
    store.model.forgets = False
    for key in KEYS:
        store.model.was_damaged(key)
    store.reopen()
    require_writable(store)


@clause("STORE-3")
def test_a_folder_in_the_place_of_a_file_is_a_miss(store: StorageDriver) -> None:
    store.set(KEYS, 0)
    found = found_page(store)
    found.path.unlink()
    found.path.mkdir()
    store.model.forgets = True
    store.get(KEYS)
    store.has(KEYS)
    store.set(KEYS, 1)
    store.get(KEYS)
