"""SlotFileStorage: pages in slots of preallocated files, with an index that survives a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hicache.storage.base import Pieces
from hicache.storage.page_io import SLOT_SEED, checksum
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.registry import Options
from hicache.storage.scope_folder import ScopeFolder
from hicache.storage.slotfile.files import SlotFiles, SlotReader, in_runs, slot_bytes_of
from hicache.storage.slotfile.index import Loan, Place, SlotIndex, connect
from hicache.storage.slotfile.name_table import NameTable


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
        self._is_synced = told.flag("fsync", False)
        self._folder = ScopeFolder(told.text("root"), scope)
        self._files = SlotFiles(self._folder.path)
        self._reader = SlotReader(self._files, told.flag("verify", True), self.failed)
        with self._folder.opening():
            tables = connect(self._folder.path / "index.sqlite", self._is_synced)
            names = NameTable(self._folder.path / "names")
            self._index = SlotIndex(tables, names, self._folder.writer, capacity_slots, self._files.allocate)
            self._folder.bury()
            self._index.reclaim(self._folder.writers())

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return self._index.holds(keys)

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        loan = self._index.borrow(keys)
        try:
            answers = self._reader.read(loan.places, targets)
        finally:
            are_kept = self._index.give_back(loan)
        if not are_kept or answers.count(Answer.DONE) < len(answers):
            self._look_again(loan, answers)
        return answers

    def _look_again(self, loan: Loan, answers: list[Answer]) -> None:
        """What another process took away while it was read is no data; what is damaged goes."""
        for number, (before, now) in enumerate(zip(loan.places, self._index.find(loan.keys), strict=True)):
            if before is None or before != now:
                answers[number] = Answer.ABSENT
            elif answers[number].is_damage:
                self._index.remove(before)

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        # What the batch found there already is held, so that its new pages cannot push it out.
        loan = self._index.borrow(keys)
        try:
            answers = [Answer.PRESENT if place else Answer.FULL for place in loan.places]
            sizes: dict[int, list[int]] = {}
            for number, place in enumerate(loan.places):
                if place is None:
                    sizes.setdefault(slot_bytes_of(page_bytes(sources[number])), []).append(number)
            for slot_bytes, numbers in sizes.items():
                self._write_size(slot_bytes, numbers, keys, sources, answers)
        finally:
            self._index.give_back(loan)
        return answers

    def _write_size(
        self,
        slot_bytes: int,
        numbers: Sequence[int],
        keys: Sequence[str],
        sources: Sequence[Pieces],
        answers: list[Answer],
    ) -> None:
        """Write the pages of one slot size; those that get no slot are answered already."""
        slots, removed = self._index.reserve(slot_bytes, len(numbers))
        self.tally.removed(removed)
        chosen = list(zip(numbers, slots, strict=False))
        pages = [sources[number] for number, _ in chosen]
        places = [
            Place(keys[number], 0, slot_bytes, slot, page_bytes(page), checksum(page, SLOT_SEED))
            for (number, slot), page in zip(chosen, pages, strict=True)
        ]
        try:
            for run in in_runs(places):
                self._files.write(places[run.start], [piece for page in pages[run] for piece in page])
            if self._is_synced:
                self._files.synchronise(slot_bytes)
        except BaseException:
            self._index.release(slot_bytes, slots)
            raise
        for (number, _), is_new in zip(chosen, self._index.confirm(places), strict=True):
            answers[number] = Answer.DONE if is_new else Answer.PRESENT

    def _remove_all(self) -> bool:
        self._index.clear()
        return True

    def _holdings(self) -> tuple[int, int]:
        return self._index.totals()

    def _release(self) -> None:
        try:
            self._index.close()
        finally:
            self._files.close()
            self._folder.close()
