"""SharedFiles: a folder of files that all ranks keep their pages in, which notes what this process gave to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hicache.storage.base import Pieces
from hicache.storage.file import FileStorage

BACKEND = f"{__name__}:SharedFiles"
"""What a configuration calls it."""

given: Counter[str] = Counter()
"""How often this process gave each object."""


class SharedFiles(FileStorage):
    """Files as usual. Options: those of `file`."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        given.clear()

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        given.update(keys)
        return super().set(keys, sources, prefix_keys)
