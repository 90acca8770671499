"""SGLang's storage threads: what they work off, the gate that their calls to storage pass, and when they are quiet."""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hicache.types import StorageKind

PATIENCE_S = 30.0
"""After which a thread that works on something is taken to hang."""

POLL_S = 0.0002

WORKERS = {
    "prefetch_queue": ("prefetch_thread", StorageKind.QUERY),
    "prefetch_buffer": ("prefetch_io_aux_thread", StorageKind.PREFETCH),
    "prefetch_sync_queue": ("prefetch_sync_thread", None),
    "backup_queue": ("backup_thread", StorageKind.STORE),
}
"""SGLang's queues in the order in which work passes them, the thread of each, and what it asks of storage."""

ANSWERS = (
    *("prefetch_revoke_queue", "prefetch_hit_queue", "ack_prefetch_queue", "ack_backup_queue"),
    "host_mem_release_queue",
)
"""The queues in which the scheduler finds what the threads have done."""


_OF_SGLANG = re.compile(r"\((prefetch|backup)_\w+_func\)$")
"""How Python names a thread after what it runs."""

_others: list[Callable[[threading.ExceptHookArgs], object]] = []


class WorkQueue(queue.Queue[Any]):
    """A queue of SGLang's threads that knows which of them works on what it took. In the place of `queue.Queue`."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._taken: dict[threading.Thread, Any] = {}

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        # Who comes for more has done with what it took before.
        with self.mutex:
            self._taken.pop(threading.current_thread(), None)
        return super().get(block, timeout)

    def _get(self) -> Any:
        item = super()._get()
        if item is not None:
            self._taken[threading.current_thread()] = item
        return item

    def look(self) -> tuple[list[Any], dict[threading.Thread, Any]]:
        """What waits, and what each thread that is still there works on."""
        with self.mutex:
            working = {thread: item for thread, item in self._taken.items() if thread.is_alive()}
            return [item for item in self.queue if item is not None], working


class Gate:
    """Calls to storage pass it at once, or each when it is let: storage that answers when a test says so."""

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._changed = threading.Condition()
        self._waiting: set[threading.Thread] = set()

    def enter(self) -> None:
        """Pass, or wait until this thread is let."""
        thread = threading.current_thread()
        with self._changed:
            if not self._is_open:
                self._waiting.add(thread)
                self._changed.wait_for(lambda: thread not in self._waiting)

    def waiting(self) -> frozenset[threading.Thread]:
        """The threads that wait."""
        with self._changed:
            return frozenset(self._waiting)

    def let(self, thread: threading.Thread) -> None:
        """Let one call pass."""
        with self._changed:
            self._waiting.discard(thread)
            self._changed.notify_all()

    def turn(self, *, is_open: bool) -> None:
        """Let all calls pass from now on, or none that are not let."""
        with self._changed:
            self._is_open = is_open
            if is_open:
                self._waiting.clear()
            self._changed.notify_all()


class StorageThreads:
    """The threads of one of SGLang's controllers. `gate`: what their calls pass."""

    def __init__(self, controller: Any, gate: Gate) -> None:
        self.gate = gate
        self._controller = controller
        if threading.excepthook is not _note_death:
            _others.append(threading.excepthook)
            threading.excepthook = _note_death

    def settle(self) -> None:
        """Wait until each has nothing to do, waits at the gate or is dead. Raises TimeoutError when one hangs."""
        deadline = time.monotonic() + PATIENCE_S
        while busy := [name for name in WORKERS if self._is_working(name)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"SGLang still works on its {', '.join(busy)} after {PATIENCE_S} s")
            time.sleep(POLL_S)

    def at_the_gate(self) -> Iterator[tuple[threading.Thread, StorageKind, Any]]:
        """The threads that wait for storage, what of, and the operation that each works on."""
        waiting = self.gate.waiting()
        for name, (_, kind) in WORKERS.items():
            for thread, item in self._look(name)[1].items():
                if thread in waiting and kind is not None:
                    yield thread, kind, item

    def operations(self) -> Iterator[Any]:
        """The prefetches that threads work on, or will, or whose end the scheduler has not taken over."""
        for name in ("prefetch_queue", "prefetch_buffer", "prefetch_sync_queue", "ack_prefetch_queue"):
            waiting, working = self._look(name)
            # What the scheduler takes from a queue it has done with.
            mine = threading.current_thread()
            for item in (*waiting, *(item for thread, item in working.items() if thread is not mine)):
                yield getattr(item, "operation", item)

    def answers(self) -> tuple[int, ...]:
        """How much the scheduler finds when it looks, by queue."""
        queues = [getattr(self._controller, name, None) for name in ANSWERS]
        queues += self._controller.extra_host_mem_release_queues.values()
        written = len(self._controller.ack_write_queue)
        return (written, *(one.qsize() for one in queues if one is not None))

    def _is_working(self, name: str) -> bool:
        waits, working = self._look(name)
        at_gate = self.gate.waiting()
        if any(thread not in at_gate for thread in working):
            return True
        thread = getattr(self._controller, WORKERS[name][0], None)
        return bool(waits) and not working and thread is not None and thread.is_alive()

    def _look(self, name: str) -> tuple[list[Any], dict[threading.Thread, Any]]:
        found: WorkQueue | None = getattr(self._controller, name, None)
        return ([], {}) if found is None else found.look()


def _note_death(args: threading.ExceptHookArgs) -> None:
    """Say what one of SGLang's threads died of: that it is dead shows in what it does not do any more."""
    name = "" if args.thread is None else args.thread.name
    if _OF_SGLANG.search(name):
        logging.getLogger(__name__).warning("SGLang's %s died of %r", name, args.exc_value)
    else:
        _others[-1](args)
