"""MemoryStorage: shares what it keeps by name, lets the least recently used go, and closes behind a gate."""

from __future__ import annotations

from threading import Thread

import pytest

from hicache.storage.memory import MemoryStorage
from hicache.storage.paged import Gate

from .conftest import PAGE_BYTES, SCOPE, in_pieces, page, put, take


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
