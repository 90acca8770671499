"""Pause: when a server that failed is asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from hicache.storage.base import Breaker


class Pause:
    """Decides when servers that failed are asked again, so that they cost a cache at most half of its time.

    The pause after a failure is `shortest_s` seconds, or as long as the failed attempt if that took longer. Servers
    that fail share one pause: with one for each, a thread could wait for one server after the other all of its time.
    """

    def __init__(self, shortest_s: float, clock: Callable[[], float]) -> None:
        self._shortest_s = shortest_s
        self._clock = clock
        self._until = float("-inf")
        self._failing: set[str] = set()
        self._paused: set[str] = set()
        self._pauses = 0
        self._lock = Lock()

    @property
    def breaker(self) -> Breaker:
        """Whether the last attempt of any server that ended has failed, and how many pauses there were."""
        with self._lock:
            return Breaker(bool(self._failing), self._pauses)

    def is_failing(self, server: str) -> bool:
        """Whether the last attempt of a server that ended has failed."""
        with self._lock:
            return server in self._failing

    @contextmanager
    def attempt(self, failures: tuple[type[Exception], ...], server: str = "") -> Iterator[None]:
        """The block asks the server. Raises OSError during its pause, and for each of the `failures`."""
        began = self._clock()
        with self._lock:
            if began < self._until and server in self._paused:
                raise OSError(f"the server failed, and is asked again in {self._until - began:.1f} s")
        try:
            yield
        except failures as error:
            self._begin(server, began)
            raise OSError(str(error)) from error
        with self._lock:
            self._failing.discard(server)

    def _begin(self, server: str, began: float) -> None:
        now = self._clock()
        with self._lock:
            # Attempts that fail side by side begin one pause.
            self._pauses += now >= self._until
            self._failing.add(server)
            self._paused = (self._paused if now < self._until else set()) | self._failing
            self._until = max(self._until, now + max(self._shortest_s, now - began))
