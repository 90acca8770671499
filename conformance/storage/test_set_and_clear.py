"""STORE-4 to STORE-7: existing objects are not overwritten, unequal numbers are refused, clear removes a scope."""

from __future__ import annotations

import pytest

from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.subject import Place

from .names import page_keys


@clause("STORE-5")
def test_setting_a_key_that_exists_writes_nothing(store: StorageDriver) -> None:
    keys = page_keys(3)
    store.set(keys, 0)
    written = store.instances[0].stats().bytes_written
    assert store.set(keys, 1) == [True] * 3, "STORE-5: setting a key that exists is a success"
    found = store.instances[0].stats()
    assert found.bytes_written == written, (
        f"STORE-5: the key exists: expected no bytes to be written, got {found.bytes_written - written}"
    )
    assert found.present == 3, f"STORE-5: three were present: expected 3, got {found.present}"
    assert store.get(keys) == [True] * 3, "STORE-5: the objects are those that were kept first"


@clause("STORE-5")
def test_a_batch_may_mix_existing_and_new_keys(store: StorageDriver) -> None:
    keys = page_keys(6)
    store.set(keys[::2], 0)
    assert store.set(keys, 1) == [True] * 6, "STORE-5: three exist, three find room"
    assert store.get(keys) == [True] * 6, "STORE-5: three of the first version, three of the second"


@clause("STORE-5")
def test_a_key_may_appear_twice_in_a_batch(store: StorageDriver) -> None:
    keys = page_keys(2)
    assert store.set([*keys, keys[0]]) == [True] * 3, "STORE-5: the second of two equal keys exists"
    assert store.get([keys[0], *keys]) == [True] * 3, "STORE-3: each of two equal keys is read"


@clause("STORE-6")
@pytest.mark.parametrize(("keys", "pages"), [(3, 2), (3, 4), (3, 0), (0, 2), (1, 128)])
def test_keys_and_pages_that_differ_in_number_are_refused(store: StorageDriver, keys: int, pages: int) -> None:
    asked = page_keys(keys)
    store.set_unequal(asked, pages, 1)
    assert store.has(asked) == [False] * keys, "STORE-6: nothing was kept"
    store.set(asked, 0)
    store.get_unequal(asked, pages)
    store.set_unequal(asked, pages, 1)
    assert store.get(asked) == [True] * keys, "STORE-6: what is there is as it was"


@clause("STORE-7")
def test_clear_removes_the_objects_of_its_scope_and_no_others(place: Place) -> None:
    stores = [StorageDriver(place, scope=name) for name in ("a", "a-b", "aa")]
    keys = page_keys(10)
    for version, store in enumerate(stores):
        store.set(keys, version)
        assert store.has(keys) == [True] * 10, "STORE-7: they were kept"
    assert stores[0].clear(), "STORE-7: all are gone"
    assert stores[0].has(keys) == [False] * 10, "STORE-7: all are gone"
    assert stores[0].get(keys) == [False] * 10, "STORE-7: all are gone"
    for store in stores[1:]:
        assert store.get(keys) == [True] * 10, "STORE-7: another scope is as it was"
    assert stores[0].set(keys, 5) == [True] * 10, "STORE-7: a scope can be used again"
    assert stores[0].get(keys) == [True] * 10, "STORE-7: a scope can be used again"


@clause("STORE-7")
def test_clear_of_an_empty_scope_removes_nothing(place: Place) -> None:
    full, empty = StorageDriver(place, scope="a"), StorageDriver(place, scope="b")
    full.set(page_keys(3))
    assert empty.clear(), "STORE-7: nothing is left of nothing"
    assert full.get(page_keys(3)) == [True] * 3, "STORE-7: another scope is as it was"


@clause("STORE-7")
def test_a_clear_by_one_instance_applies_to_all(store: StorageDriver) -> None:
    store.open()
    keys = page_keys(4)
    store.set(keys, instance=0)
    assert store.get(keys, instance=1) == [True] * 4, "STORE-7: instances of one scope have the same objects"
    assert store.has(keys, instance=0) == [True] * 4, "STORE-7: instances of one scope have the same objects"
    store.clear(instance=1)
    assert store.has(keys, instance=0) == [False] * 4, "STORE-7: cleared by the other instance"
    assert store.get(keys, instance=0) == [False] * 4, "STORE-7: cleared by the other instance"
    assert store.set(keys, 1, instance=0) == [True] * 4, "STORE-7: kept again"
    assert store.get(keys, instance=1) == [True] * 4, "STORE-7: kept again"


@clause("STORE-4")
def test_objects_are_kept_after_close(store: StorageDriver) -> None:
    keys = page_keys(20)
    store.set(keys)
    store.reopen()
    assert store.has(keys) == [True] * 20, "STORE-4: close keeps the objects"
    assert store.get(keys) == [True] * 20, "STORE-4: close keeps the objects"
    assert store.instances[0].stats().objects == 20, (
        f"STORE-4: they are counted: expected 20, got {store.instances[0].stats()}"
    )


@clause("STORE-4")
def test_an_instance_may_be_closed_twice(store: StorageDriver) -> None:
    store.set(page_keys(2))
    store.instances[0].close()
    store.instances[0].close()
    store.reopen()
    assert store.get(page_keys(2)) == [True] * 2, "STORE-4: close keeps the objects"
