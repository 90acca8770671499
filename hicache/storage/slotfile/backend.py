"""SlotFileStorage: stores pages in slots of preallocated files, with an index that survives a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hicache.storage.base import Pieces
from hicache.storage.page_io import checksum, identity
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.registry import Options
from hicache.storage.scope_folder import ScopeFolder
from hicache.storage.slotfile.files import SlotFiles, SlotReader, in_runs, slot_bytes_of
from hicache.storage.slotfile.index import Pinned, Place, SlotIndex, connect
from hicache.storage.slotfile.name_table import NameTable


class SlotFileStorage(PagedStorage):
    """Stores pages in files in `root/scope`, one file for each page size, for any number of processes.

    A slot is reserved, written, and confirmed with its checksum; only then does the object exist. Options: `root`, a
    folder; `capacity_slots` for each page size, above which the least recently used objects are evicted; `verify`,
    whether a get compares checksums (by default it does; without, changes by other processes are detected, damage by a
    disk or a loss of power is not); `fsync`, whether objects survive a loss of power (by default they do not).
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options("slotfile", options, ("root", "capacity_slots", "verify", "fsync"))
        capacity_slots = parsed.count("capacity_slots")
        self._is_synced = parsed.flag("fsync", False)
        self._folder = ScopeFolder(parsed.text("root"), scope)
        self._files = SlotFiles(self._folder.path)
        self._reader = SlotReader(self._files, scope, parsed.flag("verify", True), self.failed)
        with self._folder.opening():
            tables = connect(self._folder.path / "index.sqlite", self._is_synced)
            names = NameTable(self._folder.path / "names")
            self._index = SlotIndex(tables, names, self._folder.writer, capacity_slots, self._files.allocate)
            self._folder.remove_dead_writers()
            self._index.reclaim(self._folder.writers())

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return self._index.holds(keys)

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        pinned = self._index.pin(keys)
        try:
            answers = self._reader.read(pinned.places, targets)
        finally:
            is_unchanged = self._index.unpin(pinned)
        if not is_unchanged or answers.count(Answer.DONE) < len(answers):
            self._recheck(pinned, answers)
        return answers

    def _recheck(self, pinned: Pinned, answers: list[Answer]) -> None:
        """Look up again: a page that another process replaced during the read is absent, a damaged one is removed."""
        for number, (before, now) in enumerate(zip(pinned.places, self._index.find(pinned.keys), strict=True)):
            if before is None or before != now:
                answers[number] = Answer.ABSENT
            elif answers[number].is_damage:
                self._index.remove(before)

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        # Objects of the batch that exist already are pinned, so that its new pages cannot evict them.
        pinned = self._index.pin(keys)
        try:
            answers = [Answer.PRESENT if place else Answer.FULL for place in pinned.places]
            sizes: dict[int, list[int]] = {}
            for number, place in enumerate(pinned.places):
                if place is None:
                    sizes.setdefault(slot_bytes_of(page_bytes(sources[number])), []).append(number)
            for slot_bytes, numbers in sizes.items():
                self._write_size(slot_bytes, numbers, keys, sources, answers)
        finally:
            self._index.unpin(pinned)
        return answers

    def _write_size(
        self,
        slot_bytes: int,
        numbers: Sequence[int],
        keys: Sequence[str],
        sources: Sequence[Pieces],
        answers: list[Answer],
    ) -> None:
        """Write the pages of one slot size. Pages without a slot keep the answer that they have."""
        slots, removed = self._index.reserve(slot_bytes, len(numbers))
        self.tally.removed(removed)
        chosen = list(zip(numbers, slots, strict=False))
        pages = [sources[number] for number, _ in chosen]
        places = [
            self._place(keys[number], slot_bytes, slot, page)
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

    def _place(self, key: str, slot_bytes: int, slot: int, page: Pieces) -> Place:
        """The place of a page in a reserved slot. Its checksum is bound to its name: the index may be damaged."""
        return Place(key, 0, slot_bytes, slot, page_bytes(page), checksum(page, identity(self.scope, key)))

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
