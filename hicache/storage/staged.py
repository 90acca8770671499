"""StagedStorage: gives a backend memory of each call's own, and copies it from and to the pages of the host tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache.storage.answers import pages_done
from hicache.storage.base import Pieces, StorageBackend
from hicache.storage.wrappers import StorageWrapper


class StagedStorage(StorageWrapper):
    """For a backend that has not accepted the host memory: what it does after a call reaches no page of the host.

    `note_copied`: is told the verb and the bytes that were copied for one call of it.
    """

    def __init__(self, inner: StorageBackend, note_copied: Callable[[str, int], None]) -> None:
        self.inner = inner
        self._note_copied = note_copied

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        # Of the call's own: what is used for two calls could still be written for the first one.
        own = [[memoryview(bytearray(piece.nbytes)) for piece in page] for page in targets]
        answers = self.inner.get(keys, own, prefix_keys)
        done = pages_done(answers, len(keys)).pages
        pairs = [pair for pages in zip(targets[:done], own, strict=False) for pair in zip(*pages, strict=True)]
        for target, source in pairs:
            target[:] = source
        self._note_copied("get", sum(target.nbytes for target, _ in pairs))
        return answers

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        own = [[memoryview(bytearray(piece)) for piece in page] for page in sources]
        self._note_copied("set", sum(piece.nbytes for page in own for piece in page))
        return self.inner.set(keys, own, prefix_keys)
