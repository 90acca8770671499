"""SGLang's storage threads as its adapter sees them: their work, the gate, and when they are idle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from hicache.testing.adapters.sglang_workers import Gate, StorageThreads, WorkQueue
from hicache.types import StorageKind


class Controller(SimpleNamespace):
    """A controller with one thread that calls storage for each item in its queue, as SGLang's threads do."""

    def __init__(self, gate: Gate) -> None:
        queues = {name: WorkQueue() for name in ("prefetch_queue", "prefetch_hit_queue")}
        super().__init__(**queues, extra_host_mem_release_queues={}, ack_write_queue=[])
        self._gate = gate
        self.prefetch_thread = threading.Thread(target=self.prefetch_thread_func, daemon=True)
        self.prefetch_thread.start()

    def prefetch_thread_func(self) -> None:
        while (item := self.prefetch_queue.get()) != "end":
            self._gate.enter()
            if item == "bad":
                raise RuntimeError("storage raises, as a test wants it")
            self.prefetch_hit_queue.put(item)


@contextmanager
def working(*, is_open: bool) -> Iterator[tuple[Controller, StorageThreads]]:
    """A controller whose thread has ended after the block."""
    gate = Gate(is_open=is_open)
    controller = Controller(gate)
    try:
        yield controller, StorageThreads(controller, gate)
    finally:
        gate.set_open(is_open=True)
        controller.prefetch_queue.put("end")
        controller.prefetch_thread.join(timeout=10)
        assert not controller.prefetch_thread.is_alive(), "expected the thread to have ended"


def test_every_request_is_answered_when_all_threads_are_idle() -> None:
    with working(is_open=True) as (controller, threads):
        for number in range(20):
            controller.prefetch_queue.put(number)
            threads.wait_until_idle()
            assert threads.answers() == (0, number + 1), f"{number + 1} answers, got {threads.answers()}"
            assert not list(threads.operations()), "expected no operation in work"


def test_a_thread_waits_at_the_gate_until_it_is_released() -> None:
    with working(is_open=False) as (controller, threads):
        controller.prefetch_queue.put("first")
        controller.prefetch_queue.put("second")
        for name in ("first", "second"):
            threads.wait_until_idle()
            [(thread, kind, item)] = threads.waiting_at_gate()
            assert (kind, item) == (StorageKind.QUERY, name), f"one question at a time, got {kind}, {item}"
            assert name in threads.operations(), f"{name} is worked on, got {list(threads.operations())}"
            threads.gate.release(thread)
        threads.wait_until_idle()
        assert threads.answers() == (0, 2), f"expected both to be released, got {threads.answers()}"


def test_a_gate_that_opens_lets_all_pass() -> None:
    with working(is_open=False) as (controller, threads):
        controller.prefetch_queue.put("first")
        threads.wait_until_idle()
        threads.gate.set_open(is_open=True)
        controller.prefetch_queue.put("second")
        threads.wait_until_idle()
        assert threads.answers() == (0, 2), f"expected both answers, got {threads.answers()}"


def test_a_thread_that_raised_is_idle_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), working(is_open=True) as (controller, threads):
        controller.prefetch_queue.put("bad")
        controller.prefetch_thread.join(timeout=10)
        controller.prefetch_queue.put("never")
        threads.wait_until_idle()
        assert threads.answers() == (0, 0), f"expected no answers of a dead thread, got {threads.answers()}"
    assert "as a test wants it" in caplog.text, f"expected the error in the log, got {caplog.text!r}"
