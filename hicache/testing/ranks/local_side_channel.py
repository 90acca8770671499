"""LocalSideChannel: the side channel of a group whose ranks are threads of one process."""

from __future__ import annotations

import threading

from hicache.errors import RankError


class LocalSideChannel:
    """Shared by the threads. The texts of a call are kept until every rank has read them."""

    def __init__(self, name: str, size: int, timeout_s: float) -> None:
        self.name = name
        self.size = size
        self.timeout_s = timeout_s
        self._changed = threading.Condition()
        self._texts: dict[int, dict[int, str]] = {}
        self._left: dict[int, str] = {}
        self._error: RankError | None = None

    def exchange(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """See SideChannel."""
        with self._changed:
            texts = self._texts.setdefault(number, {})
            texts[rank] = text
            # A rank that is here has read the texts of the call before the last one.
            self._texts.pop(number - 2, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or len(texts.keys() | self._left) == self.size, self.timeout_s)
            if (error := self._error) is not None:
                raise RankError(str(error), error.group, error.ranks)
            return dict(texts), dict(self._left)

    def leave(self, rank: int, how: str) -> None:
        """See SideChannel."""
        with self._changed:
            self._left.setdefault(rank, how)
            self._changed.notify_all()

    def abort(self, error: RankError) -> None:
        """See SideChannel."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
