"""PagedStorage: what our own backends do alike: check keys, count pages, and turn what fails into answers."""

from __future__ import annotations

import logging
import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from hicache.storage.answers import Answer
from hicache.storage.base import Pieces, StorageBackend
from hicache.storage.gate import Gate
from hicache.storage.object_keys import check_keys, check_scope
from hicache.storage.stats import StorageStats
from hicache.storage.tally import Tally

T = TypeVar("T")

LOG = logging.getLogger(__name__)

OPERATING_ERRORS = (OSError, sqlite3.Error)
"""What a machine may do to us. All else is a mistake of a programmer, and raises."""


class PagedStorage(StorageBackend):
    """A backend that answers page by page. After `close` nothing is there, and what is asked for is an error."""

    def __init__(self, scope: str) -> None:
        self.scope = check_scope(scope)
        self.tally = Tally()
        self._gate = Gate()
        self._has_failed = False

    def has(self, keys: Sequence[str]) -> list[bool]:
        check_keys(keys)
        return self._guarded(lambda: self._present(keys), [False] * len(keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = self._answers(keys, targets, self._read)
        self.tally.read(answers, targets)
        done = Answer.DONE
        return [answer is done for answer in answers]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = self._answers(keys, sources, self._write)
        self.tally.wrote(answers, sources)
        return [answer in (Answer.DONE, Answer.PRESENT) for answer in answers]

    def clear(self) -> bool:
        return self._guarded(self._remove_all, False)

    def stats(self) -> StorageStats:
        return self.tally.stats(*self._guarded(self._holdings, (0, 0)))

    def close(self) -> None:
        if self._gate.close():
            try:
                self._release()
            except OPERATING_ERRORS as error:
                self.failed(error)

    def failed(self, error: Exception) -> Answer:
        """The answer for what could not be done; the first failure is logged."""
        if not self._has_failed:
            self._has_failed = True
            LOG.warning("%s of scope %s: %s; further failures are counted", type(self).__name__, self.scope, error)
        return Answer.ERROR

    def _answers(
        self,
        keys: Sequence[str],
        pages: Sequence[Pieces],
        act: Callable[[Sequence[str], Sequence[Pieces]], list[Answer]],
    ) -> list[Answer]:
        check_keys(keys)
        if len(keys) != len(pages):
            return [Answer.MISMATCH] * len(keys)
        return self._guarded(lambda: act(keys, pages), [Answer.ERROR] * len(keys))

    def _guarded(self, act: Callable[[], T], otherwise: T) -> T:
        if not self._gate.enter():
            return otherwise
        try:
            return act()
        except OPERATING_ERRORS as error:
            self.failed(error)
            return otherwise
        finally:
            self._gate.leave()

    @abstractmethod
    def _present(self, keys: Sequence[str]) -> list[bool]:
        """As `has`."""

    @abstractmethod
    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        """Read objects, and remove those that are damaged."""

    @abstractmethod
    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        """Keep pages."""

    @abstractmethod
    def _remove_all(self) -> bool:
        """As `clear`."""

    @abstractmethod
    def _holdings(self) -> tuple[int, int]:
        """Objects and bytes of the scope."""

    @abstractmethod
    def _release(self) -> None:
        """Give back files and memory, when no verb is running any more."""
