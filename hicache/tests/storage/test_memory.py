"""MemoryStorage: shares what it keeps by name, lets the least recently used go, and closes behind a gate."""

from __future__ import annotations

from threading import Thread

import pytest

from hicache.errors import KeyFormError
from hicache.storage.memory import MemoryStorage
from hicache.storage.paged import Gate

from .conftest import PAGE_BYTES, SCOPE, in_pieces, keys_of, page, put, take


def test_a_named_store_outlives_its_instances(request: pytest.FixtureRequest) -> None:
    options = {"store": request.node.name}
    first = MemoryStorage(SCOPE, options)
    put(first, a=page(1))
    first.close()
    second = MemoryStorage(SCOPE, options)
    assert take(second, "a") == page(1), "FLOW-9: what was kept under the name of a store is there after a restart"
    assert MemoryStorage("other", options).has(["a"]) == [False], "STORE-7: another scope sees nothing of it"
    second.clear()


def test_without_a_name_nothing_is_shared() -> None:
    put(MemoryStorage(SCOPE, {}), a=page(1))
    assert MemoryStorage(SCOPE, {}).has(["a"]) == [False], "each instance has a store of its own"


def test_the_least_recently_used_make_room() -> None:
    backend = MemoryStorage(SCOPE, {"capacity_bytes": 2 * PAGE_BYTES})
    put(backend, a=page(1), b=page(2))
    take(backend, "a")
    put(backend, c=page(3))
    assert backend.has(["a", "b", "c"]) == [True, False, True], "STORE-8: b was used least recently"
    stats = backend.stats()
    assert (stats.objects, stats.object_bytes, stats.removed) == (2, 2 * PAGE_BYTES, 1), (
        f"two of three are kept: {stats}"
    )


def test_a_batch_does_not_push_out_its_own_pages() -> None:
    backend = MemoryStorage(SCOPE, {"capacity_bytes": 2 * PAGE_BYTES})
    put(backend, a=page(1))
    assert put(backend, a=page(1), b=page(2), c=page(3)) == [True, True, False], "STORE-8: there is room for two"
    assert backend.has(["a", "b", "c"]) == [True, True, False], "what was answered True is there"


def test_what_no_capacity_can_hold_is_refused() -> None:
    backend = MemoryStorage(SCOPE, {"capacity_bytes": PAGE_BYTES - 1})
    put(backend, b=page(2, 1))
    assert put(backend, a=page(1)) == [False], "STORE-8: a page is larger than the capacity"
    assert backend.has(["b"]) == [True], "STORE-8: so nothing has to go"
    assert backend.stats().refused == {"full": 1}, f"it is counted as full: {backend.stats()}"


@pytest.mark.parametrize(("kept", "reason"), [(PAGE_BYTES - 1, "short"), (PAGE_BYTES + 1, "long")])
def test_an_object_of_another_size_is_a_miss_and_goes(kept: int, reason: str) -> None:
    backend = MemoryStorage(SCOPE, {})
    put(backend, a=page(1, kept))
    assert take(backend, "a") is None, f"STORE-3: an object of {kept} bytes is not a page of {PAGE_BYTES}"
    assert backend.stats().misses == {reason: 1}, f"STORE-3: counted with its reason: {backend.stats()}"
    assert backend.has(["a"]) == [False], "it can be written anew"


def test_a_count_mismatch_touches_nothing() -> None:
    backend, target = MemoryStorage(SCOPE, {}), bytearray(PAGE_BYTES)
    put(backend, a=page(1))
    assert backend.get(["a", "b"], [in_pieces(target)], ()) == [False, False], "STORE-6: False for each key"
    assert not any(target), "STORE-6: nothing is written"
    assert backend.stats().misses == {"mismatch": 2}, f"STORE-6: counted for each key: {backend.stats()}"


def test_a_closed_backend_answers() -> None:
    backend = MemoryStorage(SCOPE, {})
    put(backend, a=page(1))
    backend.close()
    backend.close()
    assert (backend.has(["a"]), take(backend, "a"), put(backend, a=page(1))) == ([False], None, [False]), (
        "what is closed keeps and gives nothing"
    )


@pytest.mark.parametrize("key", ["", "/a", "../a", "a/../b", "a//b", ".a", "a\0", "ä", "a b", "a" * 201])
def test_a_malformed_key_is_a_mistake_of_the_caller(key: str) -> None:
    backend = MemoryStorage(SCOPE, {})
    with pytest.raises(KeyFormError):
        backend.has([*keys_of(1), key])
    with pytest.raises(KeyFormError):
        take(backend, key)
    with pytest.raises(KeyFormError):
        put(backend, **{key: page(1)})


# Gate: what is inside ends before a backend is closed.

MOMENT_S = 0.02


def test_closing_waits_for_those_inside() -> None:
    gate = Gate()
    assert gate.enter(), "it is open"
    closing = Thread(target=gate.close)
    closing.start()
    while gate.enter():
        gate.leave()
    closing.join(MOMENT_S)
    assert closing.is_alive(), "a caller is inside"
    gate.leave()
    closing.join()
    assert not gate.enter(), "a closed gate admits no caller"


def test_a_gate_is_closed_once() -> None:
    gate = Gate()
    assert [gate.close(), gate.close()] == [True, False], "the first one closes it"
