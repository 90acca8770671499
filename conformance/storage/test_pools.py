"""STORE-15: a backend on 3FS keeps the pools of each rank apart, and asks the service for all of them at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from hicache.storage.base import PoolQuery
from hicache.storage.hf3fs.pages import MAX_KEYS
from hicache.testing.contract import clause
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.faults import files_of
from hicache.testing.storage.page_bytes import Sheet
from hicache.testing.storage.subject import CAPACITY_PAGES, Place
from hicache.types import HitPolicy

from .metadata import Metadata
from .names import page_keys

PAGE, STATE = 4096, 1 << 18
ROOM = 8
POOLS = ("kv", "swa", "mamba", "indexer")

pytestmark = pytest.mark.usefixtures("metadata")


@pytest.fixture
def small(place: Place, tmp_path: Path) -> Iterator[Place]:
    """A place with room for 8 pages of each pool."""
    with closing(Place(place.subject, tmp_path, page_bytes=PAGE, capacity_bytes=ROOM * PAGE)) as opened:
        yield opened


def of_rank(keys: Sequence[str], rank: int) -> list[str]:
    """The keys that one of two tensor-parallel ranks has for the same pages."""
    return [key.replace("tp0of1", f"tp{rank}of2") for key in keys]


@clause("STORE-15")
def test_pages_of_one_pool_evict_none_of_another(small: Place) -> None:
    store = StorageDriver(small, forgets=True)
    kept = page_keys(ROOM)
    store.set(kept)
    for pool in POOLS[1:]:
        for prompt in range(3):
            stored = store.set(page_keys(ROOM, pool, prompt))
            assert stored == [True] * ROOM, f"STORE-15: {pool} has room for {ROOM} pages, got {stored}"
    there = store.get(kept)
    assert there == [True] * ROOM, f"STORE-15: other pools were filled three times: expected all KV pages, got {there}"


@clause("STORE-15")
def test_pages_of_one_rank_evict_none_of_another(small: Place) -> None:
    store = StorageDriver(small, forgets=True)
    first = of_rank(page_keys(ROOM), 0)
    store.set(first)
    for prompt in range(3):
        store.set(of_rank(page_keys(ROOM, prompt=prompt), 1))
    there = store.get(first)
    assert there == [True] * ROOM, f"STORE-15: rank 1 stored three times as much: expected {ROOM} pages, got {there}"


@clause("STORE-15")
def test_a_pool_has_the_capacity_that_is_told_for_it(small: Place) -> None:
    for name, option in small.subject.options.items():
        if option == CAPACITY_PAGES:
            small.options[name] = {"kv": ROOM, "mamba": 2}
    store = StorageDriver(small, forgets=True)
    kv, states, others = page_keys(ROOM), page_keys(3, "mamba"), page_keys(1, "swa")
    answers = (store.set(kv), store.set(states[:2]), store.set(states[2:]), store.set(others))
    assert answers == ([True] * ROOM, [True] * 2, [True], [False]), (
        f"STORE-15: room for {ROOM} KV pages, 2 states and no window: got {answers}"
    )
    there = (store.get(kv), store.get(states), store.get(others))
    expected = ([True] * ROOM, [False, True, True], [False])
    assert there == expected, f"STORE-15: the third state took the place of the first: expected {expected}, got {there}"


@clause("STORE-15")
def test_a_page_takes_the_room_of_a_page_of_its_pool(small: Place) -> None:
    backend = small.open(small.scope("a"))
    sizes = {"kv": PAGE, "mamba": STATE}
    backend.register_pools({key.partition("/")[0]: sizes[pool] for pool in sizes for key in page_keys(1, pool)})
    for pool, size in sizes.items():
        stored = backend.set(page_keys(ROOM, pool), Sheet([(size,)] * ROOM).pages, [])
        assert stored == [True] * ROOM, f"STORE-15: {pool} has room for {ROOM} pages of {size} bytes, got {stored}"
    length = sum(path.stat().st_size for path in files_of(small.directory))
    # A page has a header, and begins at a block of the disk.
    most = ROOM * (PAGE + STATE + 2 * 4096)
    assert length <= most, f"STORE-15: {ROOM} pages of each pool: expected files of at most {most} bytes, got {length}"


@clause("STORE-7", "STORE-15")
def test_clear_removes_the_pages_of_all_pools(small: Place) -> None:
    store = StorageDriver(small, forgets=True)
    keys = [key for pool in POOLS for key in of_rank(page_keys(2, pool), 1)]
    store.set(keys)
    store.reopen()
    objects = store.instances[0].stats().objects
    assert objects == len(keys), f"STORE-15: expected {len(keys)} objects of all pools of the scope, got {objects}"
    assert store.clear(), "STORE-7: expected all to be removed"
    there = store.has(keys)
    assert not any(there), f"STORE-7: expected no page of any pool, by an instance that had used none, got {there}"


@clause("STORE-15")
def test_all_pools_are_asked_for_in_one_exchange(place: Place, exchanges: list[str]) -> None:
    backend = place.open(place.scope("a"))
    pools = [page_keys(ROOM, pool) for pool in POOLS]
    keys = [key for pool in pools for key in pool]
    pages = Sheet([(PAGE,)] * len(keys)).pages
    backend.register_pools({pool[0].partition("/")[0]: PAGE for pool in pools})
    queries = [PoolQuery(pool, HitPolicy.TRAILING_PAGES, 1) for pool in pools[1:]]
    verbs = {"set": 2, "exists": 1, "get": 1}
    for verb, expected in verbs.items():
        exchanges.clear()
        if verb == "exists":
            pages_found = backend.exists(pools[0], queries, [])
            assert pages_found == ROOM, f"STORE-2: all pools have {ROOM} pages, got {pages_found}"
        else:
            answers = getattr(backend, verb)(keys, pages, [])
            assert all(answers), f"STORE-3: expected {verb} of {len(keys)} pages to succeed, got {answers}"
        assert len(exchanges) == expected, f"STORE-15: {verb}, 4 pools: expected {expected} exchanges, got {exchanges}"


def batch(metadata: Metadata, *requests: tuple[str, object]) -> tuple[int, object]:
    """Send requests as one."""
    status, content = metadata.post("/batch", json.dumps({"requests": requests}).encode())
    return status, content["replies"] if status == 200 else content


@clause("STORE-15", "SEC-4")
def test_each_request_of_a_batch_is_served_as_if_it_were_alone(metadata: Metadata) -> None:
    metadata.initialise(3)
    states = metadata.of(1, "mamba")
    states.initialise(2)
    of_states = {"namespace": "mamba"}
    found = batch(
        metadata,
        ("/0/reserve_and_allocate_page_indices", {"keys": [["a", ""]]}),
        ("/1/reserve_and_allocate_page_indices", {"keys": [["a", ""]], **of_states}),
        ("/2/exists", {"keys": ["a"]}),
        ("/0/exists", {"keys": [""]}),
        ("/0/nope", {}),
        ("/batch", {"requests": []}),
        ("/0/confirm_write", {"written_keys_to_confirm": [["a", 2]]}),
        ("/1/confirm_write", {"written_keys_to_confirm": [["a", 1]], **of_states}),
        ("/1/exists", {"keys": ["a", "b"], **of_states}),
    )
    assert found[0] == 200, f"STORE-15: expected a batch to be answered, got {found}"
    assert isinstance(found[1], list), f"STORE-15: expected a reply to each request, got {found}"
    statuses = [status for status, _ in found[1]]
    assert statuses == [200, 200, 404, 422, 404, 404, 204, 204, 200], f"STORE-15: each by itself, got {found}"
    assert found[1][-1][1] == {"exists": [True, False]}, f"STORE-15: they are served in order, got {found}"
    assert (metadata.find("a"), states.find("a")) == ([2], [1]), "STORE-15: expected a page in each namespace"


@clause("SEC-4", "STORE-15")
def test_a_batch_that_cannot_be_read_is_refused(metadata: Metadata) -> None:
    metadata.initialise(3)
    half = [str(number) for number in range(MAX_KEYS // 2 + 1)]
    wrong: dict[str, tuple[int, object]] = {
        "no requests": (422, {}),
        "requests that are no list": (422, {"requests": 1}),
        "a request that is no pair": (422, {"requests": [["/0/clear"]]}),
        "fields that are no object": (422, {"requests": [["/0/clear", {}], ["/0/clear", []]]}),
        "a path that is no text": (422, {"requests": [[1, {}]]}),
        "too many requests": (413, {"requests": [["/0/clear", {}]] * (MAX_KEYS + 1)}),
        "too many keys": (413, {"requests": [["/0/exists", {"keys": half}]] * 2}),
    }
    metadata.keep("a")
    for name, (status, fields) in wrong.items():
        answer = metadata.post("/batch", json.dumps(fields).encode())
        assert answer.status == status, f"SEC-4: {name}: expected {status}, got {str(answer)[:200]}"
        assert metadata.find("a") == [2], f"SEC-4: {name}: expected nothing to be changed"
