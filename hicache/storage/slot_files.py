"""SlotFiles: one file for each slot size, read and written straight from and to memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from hicache.storage.base import Pieces
from hicache.storage.vectors import read_into, write_from

BLOCK_BYTES = 4_096

RUN_BYTES = 1 << 20
"""The most that is moved at a time: a checksum after it finds the bytes in the processor's cache."""


class Span(NamedTuple):
    """The bytes of one page in a file: which of a batch it is, the slot size and the slot, its length and memory."""

    number: int
    slot_bytes: int
    slot: int
    length: int
    pieces: Pieces


def slot_bytes_of(length: int) -> int:
    """The slot size of pages of this length: whole blocks."""
    return max(1, -(-length // BLOCK_BYTES)) * BLOCK_BYTES


def in_runs(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Neighbours that can be moved in one go, together."""
    run: list[Span] = []
    moved = 0
    for span in spans:
        if run and not (_follows(run[-1], span) and moved + span.length <= RUN_BYTES):
            yield run
            run, moved = [], 0
        run.append(span)
        moved += span.length
    if run:
        yield run


def _follows(before: Span, span: Span) -> bool:
    is_full = before.length == before.slot_bytes
    return is_full and span.slot == before.slot + 1 and span.slot_bytes == before.slot_bytes


class SlotFiles:
    """Files named after their slot size, opened when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, int] = {}
        self._lock = Lock()

    def allocate(self, slot_bytes: int, slots: int) -> bool:
        """Make a file so many slots long; False when the disk has no room for it."""
        try:
            os.posix_fallocate(self._file(slot_bytes), 0, slots * slot_bytes)
        except OSError:
            return False
        return True

    def read(self, run: Sequence[Span]) -> int:
        """Read a run into its memory; how many of its pages came whole. Raises OSError."""
        found = read_into(self._file(run[0].slot_bytes), _pieces(run), run[0].slot * run[0].slot_bytes)
        whole = 0
        for span in run:
            found -= span.length
            whole += found >= 0
        return whole

    def write(self, run: Sequence[Span]) -> None:
        """Write a run from its memory. Raises OSError."""
        write_from(self._file(run[0].slot_bytes), _pieces(run), run[0].slot * run[0].slot_bytes)

    def synchronise(self, slot_bytes: int) -> None:
        """Have what was written survive a loss of power. Raises OSError."""
        os.fdatasync(self._file(slot_bytes))

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _file(self, slot_bytes: int) -> int:
        if slot_bytes in self._files:
            return self._files[slot_bytes]
        with self._lock:
            if slot_bytes not in self._files:
                path = self._folder / f"slots-{slot_bytes}"
                self._files[slot_bytes] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            return self._files[slot_bytes]


def _pieces(run: Sequence[Span]) -> Pieces:
    return run[0].pieces if len(run) == 1 else [piece for span in run for piece in span.pieces]
