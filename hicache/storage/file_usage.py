"""FileUsage: how many objects and bytes a folder holds, counted by all processes together."""

from __future__ import annotations

import os
from errno import EIO
from struct import Struct

COUNTS = Struct("<qq")


class FileUsage:
    """Two numbers in a file. All but `read` is called under the folder's lock.

    A process that dies between counting and linking leaves them too high, never too low, until they are set.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    @property
    def is_known(self) -> bool:
        """Whether they were ever set."""
        return os.fstat(self._file).st_size == COUNTS.size

    def read(self) -> tuple[int, int]:
        """Objects and their bytes."""
        counts = os.pread(self._file, COUNTS.size, 0)
        if len(counts) != COUNTS.size:
            raise OSError(EIO, f"{len(counts)} of {COUNTS.size} bytes of the counts could be read")
        objects, object_bytes = COUNTS.unpack(counts)
        return objects, object_bytes

    def set(self, objects: int, object_bytes: int) -> None:
        """Say what was counted."""
        os.pwrite(self._file, COUNTS.pack(objects, object_bytes), 0)

    def add(self, objects: int, object_bytes: int) -> None:
        """Say what has changed."""
        known_objects, known_bytes = self.read()
        self.set(known_objects + objects, known_bytes + object_bytes)
