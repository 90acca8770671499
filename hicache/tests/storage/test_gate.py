"""Gate: what is inside ends before a backend is closed."""

from __future__ import annotations

from threading import Thread

from hicache.storage.paged import Gate

MOMENT_S = 0.02


def test_closing_waits_for_those_inside() -> None:
    gate = Gate()
    assert gate.enter(), "it is open"
    closing = Thread(target=gate.close)
    closing.start()
    while gate.enter():
        gate.leave()
    closing.join(MOMENT_S)
    assert closing.is_alive(), "somebody is inside"
    gate.leave()
    closing.join()
    assert not gate.enter(), "nobody enters a closed gate"


def test_a_gate_is_closed_once() -> None:
    gate = Gate()
    assert [gate.close(), gate.close()] == [True, False], "the first one closes it"
