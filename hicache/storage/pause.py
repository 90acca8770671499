"""Pause: when a server that failed is asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from hicache.storage.base import Breaker


class Pause:
    """Decides when a server that failed is asked again, so that it costs a cache at most half of its time.

    The pause after a failure is `shortest_s` seconds, or as long as the failed attempt if that took longer.
    """

    def __init__(self, shortest_s: float, clock: Callable[[], float]) -> None:
        self._shortest_s = shortest_s
        self._clock = clock
        self._until = float("-inf")
        self._is_failing = False
        self._pauses = 0
        self._lock = Lock()

    @property
    def breaker(self) -> Breaker:
        """Whether the last attempt that ended has failed, and how many pauses there were."""
        with self._lock:
            return Breaker(self._is_failing, self._pauses)

    @contextmanager
    def attempt(self, failures: tuple[type[Exception], ...]) -> Iterator[None]:
        """The block asks the server. Raises OSError during a pause, and for each of the `failures`."""
        began = self._clock()
        with self._lock:
            if began < self._until:
                raise OSError(f"the server failed, and is asked again in {self._until - began:.1f} s")
        try:
            yield
        except failures as error:
            now = self._clock()
            with self._lock:
                # Attempts that fail side by side begin one pause.
                self._pauses += now >= self._until
                self._is_failing = True
                self._until = now + max(self._shortest_s, now - began)
            raise OSError(str(error)) from error
        with self._lock:
            self._is_failing = False
