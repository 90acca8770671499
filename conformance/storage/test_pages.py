"""STORE-2 to STORE-7: stored pages are read back, prefixes are counted, and clear removes one scope."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from hicache.storage.base import BATCH_PAGES, PoolQuery
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.page_bytes import Sheet, cut_evenly
from hicache.testing.storage.room import require_room
from hicache.testing.storage.subject import Place
from hicache.types import HitPolicy

from .names import LAYERED, page_keys

# STORE-3: stored pages are read back, for any batch size and any pieces.


CUTS = {
    "one piece": (4096,),
    "uneven pieces": LAYERED,
    "64 pieces": cut_evenly(4096, 64),
    "an empty piece": (0, 4096),
    "more pieces than one readv takes": cut_evenly(4096, 2048),
}


@clause("STORE-3")
@pytest.mark.parametrize("written", CUTS.values(), ids=CUTS)
def test_a_page_may_be_read_in_other_pieces_than_it_was_written(store: StorageDriver, written: tuple[int, ...]) -> None:
    keys = page_keys(3)
    store.set(keys, cuts=written)
    for pieces, read in CUTS.items():
        answers = store.get(keys, cuts=read)
        assert answers == [True] * 3, f"STORE-3: three pages were kept, got {answers} for {pieces}"


@clause("STORE-3")
@pytest.mark.parametrize("count", [0, 1, 2, 127, BATCH_PAGES])
def test_a_batch_of_any_size_is_read_back(store: StorageDriver, count: int) -> None:
    keys = page_keys(count)
    assert store.has(keys) == [False] * count, "STORE-3: nothing was kept yet"
    assert store.set(keys) == [True] * count, f"STORE-3: {count} pages find room"
    assert store.has(keys) == [True] * count, f"STORE-3: {count} pages were kept"
    assert store.get(keys) == [True] * count, f"STORE-3: {count} pages were kept"


@clause("STORE-3")
def test_answers_are_in_the_order_of_the_keys(store: StorageDriver) -> None:
    keys = page_keys(40)
    kept = [page % 3 == 0 for page in range(40)]
    store.set([key for key, is_kept in zip(keys, kept, strict=True) if is_kept])
    for number in (1, 2, 39):
        turned, expected = keys[number:] + keys[:number], kept[number:] + kept[:number]
        assert store.has(turned) == expected, f"STORE-3: has, page by page, expected {expected}"
        assert store.get(turned) == expected, f"STORE-3: get, page by page, expected {expected}"


@clause("STORE-3")
def test_has_takes_any_number_of_keys(store: StorageDriver) -> None:
    keys = page_keys(3000)
    store.set(keys[2990:])
    assert store.has(keys) == [False] * 2990 + [True] * 10, "STORE-3: the last ten of 3000 were kept"


@clause("STORE-3")
@pytest.mark.parametrize("page_size", [1, 511, 4096, 65_537, 1 << 20])
def test_a_page_may_have_any_size(place: Place, page_size: int) -> None:
    with closing(Place(place.subject, place.directory, page_bytes=page_size)) as sized:
        store = StorageDriver(sized)
        store.set(page_keys(3))
        assert store.get(page_keys(3)) == [True] * 3, f"STORE-3: pages of {page_size} bytes come back"


@clause("STORE-3")
def test_pools_with_pages_of_different_sizes_share_a_scope(place: Place) -> None:
    stores = {size: StorageDriver(place, page_size=size) for size in (64, 1000, 4096)}
    for size, store in stores.items():
        store.set(page_keys(5, f"pool{size}"))
    for size, store in stores.items():
        assert store.get(page_keys(5, f"pool{size}")) == [True] * 5, f"STORE-3: pages of {size} bytes come back"


@clause("STORE-3")
@pytest.mark.parametrize(("kept", "asked"), [(4096, 4095), (4096, 1024), (1024, 4096), (1, 4096)])
def test_an_object_of_another_size_is_a_miss(store: StorageDriver, kept: int, asked: int) -> None:
    backend, keys = store.instances[0], page_keys(3)
    source = Sheet([(4096,), (kept,), (4096,)])
    assert backend.set(keys, source.pages, []) == [True] * 3, "STORE-3: pages of different sizes find room"
    target = Sheet([(4096,), (asked,), (4096,)])
    answers = backend.get(keys, target.pages, [])
    assert answers == [True, False, True], f"STORE-3: an object of {kept} bytes read into {asked}, got {answers}"
    assert target.has_its_guards, "STORE-3: nothing is written beside the target"
    assert sum(backend.stats().misses.values()) == 1, f"STORE-3: the miss is counted: expected 1, got {backend.stats()}"


@clause("STORE-3")
@pytest.mark.parametrize("asked", [1024, 8192])
def test_others_are_read_after_a_read_of_another_size(store: StorageDriver, asked: int) -> None:
    keys = page_keys(4)
    store.set(keys)
    store.instances[0].get(keys[:1], Sheet([(asked,)]).pages, [])
    others = keys[1:]
    for _ in range(2):
        assert store.has(others) == [True] * 3, f"STORE-3: they were kept; another page was read into {asked} bytes"
        assert store.get(others) == [True] * 3, f"STORE-3: they were kept; another page was read into {asked} bytes"


@clause("STORE-3")
def test_prefix_keys_change_nothing(store: StorageDriver) -> None:
    backend, keys = store.instances[0], page_keys(4)
    before = page_keys(1000, prompt=1)
    given = list(before)
    source = store.source(keys, 0)
    assert backend.set(keys, source.pages, given) == [True] * 4, "STORE-3: the pages before are a hint"
    target = store.sheet(keys)
    assert backend.get(keys, target.pages, given) == [True] * 4, "STORE-3: the pages before are a hint"
    assert [target.read(page) for page in range(4)] == [source.read(page) for page in range(4)], (
        "STORE-3: the same bytes"
    )
    assert backend.exists(keys, [], given) == 4, "STORE-2: the pages before are a hint"
    assert given == before, "STORE-3: the caller's list is the caller's"


@clause("STORE-3")
def test_the_counters_match_the_operations(store: StorageDriver) -> None:
    keys = page_keys(4)
    store.set(keys[:2])
    store.set(keys[:3])
    store.get(keys)
    found = store.instances[0].stats()
    counted = (found.written, found.present, found.hits, dict(found.misses), found.objects)
    expected = (3, 2, 3, {"absent": 1}, 3)
    assert counted == expected, f"STORE-3: written, present, hits, misses, objects: expected {expected}, got {counted}"
    moved = (found.bytes_written, found.bytes_read)
    assert moved == (3 * 4096, 3 * 4096), (
        f"STORE-3: bytes written and read: expected {(3 * 4096, 3 * 4096)}, got {moved}"
    )


# STORE-12: every answer has the type of the interface.


@clause("STORE-12")
@pytest.mark.parametrize("count", [0, 1, BATCH_PAGES])
def test_answers_are_bools_and_numbers_of_python(store: StorageDriver, count: int) -> None:
    require_room(store.place, count)
    keys = page_keys(count)
    for is_kept in (False, True):
        if is_kept:
            store.set(keys)
        backend, target = store.instances[0], store.sheet(keys)
        answers = {
            "has": backend.has(keys),
            "get": backend.get(keys, target.pages, []),
            "set": backend.set(keys, store.source(keys, 0).pages, []) if is_kept else [True] * count,
        }
        for verb, answer in answers.items():
            assert type(answer) is list, f"STORE-12: {verb}: expected a list, got {answer!r}"
            kinds = [type(one) for one in answer]
            assert kinds == [bool] * count, f"STORE-12: {verb}: expected {count} bools, got {answer!r}"
        pages = backend.exists(keys, [PoolQuery(keys, ALL, 0), PoolQuery(keys, TRAILING, 1)], [])
        assert type(pages) is int, f"STORE-12: exists: expected an int, got {pages!r}"
        assert pages == count * is_kept, f"STORE-2: of {count} pages {count * is_kept} are kept, got {pages}"
    assert type(backend.clear()) is bool, "STORE-12: clear: expected a bool"


# STORE-2: `exists` returns the longest prefix that all pools accept.


ALL, TRAILING = HitPolicy.ALL_PAGES, HitPolicy.TRAILING_PAGES
KV, INDEXER, STATES = page_keys(5), page_keys(5, "indexer"), page_keys(5, "mamba")


def keep(store: StorageDriver, keys: list[str], pages: tuple[int, ...]) -> None:
    """Store some of the pages of a pool."""
    store.set([keys[page] for page in pages])


@clause("STORE-2")
def test_a_prefix_ends_where_every_pool_accepts_it(store: StorageDriver) -> None:
    keep(store, KV, (0, 1, 2, 3, 4))
    keep(store, INDEXER, (0, 1, 2, 3))
    keep(store, STATES, (1, 2, 4))
    answer = store.exists(KV, [(INDEXER, ALL, 0), (STATES, TRAILING, 1)])
    assert answer == 3, f"STORE-2: the indexer accepts up to 4 pages, states accept 2, 3 and 5: got {answer}"


@clause("STORE-2")
@pytest.mark.parametrize(
    ("there", "trailing", "expected"),
    [((1, 2, 4), 1, 5), ((1, 2, 4), 2, 3), ((1, 2, 4), 3, 0), ((0, 1, 3), 3, 2), ((0, 1, 2), 9, 3), ((), 1, 0)],
)
def test_a_trailing_pool_needs_its_last_pages_or_all_of_a_shorter_prefix(
    store: StorageDriver, there: tuple[int, ...], trailing: int, expected: int
) -> None:
    keep(store, KV, (0, 1, 2, 3, 4))
    keep(store, STATES, there)
    answer = store.exists(KV, [(STATES, TRAILING, trailing)])
    assert answer == expected, f"STORE-2: window {trailing} over pages {there}: expected {expected}, got {answer}"


@clause("STORE-2")
@pytest.mark.parametrize(("there", "expected"), [((), 0), ((1, 2), 0), ((0, 2, 3), 1), ((0, 1, 2, 3, 4), 5)])
def test_pages_count_up_to_the_first_gap(store: StorageDriver, there: tuple[int, ...], expected: int) -> None:
    keep(store, KV, there)
    answer = store.exists(KV)
    assert answer == expected, f"STORE-2: pages {there} are there: expected {expected}, got {answer}"


@clause("STORE-2")
def test_an_empty_query_has_an_empty_prefix(store: StorageDriver) -> None:
    answer = store.exists([], [([], ALL, 0), ([], TRAILING, 1)])
    assert answer == 0, f"STORE-2: nothing was asked for: expected 0, got {answer}"


@clause("STORE-2")
def test_any_mix_of_pools_has_the_prefix_of_the_model(store: StorageDriver) -> None:
    dice = random.Random(2)
    for prompt in range(60):
        pools = [page_keys(dice.randint(0, 7), "kv", prompt)]
        pools += [page_keys(len(pools[0]), f"pool{number}", prompt) for number in range(dice.randint(0, 3))]
        for keys in pools:
            if kept := [key for key in keys if dice.random() < 0.8]:
                store.set(kept)
        store.exists(pools[0], [(keys, dice.choice([ALL, TRAILING]), dice.randint(1, 4)) for keys in pools[1:]])


@clause("STORE-2")
def test_a_pool_with_another_number_of_keys_is_refused(store: StorageDriver) -> None:
    backend = store.instances[0]
    with pytest.raises(ValueError, match=r"."):
        backend.exists(KV, [PoolQuery(INDEXER[:4], ALL, 0)], [])


# STORE-4 to STORE-7: existing objects are not overwritten, unequal numbers are refused, clear removes a scope.


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
