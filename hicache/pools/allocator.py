"""PageAllocator: which pages of a pool are free, as a stack with a bitmap. Page 0 is the padding page."""

from __future__ import annotations

import numpy as np

from hicache.errors import SlotError
from hicache.types import NO_SLOTS, Slots


class PageAllocator:
    """Hands out pages 1..capacity, all or nothing, and takes each back once.

    `freed`: the pages that were taken back, if someone asked for them, else None.
    """

    def __init__(self, name: str, capacity_pages: int) -> None:
        self.name = name
        self.capacity_pages = capacity_pages
        self._stack = np.arange(capacity_pages, 0, -1, dtype=np.int64)
        # One guard entry at each end: an out-of-range page is clipped to it, and it is never held.
        self._is_held = np.zeros(capacity_pages + 2, dtype=np.bool_)
        self._mark = np.zeros(capacity_pages + 1, dtype=np.int64)
        self._order = np.arange(capacity_pages + 1)
        self.free_pages = capacity_pages
        self.freed: list[Slots] | None = None

    def allocate(self, pages: int) -> Slots | None:
        """So many pages, int64 [pages], or None when fewer are free. Raises ValueError on a negative number."""
        if pages < 0:
            raise ValueError(f"{self.name}: cannot allocate {pages} pages")
        if pages > self.free_pages:
            return None
        self.free_pages -= pages
        taken = self._stack[self.free_pages : self.free_pages + pages][::-1].copy()
        self._is_held[taken] = True
        return taken

    def free(self, pages: Slots) -> None:
        """Take pages back. Raises SlotError, changing nothing, when one is foreign, free, padding, or named twice."""
        self.check_held(pages)
        self._stack[self.free_pages : self.free_pages + len(pages)] = pages[::-1]
        self.free_pages += len(pages)
        self._is_held[pages] = False
        if self.freed is not None:
            self.freed.append(pages.copy())

    def check_held(self, pages: Slots) -> None:
        """Raise SlotError unless each page is allocated, and named once."""
        # Of a few pages numpy compares no faster than Python compares their bytes.
        is_held = self._is_held.take(pages, mode="clip")
        if b"\0" in is_held.tobytes():
            raise SlotError(
                f"{self.name}: pages {pages[~is_held].tolist()} are free already, or not in 1..{self.capacity_pages}"
            )
        order = self._order[: len(pages)] if len(pages) <= self.capacity_pages else np.arange(len(pages))
        self._mark[pages] = order
        # Each page notes the last position that named it: a page that was named twice does not find its first one.
        found = self._mark[pages]
        if found.tobytes() != order.tobytes():
            raise SlotError(f"{self.name}: pages {pages[found != order].tolist()} are named twice")

    def take_freed(self) -> Slots:
        """The pages that became free since the last call, int64 [pages]. The first call begins to note them."""
        freed, self.freed = self.freed, []
        return np.concatenate(freed) if freed else NO_SLOTS

    def free_set(self) -> Slots:
        """The free pages, in no order, in a new array."""
        return self._stack[: self.free_pages].copy()
