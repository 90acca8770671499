"""FaultyStorage: lets another backend fail, as a seed decides."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from threading import Lock
from typing import Any

from hicache.storage.base import Pieces, PoolQuery, StorageBackend
from hicache.storage.wrapper import StorageWrapper


class Fault(str, Enum):
    """What may go wrong.

    Of a call: an error, so that every answer is False; a pause; a batch of which only the first pages are done. Of a
    page: a read that ends early; a write of which the inner backend gets the first half, as an object of its own; an
    object that is there when it is asked for, and gone when it is read, until it is set again.
    """

    ERROR = "error"
    SLOW = "slow"
    PARTIAL = "partial"
    SHORT = "short"
    TORN = "torn"
    GONE = "gone"


class FaultyStorage(StorageWrapper):
    """Never answers True for what is not so.

    Options: `seed`; for each fault, by its name, how likely it is, from 0 to 1; `delay_s`, the length of a pause, and
    `pause`, which takes so long. `injected`: how often there was each.
    """

    NAME = "faulty"
    OWN = ("seed", "delay_s", "pause", *[fault.value for fault in Fault])

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.injected: Counter[Fault] = Counter()
        self._rates = {fault: self.told.number(fault.value, 0, 1) for fault in Fault}
        self._random = random.Random(self.told.whole("seed", 0))
        self._delay_s = self.told.number("delay_s", 0, 3_600)
        self._pause: Callable[[float], None] = self.told.function("pause", time.sleep)
        self._gone: set[str] = set()
        self._lock = Lock()

    def has(self, keys: Sequence[str]) -> list[bool]:
        if self._fails():
            return [False] * len(keys)
        present = [is_there and key not in self._gone for key, is_there in zip(keys, super().has(keys), strict=True)]
        self._gone.update(
            [key for key, is_there in zip(keys, present, strict=True) if is_there and self._draw(Fault.GONE)]
        )
        return present

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if self._fails():
            return [False] * len(keys)
        if len(keys) != len(targets):
            return super().get(keys, targets, prefix_keys)
        asked = self._part(len(keys))
        answers = super().get(keys[:asked], targets[:asked], prefix_keys)
        for number, key in enumerate(keys[:asked]):
            if key in self._gone:
                answers[number] = False
            elif answers[number] and self._draw(Fault.SHORT):
                _spoil_end(targets[number])
                answers[number] = False
        return answers + [False] * (len(keys) - asked)

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if self._fails():
            return [False] * len(keys)
        if len(keys) != len(sources):
            return super().set(keys, sources, prefix_keys)
        asked = self._part(len(keys))
        torn = [self._draw(Fault.TORN) for _ in range(asked)]
        given = [_first_half(page) if is_torn else page for page, is_torn in zip(sources, torn, strict=False)]
        answers = super().set(keys[:asked], given, prefix_keys)
        self._gone.difference_update(keys[:asked])
        whole = [is_kept and not is_torn for is_kept, is_torn in zip(answers, torn, strict=True)]
        return whole + [False] * (len(keys) - asked)

    def clear(self) -> bool:
        if self._fails():
            return False
        self._gone.clear()
        return super().clear()

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        # The inner backend's own would not meet the faults of `has`.
        return StorageBackend.exists(self, keys, queries, prefix_keys)

    def _fails(self) -> bool:
        if self._draw(Fault.SLOW):
            self._pause(self._delay_s)
        return self._draw(Fault.ERROR)

    def _part(self, pages: int) -> int:
        """How many pages of a batch are asked for."""
        if not pages or not self._draw(Fault.PARTIAL):
            return pages
        with self._lock:
            return self._random.randrange(pages)

    def _draw(self, fault: Fault) -> bool:
        with self._lock:
            happens = self._random.random() < self._rates[fault]
            self.injected[fault] += happens
            return happens


def _first_half(page: Pieces) -> Pieces:
    return [piece[: len(piece) // 2] for piece in page]


def _spoil_end(page: Pieces) -> None:
    for last in page[-1:]:
        last[:] = bytes([byte ^ 0xFF for byte in last])
