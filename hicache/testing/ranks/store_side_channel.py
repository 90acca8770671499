"""StoreSideChannel: the side channel of a group whose ranks are processes, over a store that all of them reach."""

from __future__ import annotations

import json
import time
from typing import Protocol

from hicache.errors import RankError

PAUSE_S = 0.0005
"""The pause between two reads of the store."""


class Store(Protocol):
    """The methods that are used of torch.distributed's stores."""

    def set(self, key: str, value: str) -> None:
        """Store a text."""

    def get(self, key: str) -> bytes:
        """The stored text."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys exist."""


class StoreSideChannel:
    """One rank's end of a channel. `key`: unique to the group in the store."""

    def __init__(self, store: Store, key: str, name: str, size: int, timeout_s: float) -> None:
        self.name = name
        self.size = size
        self.timeout_s = timeout_s
        self._store = store
        self._key = key

    def exchange(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """See SideChannel."""
        self._store.set(self._place(number, rank), text)
        texts, left = {rank: text}, dict[int, str]()
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            self._require_unbroken()
            for other in set(range(self.size)) - texts.keys():
                self._look_for(other, number, texts, left)
            if len(texts.keys() | left) == self.size or time.monotonic() > deadline_s:
                return texts, left
            time.sleep(PAUSE_S)

    def _look_for(self, other: int, number: int, texts: dict[int, str], left: dict[int, str]) -> None:
        has_left = self._read(self._place("left", other))
        # Read in this order: a rank makes its last call before it leaves.
        text = self._read(self._place(number, other))
        if text is not None:
            texts[other] = text
        elif has_left is not None:
            left[other] = has_left

    def leave(self, rank: int, how: str) -> None:
        """See SideChannel."""
        if self._read(self._place("left", rank)) is None:
            self._store.set(self._place("left", rank), how)

    def abort(self, error: RankError) -> None:
        """See SideChannel."""
        self._store.set(f"{self._key}/broken", json.dumps([str(error), error.group, error.ranks]))

    def _require_unbroken(self) -> None:
        if (text := self._read(f"{self._key}/broken")) is not None:
            message, group, ranks = json.loads(text)
            raise RankError(message, group, tuple(ranks))

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _place(self, what: int | str, rank: int) -> str:
        return f"{self._key}/{what}/{rank}"
