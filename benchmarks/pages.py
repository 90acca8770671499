"""Pages: a prompt's pages in memory and in storage, and beside it a plain file of the same bytes."""

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
    """As many pages as come to `total_bytes`, in the order in which they are kept and read. Nobody looks at the bytes.

    A batch is what one call of a backend is asked for. The plain file is read and written a page at a time, straight
    from and to the same memory.
    """

    def __init__(self, backend: StorageBackend, folder: Path, page_bytes: int, total_bytes: int) -> None:
        self.backend = backend
        count = total_bytes // page_bytes
        random = np.random.default_rng(page_bytes)
        # Written once, so that no page of memory is new to the machine when it is measured.
        memory = [memoryview(random.bytes(total_bytes)), memoryview(bytearray(random.bytes(total_bytes)))]
        self._sources, self._targets = (
            [[whole[at : at + page_bytes]] for at in range(0, total_bytes, page_bytes)] for whole in memory
        )
        self._keys = [f"kv.tp0of1.cp0of1.pp0of1/{number:064x}" for number in range(count)]
        self._offsets = range(0, total_bytes, page_bytes)
        self._batches = [slice(at, at + BATCH_PAGES) for at in range(0, count, BATCH_PAGES)]
        self._file = os.open(folder / "plain", os.O_RDWR | os.O_CREAT)
        self.write_plainly()

    def write_plainly(self) -> None:
        """Write each page over the one that is there."""
        for source, offset in zip(self._sources, self._offsets, strict=True):
            os.pwritev(self._file, source, offset)

    def read_plainly(self) -> None:
        """Read each page."""
        for target, offset in zip(self._targets, self._offsets, strict=True):
            os.preadv(self._file, target, offset)

    def read_from(self, path: Path) -> None:
        """Have another file be the plain one, which holds the pages one after the other."""
        os.close(self._file)
        self._file = os.open(path, os.O_RDONLY)
        self.read_plainly()
        self.require_fetched()

    @property
    def targets(self) -> list[tuple[int, int]]:
        """Where each page is read to: its address and its bytes."""
        return [(address(target), target.nbytes) for (target,) in self._targets]

    def require_fetched(self) -> None:
        """Raise AssertionError unless the memory that pages are read to holds the bytes that were kept."""
        assert self._targets == self._sources, "what was read differs from what was kept"

    def keep(self) -> None:
        """Give the backend all pages."""
        assert all(self._asked(self.backend.set, self._sources)), "the backend has room for all pages"

    def fetch(self, count: int | None = None) -> None:
        """Read the first `count` pages from the backend, or all."""
        assert all(self._asked(self.backend.get, self._targets[:count])), "the backend has all pages"

    def forget(self) -> None:
        """Let the backend have nothing again."""
        assert self.backend.clear(), "the backend can remove its pages"

    def close(self) -> None:
        """Close what was opened."""
        self.backend.close()
        os.close(self._file)

    def _asked(self, verb: Verb, pages: Sequence[Pieces]) -> list[bool]:
        keys = self._keys[: len(pages)]
        return [answer for part in self._batches if keys[part] for answer in verb(keys[part], pages[part], ())]
