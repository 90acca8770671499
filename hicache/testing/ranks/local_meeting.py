"""LocalMeeting: where the ranks of a group meet that are threads of one process."""

from __future__ import annotations

import threading

from hicache.errors import RankError


class LocalMeeting:
    """Shared by the threads. Texts of a call are kept until every rank has read them."""

    def __init__(self, name: str, size: int, timeout_s: float) -> None:
        self.name = name
        self.size = size
        self.timeout_s = timeout_s
        self._changed = threading.Condition()
        self._said: dict[int, dict[int, str]] = {}
        self._left: dict[int, str] = {}
        self._error: RankError | None = None

    def meet(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """As Meeting says."""
        with self._changed:
            said = self._said.setdefault(number, {})
            said[rank] = text
            # Who is here has read the call before the last one.
            self._said.pop(number - 2, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or len(said.keys() | self._left) == self.size, self.timeout_s)
            if (error := self._error) is not None:
                raise RankError(str(error), error.group, error.ranks)
            return dict(said), dict(self._left)

    def leave(self, rank: int, how: str) -> None:
        """As Meeting says."""
        with self._changed:
            self._left.setdefault(rank, how)
            self._changed.notify_all()

    def break_up(self, error: RankError) -> None:
        """As Meeting says."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
