"""SlotFileStorage: pages in slots of preallocated files, with an index that survives a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hicache.storage.answers import Answer
from hicache.storage.base import Pieces
from hicache.storage.checksums import checksum
from hicache.storage.options import Options
from hicache.storage.paged import PagedStorage
from hicache.storage.scope_folder import ScopeFolder
from hicache.storage.slot_files import SlotFiles, Span, in_runs, slot_bytes_of
from hicache.storage.slot_index import Place, SlotIndex, Written
from hicache.storage.slot_schema import connect
from hicache.storage.tally import page_bytes

SEED = 0
"""Of checksums: the index knows whose bytes they are."""


class SlotFileStorage(PagedStorage):
    """Keeps pages of one size in one file in `root/scope`, for any number of processes.

    A slot is reserved, written, and confirmed with its checksum; only then is there an object. Options: `root`, a
    folder; `capacity_slots`, of each size of pages, above which the least recently used go; `verify`, to compare
    checksums with what was read (by default it does: without, only what processes do is noticed, and not what a disk or
    a loss of power does); `fsync`, so that what was set survives a loss of power as well (by default it does not).
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        told = Options("slotfile", options, ("root", "capacity_slots", "verify", "fsync"))
        capacity_slots = told.count("capacity_slots")
        self._is_verified = told.flag("verify", True)
        self._is_synced = told.flag("fsync", False)
        self._folder = ScopeFolder(told.text("root"), scope)
        self._files = SlotFiles(self._folder.path)
        with self._folder.locked():
            tables = connect(self._folder.path / "index.sqlite", self._is_synced)
            self._index = SlotIndex(tables, self._folder.writer, capacity_slots, self._files.allocate)
            self._folder.bury()
            self._index.reclaim(self._folder.writers())

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return [place is not None for place in self._index.find(keys)]

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        places = self._index.borrow(keys)
        answers = [Answer.ABSENT] * len(keys)
        try:
            self._read_places(places, targets, answers)
        finally:
            kept = self._index.give_back(places)
        for number, place in enumerate(places):
            if place is not None and not kept[number]:
                answers[number] = Answer.ABSENT
            elif place is not None and answers[number].is_damage:
                self._index.remove(place)
        return answers

    def _read_places(self, places: Sequence[Place | None], targets: Sequence[Pieces], answers: list[Answer]) -> None:
        spans: list[Span] = []
        for number, (place, pieces) in enumerate(zip(places, targets, strict=True)):
            if place is None:
                continue
            wanted = page_bytes(pieces)
            if wanted == place.length:
                spans.append(Span(number, place.slot_bytes, place.slot, wanted, pieces))
            else:
                answers[number] = Answer.SHORT if place.length < wanted else Answer.LONG
        for run in in_runs(spans):
            try:
                whole = self._files.read(run)
            except OSError as error:
                whole = -1
                self.failed(error)
            for position, span in enumerate(run):
                place = places[span.number]
                assert place is not None, "only what has a place is read"
                if whole < 0:
                    answers[span.number] = Answer.ERROR
                elif position >= whole:
                    answers[span.number] = Answer.SHORT
                else:
                    answers[span.number] = self._verified(place, span.pieces)

    def _verified(self, place: Place, pieces: Pieces) -> Answer:
        is_right = not self._is_verified or checksum(pieces, SEED) == place.checksum
        return Answer.DONE if is_right else Answer.CORRUPT

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        # What the batch found there already is held, so that its new pages cannot push it out.
        places = self._index.borrow(keys)
        try:
            answers = [Answer.PRESENT if place else Answer.FULL for place in places]
            sizes: dict[int, list[int]] = {}
            for number, place in enumerate(places):
                if place is None:
                    sizes.setdefault(slot_bytes_of(page_bytes(sources[number])), []).append(number)
            for slot_bytes, numbers in sizes.items():
                self._write_size(slot_bytes, numbers, keys, sources, answers)
        finally:
            self._index.give_back(places)
        return answers

    def _write_size(
        self,
        slot_bytes: int,
        numbers: Sequence[int],
        keys: Sequence[str],
        sources: Sequence[Pieces],
        answers: list[Answer],
    ) -> None:
        """Write the pages of one slot size; those that got no slot are answered already."""
        slots, removed = self._index.reserve(slot_bytes, len(numbers))
        self.tally.removed(removed)
        spans = [
            Span(number, slot_bytes, slot, page_bytes(sources[number]), sources[number])
            for number, slot in zip(numbers, slots, strict=False)
        ]
        try:
            for run in in_runs(spans):
                self._files.write(run)
            if self._is_synced:
                self._files.synchronise(slot_bytes)
            pages = [Written(keys[s.number], s.slot, s.length, checksum(s.pieces, SEED)) for s in spans]
        except BaseException:
            self._index.release(slot_bytes, slots)
            raise
        for span, is_new in zip(spans, self._index.confirm(slot_bytes, pages), strict=True):
            answers[span.number] = Answer.DONE if is_new else Answer.PRESENT

    def _remove_all(self) -> bool:
        self._index.clear()
        return True

    def _holdings(self) -> tuple[int, int]:
        return self._index.totals()

    def _release(self) -> None:
        self._index.close()
        self._files.close()
        self._folder.close()
