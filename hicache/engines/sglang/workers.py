"""SGLang's storage threads: their work queues, the gate for their calls to storage, and when they are idle."""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hicache.types import StorageKind

TIMEOUT_S = 30.0
"""A thread that works longer than this on one item is reported as hanging."""

POLL_S = 0.0002

WORKERS = {
    "prefetch_queue": ("prefetch_thread", StorageKind.QUERY),
    "prefetch_buffer": ("prefetch_io_aux_thread", StorageKind.PREFETCH),
    "prefetch_sync_queue": ("prefetch_sync_thread", None),
    "backup_queue": ("backup_thread", StorageKind.STORE),
}
"""SGLang's queues in the order of the work, the thread of each, and the kind of its storage requests."""

ANSWERS = (
    *("prefetch_revoke_queue", "prefetch_hit_queue", "ack_prefetch_queue", "ack_backup_queue"),
    "host_mem_release_queue",
)
"""The queues with the results of the threads for the scheduler."""


CROSSINGS = ("_all_reduce_prefetch_groups", "_all_reduce")
"""The methods in which a thread agrees with those of the other ranks, as the releases name them."""


_OF_SGLANG = re.compile(r"\((prefetch|backup)_\w+_func\)$")
"""Matches the names that Python gives to threads after their functions."""

_others: list[Callable[[threading.ExceptHookArgs], object]] = []


class WorkQueue(queue.Queue[Any]):
    """A queue that records the item that each thread works on. Replaces `queue.Queue` in SGLang."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._taken: dict[threading.Thread, Any] = {}

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        # A thread that takes a new item has finished the one before.
        with self.mutex:
            self._taken.pop(threading.current_thread(), None)
        return super().get(block, timeout)

    def _get(self) -> Any:
        item = super()._get()
        if item is not None:
            self._taken[threading.current_thread()] = item
        return item

    def items(self) -> tuple[list[Any], dict[threading.Thread, Any]]:
        """The waiting items, and the item that each living thread works on."""
        with self.mutex:
            working = {thread: item for thread, item in self._taken.items() if thread.is_alive()}
            return [item for item in self.queue if item is not None], working


class Gate:
    """Lets calls to storage pass at once, or one by one when a test says so."""

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._changed = threading.Condition()
        self._waiting: set[threading.Thread] = set()

    def enter(self) -> None:
        """Pass, or wait until this thread is released."""
        thread = threading.current_thread()
        with self._changed:
            if not self._is_open:
                self._waiting.add(thread)
                self._changed.wait_for(lambda: thread not in self._waiting)

    def waiting(self) -> frozenset[threading.Thread]:
        """The threads that wait."""
        with self._changed:
            return frozenset(self._waiting)

    def release(self, thread: threading.Thread) -> None:
        """Let one call pass."""
        with self._changed:
            self._waiting.discard(thread)
            self._changed.notify_all()

    def set_open(self, *, is_open: bool) -> None:
        """Let all calls pass from now on, or only released ones."""
        with self._changed:
            self._is_open = is_open
            if is_open:
                self._waiting.clear()
            self._changed.notify_all()


class StorageThreads:
    """The storage threads of one of SGLang's controllers. `gate`: the gate for their calls."""

    def __init__(self, controller: Any, gate: Gate) -> None:
        self.gate = gate
        self._controller = controller
        self._crossing = set[threading.Thread]()
        self._crossings: dict[str, list[int]] = {}
        if threading.excepthook is not _note_death:
            _others.append(threading.excepthook)
            threading.excepthook = _note_death

    def wait_until_idle(self) -> None:
        """Wait until each thread is idle, waits at the gate or is dead. Raises TimeoutError when one hangs."""
        deadline = time.monotonic() + TIMEOUT_S
        while busy := [name for name in WORKERS if self._is_working(name)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"SGLang still works on its {', '.join(busy)} after {TIMEOUT_S} s")
            time.sleep(POLL_S)

    def waiting_at_gate(self) -> Iterator[tuple[threading.Thread, StorageKind, Any]]:
        """The threads that wait at the gate, their kind of request, and the operation that each works on."""
        waiting = self.gate.waiting()
        for name, (_, kind) in WORKERS.items():
            for thread, item in self._items(name)[1].items():
                if thread in waiting and kind is not None:
                    yield thread, kind, item

    def operations(self) -> Iterator[Any]:
        """The prefetches in the threads' queues, in work, or finished and not yet read by the scheduler."""
        for name in ("prefetch_queue", "prefetch_buffer", "prefetch_sync_queue", "ack_prefetch_queue"):
            waiting, working = self._items(name)
            # An item that the scheduler itself has taken from a queue is finished.
            mine = threading.current_thread()
            for item in (*waiting, *(item for thread, item in working.items() if thread is not mine)):
                yield getattr(item, "operation", item)

    def answers(self) -> tuple[int, ...]:
        """The number of results for the scheduler, by queue."""
        queues = [getattr(self._controller, name, None) for name in ANSWERS]
        queues += self._controller.extra_host_mem_release_queues.values()
        written = len(self._controller.ack_write_queue)
        return (written, *(one.qsize() for one in queues if one is not None))

    def watch_ranks(self) -> None:
        """Count from now on the collectives of the threads, in which they wait for other ranks."""
        for name in CROSSINGS:
            if hasattr(self._controller, name):
                setattr(self._controller, name, self._counted(getattr(self._controller, name)))

    def crossings(self) -> Mapping[str, Sequence[int]]:
        """How many collectives each thread has entered, and has left."""
        return {name: list(counts) for name, counts in self._crossings.items()}

    def _counted(self, collective: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: Any, **options: Any) -> None:
            thread = threading.current_thread()
            counts = self._crossings.setdefault(thread.name.partition("(")[2].rstrip(")"), [0, 0])
            counts[0] += 1
            self._crossing.add(thread)
            try:
                collective(*arguments, **options)
            finally:
                self._crossing.discard(thread)
                counts[1] += 1

        return counted

    def _is_working(self, name: str) -> bool:
        waits, working = self._items(name)
        waiting = self.gate.waiting() | self._crossing
        if any(thread not in waiting for thread in working):
            return True
        thread = getattr(self._controller, WORKERS[name][0], None)
        return bool(waits) and not working and thread is not None and thread.is_alive()

    def _items(self, name: str) -> tuple[list[Any], dict[threading.Thread, Any]]:
        found: WorkQueue | None = getattr(self._controller, name, None)
        return ([], {}) if found is None else found.items()


def _note_death(args: threading.ExceptHookArgs) -> None:
    """Log the error of a thread of SGLang. That it has ended shows in the work that it no longer does."""
    name = "" if args.thread is None else args.thread.name
    if _OF_SGLANG.search(name):
        logging.getLogger(__name__).warning("SGLang's %s died of %r", name, args.exc_value)
    else:
        _others[-1](args)
