"""PageAllocator: which pages of a pool are free, as a stack with a bitmap. Page 0 is the padding page."""

from __future__ import annotations

import numpy as np

from hicache.errors import SlotError
from hicache.types import Slots


class PageAllocator:
    """Hands out pages 1..capacity, all or nothing, and takes each back once."""

    def __init__(self, name: str, capacity_pages: int) -> None:
        self.name = name
        self.capacity_pages = capacity_pages
        self._stack = np.arange(capacity_pages, 0, -1, dtype=np.int64)
        self._is_free = np.ones(capacity_pages + 1, dtype=np.bool_)
        self._is_free[0] = False
        self._mark = np.zeros(capacity_pages + 1, dtype=np.int64)
        self.free_pages = capacity_pages

    def allocate(self, pages: int) -> Slots | None:
        """So many pages, int64 [pages], or None when fewer are free. Raises ValueError on a negative number."""
        if pages < 0:
            raise ValueError(f"{self.name}: cannot allocate {pages} pages")
        if pages > self.free_pages:
            return None
        self.free_pages -= pages
        taken = self._stack[self.free_pages : self.free_pages + pages][::-1].copy()
        self._is_free[taken] = False
        return taken

    def free(self, pages: Slots) -> None:
        """Take pages back. Raises SlotError, and changes nothing, when one is foreign, free, padding, or named twice."""
        self.check_held(pages)
        self._stack[self.free_pages : self.free_pages + len(pages)] = pages[::-1]
        self.free_pages += len(pages)
        self._is_free[pages] = True

    def check_held(self, pages: Slots) -> None:
        """Raise SlotError unless each page is handed out, and named once."""
        if not len(pages):
            return
        if int(pages.min()) < 1 or int(pages.max()) > self.capacity_pages:
            foreign = pages[(pages < 1) | (pages > self.capacity_pages)]
            raise SlotError(f"{self.name}: pages {foreign.tolist()} are not in 1..{self.capacity_pages}")
        if self._is_free[pages].any():
            raise SlotError(f"{self.name}: pages {pages[self._is_free[pages]].tolist()} are free already")
        order = np.arange(len(pages))
        self._mark[pages] = order
        repeated = self._mark[pages] != order
        if repeated.any():
            raise SlotError(f"{self.name}: pages {pages[repeated].tolist()} are named twice")

    def free_set(self) -> Slots:
        """The free pages, in no order, in an array of the caller's own."""
        return self._stack[: self.free_pages].copy()
