"""StoreMeeting: where the ranks of a group meet that are processes: at a store that all of them reach."""

from __future__ import annotations

import json
import time
from typing import Protocol

from hicache.errors import RankError

PAUSE_S = 0.0005
"""Between two looks at the store."""


class Store(Protocol):
    """What is asked of one of torch.distributed's stores."""

    def set(self, key: str, value: str) -> None:
        """Keep a text."""

    def get(self, key: str) -> bytes:
        """What was kept."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these are there."""


class StoreMeeting:
    """One rank's end of a meeting. `key`: unique to the group in the store."""

    def __init__(self, store: Store, key: str, name: str, size: int, timeout_s: float) -> None:
        self.name = name
        self.size = size
        self.timeout_s = timeout_s
        self._store = store
        self._key = key

    def meet(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """As Meeting says."""
        self._store.set(self._place(number, rank), text)
        said, left = {rank: text}, dict[int, str]()
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            self._require_unbroken()
            for other in set(range(self.size)) - said.keys():
                self._look_for(other, number, said, left)
            if len(said.keys() | left) == self.size or time.monotonic() > deadline_s:
                return said, left
            time.sleep(PAUSE_S)

    def _look_for(self, other: int, number: int, said: dict[int, str], left: dict[int, str]) -> None:
        has_left = self._read(self._place("left", other))
        # Only now: a rank comes to its last call before it leaves.
        word = self._read(self._place(number, other))
        if word is not None:
            said[other] = word
        elif has_left is not None:
            left[other] = has_left

    def leave(self, rank: int, how: str) -> None:
        """As Meeting says."""
        if self._read(self._place("left", rank)) is None:
            self._store.set(self._place("left", rank), how)

    def break_up(self, error: RankError) -> None:
        """As Meeting says."""
        self._store.set(f"{self._key}/broken", json.dumps([str(error), error.group, error.ranks]))

    def _require_unbroken(self) -> None:
        if (word := self._read(f"{self._key}/broken")) is not None:
            message, group, ranks = json.loads(word)
            raise RankError(message, group, tuple(ranks))

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _place(self, what: int | str, rank: int) -> str:
        return f"{self._key}/{what}/{rank}"
