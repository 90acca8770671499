"""SlotFiles: the files whose slots hold pages; SlotReader: reads pages and verifies their checksums."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock

from hicache.storage.base import Pieces
from hicache.storage.page_io import checksum, identity, open_regular, read_into, write_from
from hicache.storage.paged import Answer, page_bytes
from hicache.storage.slotfile.place import Place

KEPT_BYTES, KEPT_BYTES_OF_A_SLOT = 1 << 18, 512
"""The room that is left on the disk for the index and its journal: so much, and so much for each slot."""

RUN_BYTES = 1 << 22
"""The largest read or write, unless a page is larger: the bytes are still in the processor's cache for the checksum."""


def in_runs(places: Sequence[Place | None]) -> Iterator[slice]:
    """Runs of adjacent slots, whose bytes can be read or written in one call. None is in no run."""
    start, next_slot, size, moved = 0, -1, 0, 0
    for number, place in enumerate(places):
        if place is None:
            if start < number:
                yield slice(start, number)
            start, next_slot = number + 1, -1
            continue
        _, _, slot_bytes, slot, length, _ = place
        if slot != next_slot or slot_bytes != size or moved + length > RUN_BYTES:
            if start < number:
                yield slice(start, number)
            start, size, moved = number, slot_bytes, 0
        moved += length
        next_slot = slot + 1 if length == slot_bytes else -1
    if start < len(places):
        yield slice(start, len(places))


class SlotFiles:
    """Files named after their slot size, opened at their first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, int] = {}
        self._lock = Lock()

    def allocate(self, slot_bytes: int, first: int, count: int) -> bool:
        """Add `count` slots to a file after its first `first` slots.

        Returns False when the disk is full, or has too little room left for the index to change.
        """
        try:
            file = self._file(slot_bytes)
            disk = os.fstatvfs(file)
            left = KEPT_BYTES + (first + count) * KEPT_BYTES_OF_A_SLOT
            if disk.f_bavail * disk.f_frsize < count * slot_bytes + left:
                return False
            os.posix_fallocate(file, first * slot_bytes, count * slot_bytes)
        except OSError:
            return False
        return True

    def read(self, first: Place, pieces: Pieces) -> int:
        """Read from the beginning of a slot. Returns the bytes read, fewer only at the file's end. Raises OSError."""
        return read_into(self._file(first.slot_bytes), pieces, first.slot * first.slot_bytes)

    def write(self, first: Place, pieces: Pieces) -> None:
        """Write from the beginning of a slot. Raises OSError."""
        write_from(self._file(first.slot_bytes), pieces, first.slot * first.slot_bytes)

    def synchronise(self, slot_bytes: int) -> None:
        """Synchronise a file with the disk, so that its pages survive a loss of power. Raises OSError."""
        os.fdatasync(self._file(slot_bytes))

    def remove(self) -> None:
        """Remove all files: other processes that have them open keep theirs, and share none with a new index."""
        for path in self._folder.glob("slots-*"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close all files. They are opened again at their next use."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _file(self, slot_bytes: int) -> int:
        if slot_bytes in self._files:
            return self._files[slot_bytes]
        with self._lock:
            if slot_bytes not in self._files:
                self._files[slot_bytes] = open_regular(self._folder / f"slots-{slot_bytes}")
            return self._files[slot_bytes]


class SlotReader:
    """Reads adjacent pages in one call, and compares their checksums directly after it.

    `scope`: a part of the full name to which a checksum is bound. `is_verified`: whether checksums are compared at all.
    `failed`: returns the answer for a read that raised.
    """

    def __init__(self, files: SlotFiles, scope: str, is_verified: bool, failed: Callable[[Exception], Answer]) -> None:
        self._files = files
        self._scope = scope
        self._is_verified = is_verified
        self._failed = failed

    def read(self, places: Sequence[Place | None], targets: Sequence[Pieces]) -> list[Answer]:
        """Read each page that exists with the size of its target. Returns an answer for each page."""
        done = Answer.DONE
        answers = [
            done if place is not None and place.length == wanted else _refusal(place, wanted)
            for place, wanted in zip(places, map(page_bytes, targets), strict=True)
        ]
        if answers.count(done) < len(answers):
            places = [place if answer is done else None for place, answer in zip(places, answers, strict=True)]
        for run in in_runs(places):
            try:
                self._read_run(places[run], targets[run], answers, run.start)
            except OSError as error:
                answers[run] = [self._failed(error)] * len(places[run])
        return answers

    def _read_run(
        self, places: Sequence[Place | None], targets: Sequence[Pieces], answers: list[Answer], start: int
    ) -> None:
        first = places[0]
        assert first is not None, "expected a slot for each page of a run, got None"
        pieces = targets[0] if len(targets) == 1 else [piece for page in targets for piece in page]
        found = self._files.read(first, pieces)
        for number, (place, target) in enumerate(zip(places, targets, strict=True), start):
            assert place is not None, "expected a slot for each page of a run, got None"
            found -= place.length
            if found < 0:
                answers[number] = Answer.SHORT
            elif self._is_verified and checksum(target, identity(self._scope, place.key)) != place.checksum:
                answers[number] = Answer.CORRUPT


def _refusal(place: Place | None, wanted_bytes: int) -> Answer:
    """The answer for a page that is absent or has another size than its target."""
    if place is None:
        return Answer.ABSENT
    return Answer.SHORT if place.length < wanted_bytes else Answer.LONG
