"""SharedFiles: the file backend in a folder that all ranks share; it counts the objects that this process sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hicache.storage.base import Pieces
from hicache.storage.file import FileStorage

BACKEND = f"{__name__}:SharedFiles"
"""The name of the backend in a configuration."""

given: Counter[str] = Counter()
"""How often this process set each object."""


class SharedFiles(FileStorage):
    """The file backend with a counter. Options: those of `file`."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        given.clear()

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        given.update(keys)
        return super().set(keys, sources, prefix_keys)
