"""AuditedStorage: holds another backend to the bytes that it was given. For tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from hicache.errors import InvariantError
from hicache.storage.base import Pieces
from hicache.storage.checksums import checksum
from hicache.storage.wrapper import StorageWrapper


class AuditedStorage(StorageWrapper):
    """Raises InvariantError for a get of what was never given under its key since the last clear.

    What lay there before this instance was opened is not judged. `audited`: pages that were compared.
    """

    NAME = "audited"

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.audited = 0
        self._given: dict[str, set[int]] = {}
        self._lock = Lock()

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        # What was refused counts as well: another thread may have had it kept.
        with self._lock:
            for key, pieces in zip(keys, sources, strict=False):
                self._given.setdefault(key, set()).add(checksum(pieces, 0))
        return _counted("set", keys, super().set(keys, sources, prefix_keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = _counted("get", keys, super().get(keys, targets, prefix_keys))
        with self._lock:
            for key, pieces, is_there in zip(keys, targets, answers, strict=False):
                if is_there and key in self._given:
                    self._compare(key, pieces)
        return answers

    def has(self, keys: Sequence[str]) -> list[bool]:
        return _counted("has", keys, super().has(keys))

    def clear(self) -> bool:
        is_clear = super().clear()
        if is_clear:
            with self._lock:
                self._given.clear()
        return is_clear

    def _compare(self, key: str, pieces: Pieces) -> None:
        self.audited += 1
        found, given = checksum(pieces, 0), self._given[key]
        if found not in given:
            expected = " or ".join([f"{each:016x}" for each in sorted(given)])
            raise InvariantError(f"STORE-3: get answered True for {key} with checksum {found:016x}, given: {expected}")


def _counted(verb: str, keys: Sequence[str], answers: list[bool]) -> list[bool]:
    if len(answers) != len(keys):
        raise InvariantError(f"STORE-3: {verb} gave {len(answers)} answers for {len(keys)} keys")
    return answers
