"""Gate: lets verbs pass until a backend is closed, which waits for those that are inside."""

from __future__ import annotations

from threading import Condition


class Gate:
    """Files may be closed only when nobody reads them: their numbers are given out again."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._is_open = True

    def enter(self) -> bool:
        """Whether the caller is inside, and has to leave."""
        with self._changed:
            self._inside += self._is_open
            return self._is_open

    def leave(self) -> None:
        """The end of what `enter` began."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Let nobody in any more, and wait until all are out; whether it was open."""
        with self._changed:
            was_open, self._is_open = self._is_open, False
            self._changed.wait_for(lambda: not self._inside)
            return was_open
