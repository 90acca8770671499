"""STORE-3: stored pages are read back, for any batch size and any pieces."""

from __future__ import annotations

from contextlib import closing

import pytest

from hicache.storage.base import BATCH_PAGES
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.page_bytes import Sheet, cut_evenly
from hicache.testing.storage.subject import Place

from .names import LAYERED, page_keys

CUTS = {
    "one piece": (4096,),
    "uneven pieces": LAYERED,
    "64 pieces": cut_evenly(4096, 64),
    "an empty piece": (0, 4096),
    "more pieces than one readv takes": cut_evenly(4096, 2048),
}


@clause("STORE-3")
@pytest.mark.parametrize("read", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("written", CUTS.values(), ids=CUTS)
def test_a_page_may_be_read_in_other_pieces_than_it_was_written(
    store: StorageDriver, written: tuple[int, ...], read: tuple[int, ...]
) -> None:
    keys = page_keys(3)
    store.set(keys, cuts=written)
    answers = store.get(keys, cuts=read)
    assert answers == [True] * 3, f"STORE-3: three pages were kept, got {answers}"


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
