"""Pages: the pages of a prompt in memory and in a storage backend, and a plain file with the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hicache.storage.base import BATCH_PAGES, Pieces, StorageBackend

from .work import address

KIB, MIB = 1 << 10, 1 << 20

Verb: TypeAlias = Callable[[Sequence[str], Sequence[Pieces], Sequence[str]], list[bool]]
"""`get` or `set` of a backend."""


class Pages:
    """Pages of `total_bytes` in all, in the order in which they are set and read.

    Each call of the backend takes a batch of BATCH_PAGES. The plain file is read and written one page at a time, with
    the same memory.
    """

    def __init__(self, backend: StorageBackend, folder: Path, page_bytes: int, total_bytes: int) -> None:
        self.backend = backend
        count = total_bytes // page_bytes
        random = np.random.default_rng(page_bytes)
        # Written once before the measurement, so that the system has mapped every page of memory.
        memory = [memoryview(random.bytes(total_bytes)), memoryview(bytearray(random.bytes(total_bytes)))]
        self._sources, self._targets = (
            [[whole[at : at + page_bytes]] for at in range(0, total_bytes, page_bytes)] for whole in memory
        )
        self._keys = [f"kv.tp0of1.cp0of1.pp0of1/{number:064x}" for number in range(count)]
        self._offsets = range(0, total_bytes, page_bytes)
        self._batches = [slice(at, at + BATCH_PAGES) for at in range(0, count, BATCH_PAGES)]
        self._file = os.open(folder / "plain", os.O_RDWR | os.O_CREAT)
        self.write_plain_file()

    def write_plain_file(self) -> None:
        """Overwrite each page of the plain file."""
        for source, offset in zip(self._sources, self._offsets, strict=True):
            os.pwritev(self._file, source, offset)

    def read_plain_file(self) -> None:
        """Read each page of the plain file."""
        for target, offset in zip(self._targets, self._offsets, strict=True):
            os.preadv(self._file, target, offset)

    def read_from(self, path: Path) -> None:
        """Use another file as the plain file. It must have the pages one after the other."""
        os.close(self._file)
        self._file = os.open(path, os.O_RDONLY)
        self.read_plain_file()
        self.require_equal_bytes()

    @property
    def targets(self) -> list[tuple[int, int]]:
        """The memory that each page is read into: address and size in bytes."""
        return [(address(target), target.nbytes) for (target,) in self._targets]

    def require_equal_bytes(self) -> None:
        """Raise AssertionError unless the bytes that were read equal the bytes that were set."""
        assert self._targets == self._sources, "expected the bytes that were set, got other bytes"

    def set_all(self) -> None:
        """Set all pages in the backend."""
        assert all(self._in_batches(self.backend.set, self._sources)), "expected the backend to store all pages"

    def get_all(self, count: int | None = None) -> None:
        """Get the first `count` pages from the backend, or all."""
        assert all(self._in_batches(self.backend.get, self._targets[:count])), "expected the backend to have all pages"

    def clear(self) -> None:
        """Remove all pages from the backend."""
        assert self.backend.clear(), "expected the backend to remove its pages"

    def close(self) -> None:
        """Close the backend and the plain file."""
        self.backend.close()
        os.close(self._file)

    def _in_batches(self, verb: Verb, pages: Sequence[Pieces]) -> list[bool]:
        keys = self._keys[: len(pages)]
        return [answer for part in self._batches if keys[part] for answer in verb(keys[part], pages[part], ())]
