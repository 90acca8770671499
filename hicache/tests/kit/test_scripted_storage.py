"""Scripted storage does what a test says, and the oracle of usable prefixes agrees with the protocol's rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import ConfigurationError
from hicache.storage.base import usable_pages
from hicache.testing.storage.scripted import ScriptedStorage, Store, store_named
from hicache.testing.stored import restorable_pages
from hicache.types import HitPolicy, Pool

PAGE = b"page"


@pytest.fixture
def store() -> Store:
    found = store_named("kit")
    found.empty()
    return found


@pytest.fixture
def backend(store: Store) -> ScriptedStorage:
    assert not store.objects, "each test begins with an empty store"
    return ScriptedStorage("scope", {"store": "kit"})


def put(backend: ScriptedStorage, *keys: str) -> list[bool]:
    return backend.set(keys, [[memoryview(PAGE)] for _ in keys], ())


def get(backend: ScriptedStorage, *keys: str, size: int = 4) -> tuple[list[bool], list[bytes]]:
    targets = [bytearray(size) for _ in keys]
    answer = backend.get(keys, [[memoryview(target)] for target in targets], ())
    return answer, list(map(bytes, targets))


def test_objects_outlive_the_instance(backend: ScriptedStorage) -> None:
    assert put(backend, "a", "b") == [True, True], "both are kept"
    backend.close()
    other = ScriptedStorage("scope", {"store": "kit"})
    assert get(other, "a") == ([True], [PAGE]), "another instance reads it"
    assert ScriptedStorage("other", {"store": "kit"}).has(["a"]) == [False], "another scope does not see it"


@pytest.mark.parametrize("reason", ["absent", "corrupt"])
def test_a_corrupt_object_is_a_miss_once_it_is_read(backend: ScriptedStorage, store: Store, reason: str) -> None:
    put(backend, "a")
    store.corrupt(["scope/a", "scope/none"], reason)
    assert (backend.has(["a"]), store.readable(["scope/a"])) == ([True], [False]), "expected `has` not to detect it"
    answer, (bytes_there,) = get(backend, "a")
    assert answer == [False], "it cannot be read"
    assert bytes_there != PAGE, "expected no data in the target"
    assert backend.has(["a"]) == [False], "expected it to be absent after the read"
    assert put(backend, "a") == [True], "expected it to be written again"
    assert get(backend, "a") == ([True], [PAGE]), "and read"
    assert dict(backend.stats().misses) == {reason: 1}, f"the reason is counted, got {backend.stats().misses}"


@pytest.mark.parametrize(("size", "reason"), [(3, "long"), (5, "short")])
def test_an_object_of_another_size_is_missed(backend: ScriptedStorage, size: int, reason: str) -> None:
    put(backend, "a")
    assert get(backend, "a", size=size)[0] == [False], f"it has 4 bytes, not {size}"
    assert dict(backend.stats().misses) == {reason: 1}, f"got {backend.stats().misses}"


def test_faults_are_injected_as_set(backend: ScriptedStorage, store: Store) -> None:
    store.faults.refused = {"scope/b"}
    store.faults.failing_sets = 1
    assert put(backend, "a", "b", "c") == [False, False, True], "the first fails, b is refused, c is kept"
    assert store.has_refused, "which is remembered"
    assert store.offered == {"scope/a", "scope/b", "scope/c"}, f"got {store.offered}"
    store.faults.failing_gets = 1
    assert get(backend, "c")[0] == [False], "the next page cannot be read"
    store.faults.raising = {"has"}
    with pytest.raises(RuntimeError, match="has of 1 keys"):
        backend.has(["a"])


def test_memory_that_was_not_registered_is_seen(backend: ScriptedStorage, store: Store) -> None:
    region = memoryview(bytearray(PAGE * 2))
    backend.register([region])
    backend.set(["a"], [[region[:2], region[2:4]]], ())
    assert (store.moved_pieces, store.stray_pieces) == (2, 0), "both pieces lie in the region"
    put(backend, "b")
    assert (store.moved_pieces, store.stray_pieces) == (3, 1), "this one does not"


@pytest.mark.parametrize("options", [{}, {"store": 1}, {"store": "kit", "x": 1}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="ScriptedStorage"):
        ScriptedStorage("scope", options)


FLAGS = st.lists(st.booleans(), min_size=6, max_size=6)


@given(kv=FLAGS, indexer=FLAGS, swa=FLAGS, mamba=FLAGS, window=st.integers(1, 7))
def test_two_ways_to_find_the_longest_prefix_agree(
    kv: list[bool], indexer: list[bool], swa: list[bool], mamba: list[bool], window: int
) -> None:
    whole = kv.index(False) if False in kv else len(kv)
    wants = [
        (indexer[:whole], HitPolicy.ALL_PAGES, 0),
        (swa[:whole], HitPolicy.TRAILING_PAGES, window),
        (mamba[:whole], HitPolicy.TRAILING_PAGES, 1),
    ]
    expected = usable_pages(whole, wants)
    present = {Pool.KV: kv, Pool.INDEXER: indexer, Pool.SWA: swa, Pool.MAMBA: mamba}
    found = restorable_pages(present, window)
    assert found == expected, f"STORE-2: {expected} by intersection, {found} length by length"
