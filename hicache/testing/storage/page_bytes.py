"""The bytes of a page, a function of scope, key and version; and memory that shows writes outside of a page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

GUARD = b"\xa5" * 16
"""Surrounds each piece of memory."""

BLANK = 0x5A
"""The content of memory before it is read into."""


@lru_cache(maxsize=1024)
def page_bytes(scope: str, key: str, version: int, size: int) -> bytes:
    """The bytes of a page. Two different pages have no common run of bytes at any offset."""
    return hashlib.shake_128(f"{scope}|{key}|{version}|{size}".encode(errors="surrogatepass")).digest(size)


def cut_evenly(size: int, pieces: int) -> tuple[int, ...]:
    """The sizes of `pieces` pieces of one page; sizes differ by at most one."""
    ends = [size * number // pieces for number in range(pieces + 1)]
    return tuple(end - begin for begin, end in pairwise(ends))


class Sheet:
    """Memory for some pages, each cut into pieces of given sizes. Each piece lies between guards."""

    def __init__(self, cuts: Sequence[Sequence[int]]) -> None:
        sizes = [size for page in cuts for size in page]
        self._memory = bytearray(GUARD + b"".join(bytes([BLANK]) * size + GUARD for size in sizes))
        view, begin = memoryview(self._memory), len(GUARD)
        self.pages: list[list[memoryview]] = []
        self._gaps = [0]
        for page in cuts:
            pieces = []
            for size in page:
                pieces.append(view[begin : begin + size])
                self._gaps.append(begin + size)
                begin += size + len(GUARD)
            self.pages.append(pieces)

    def write(self, page: int, data: bytes) -> None:
        """Fill a page."""
        begin = 0
        for piece in self.pages[page]:
            piece[:] = data[begin : begin + len(piece)]
            begin += len(piece)

    def read(self, page: int) -> bytes:
        """The bytes of a page."""
        return b"".join(self.pages[page])

    @property
    def is_blank(self) -> bool:
        """Whether no page was written to."""
        return all(not self.read(page).strip(bytes([BLANK])) for page in range(len(self.pages)))

    @property
    def has_its_guards(self) -> bool:
        """Whether nothing was written outside of the pages."""
        return all(self._memory.startswith(GUARD, gap) for gap in self._gaps)
