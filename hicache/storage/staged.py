"""Registers host memory with a backend; StagedStorage gives one that does not accept it memory of each call's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache.errors import ConfigurationError
from hicache.storage.answers import pages_done
from hicache.storage.base import Pieces, StorageBackend
from hicache.storage.wrappers import StorageWrapper


def registered(
    backend: StorageBackend, regions: Sequence[memoryview], note_copied: Callable[[str, int], None]
) -> StorageBackend:
    """Announce all host memory to a backend, and return what to call: the backend, or StagedStorage over it.

    Raises ConfigurationError if the backend does not say whether it accepts the memory.
    """
    answer: object = backend.register(regions)
    if answer is True:
        return backend
    if answer is False:
        return StagedStorage(backend, note_copied)
    # A backend of the time before there was an answer may count on memory that it knows.
    raise ConfigurationError(
        f"register of {type(backend).__name__} must return True or False, got {answer!r}: whether it uses memory of "
        "a call no longer than the call takes"
    )


class StagedStorage(StorageWrapper):
    """For a backend that has not accepted the host memory: what it does after a call reaches no page of the host.

    `note_copied`: called with the verb and the bytes that one call of it copied.
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
