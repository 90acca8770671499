"""SlotFileStorage: stores pages in slots of preallocated files, with an index that survives a crash."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from errno import ETIMEDOUT
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces
from hicache.storage.database import DamagedDatabaseError
from hicache.storage.file_lock import LOCK_TIMEOUT_S, MAX_LOCK_TIMEOUT_S, holders
from hicache.storage.page_io import checksum, identity, whole_blocks
from hicache.storage.paged import OPERATING_ERRORS, Answer, PagedStorage, T, page_bytes
from hicache.storage.registry import Options
from hicache.storage.scope_folder import ScopeFolder
from hicache.storage.slotfile import tables
from hicache.storage.slotfile.files import SlotFiles, SlotReader, in_runs
from hicache.storage.slotfile.index import Pinned, SlotIndex
from hicache.storage.slotfile.place import Place

LOG = logging.getLogger(__name__)


class SlotFileStorage(PagedStorage):
    """Stores pages in files in `root/scope`, one file for each page size, for any number of processes.

    A slot is reserved, written, and confirmed with its checksum; only then does the object exist. Options: `root`, a
    folder; `capacity_slots` for each page size, above which the least recently used objects are evicted; `verify`,
    whether a get compares checksums (by default it does; without, changes by other processes are detected, damage by a
    disk or a loss of power is not); `fsync`, whether objects survive a loss of power (by default they do not);
    `lock_timeout_s`, how long a lock is waited for that another process holds, 10 by default.
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options("slotfile", options, ("root", "capacity_slots", "verify", "fsync", "lock_timeout_s"))
        self._capacity_slots = parsed.count("capacity_slots")
        self._is_synced = parsed.flag("fsync", False)
        self._lock_timeout_s = parsed.number("lock_timeout_s", LOCK_TIMEOUT_S, MAX_LOCK_TIMEOUT_S)
        is_verified = parsed.flag("verify", True)
        self._folder = ScopeFolder(parsed.text("root"), scope, self._lock_timeout_s)
        self._files = SlotFiles(self._folder.path)
        self._reader = SlotReader(self._files, scope, is_verified, self.failed)
        self._is_damaged = self._was_damaged = False
        with self._folder.opening():
            self._folder.remove_dead_writers()
            self._index = self._open_index()

    @property
    def _index_path(self) -> Path:
        return self._folder.path / "index.sqlite"

    def _open_index(self) -> SlotIndex:
        """Open the index. If it is damaged, and no other process uses it, make it anew. Raises ConfigurationError."""
        try:
            return self._sound_index()
        except FileNotFoundError as error:
            LOG.warning("%s was removed while it was opened, and is made anew: %s", self._index_path, error)
        except (sqlite3.Error, UnicodeError) as error:
            if not tables.is_damage(error) or not self._remove_index(error):
                self._refuse(error)
        try:
            return self._sound_index()
        except (sqlite3.Error, UnicodeError) as error:
            self._refuse(error)

    def _sound_index(self) -> SlotIndex:
        is_checked = self._folder.is_alone
        connection = tables.connect(self._index_path, self._is_synced, self._lock_timeout_s, is_checked)
        with ExitStack() as opened:
            opened.callback(connection.close)
            index = SlotIndex(
                *(connection, self._folder.writer, self._capacity_slots, self._files.allocate),
                is_current=partial(_is_file, self._index_path, self._index_path.stat()),
            )
            index.reclaim(self._folder.writers())
            self._remove_names()
            opened.pop_all()
        return index

    def _remove_names(self) -> None:
        """Remove the file of fingerprints that earlier versions kept beside the index, and that nothing reads now."""
        names = self._folder.path / "names"
        if names.is_file():
            names.unlink()

    def _remove_index(self, error: Exception) -> bool:
        """Remove an index that is damaged, unless it is not of this project. Called under the lock."""
        if not tables.are_ours(self._index_path):
            return False
        LOG.warning("%s is damaged, and is made anew without its objects: %s", self._index_path, error)
        self._remove_files()
        return True

    def _remove_files(self) -> None:
        tables.remove(self._index_path)
        self._files.remove()

    def _refuse(self, error: Exception) -> NoReturn:
        told = self._told(error)
        raise ConfigurationError(f"storage option 'root': {self._index_path} cannot be used: {told}") from error

    def failed(self, error: Exception) -> Answer:
        self._is_damaged = self._is_damaged or tables.is_damage(error)
        return super().failed(self._told(error))

    def _told(self, error: Exception) -> Exception:
        """The message of an error: one about a lock names the process that holds it."""
        if not (isinstance(error, sqlite3.OperationalError) and "locked" in str(error)):
            return error
        with suppress(OSError):
            who = holders(self._index_path.stat())
            return TimeoutError(ETIMEDOUT, f"{who} holds the lock of the index; waited {self._lock_timeout_s} s for it")
        return error

    def _guarded(self, act: Callable[[], T], otherwise: T) -> T:
        answer = super()._guarded(lambda: _decoding(act), otherwise)
        if self._is_damaged and self._replace_index():
            return super()._guarded(lambda: _decoding(act), otherwise)
        return answer

    def _replace_index(self) -> bool:
        """Make a damaged index anew, or open the one that another process has made. Returns False if it cannot."""
        with self._gate.alone() as is_alone:
            if not is_alone:
                return False
            self._is_damaged, self._was_damaged = False, True
            try:
                with self._folder.locked():
                    self._index.close_removed(self._remove_files)
                    self._files.close()
                    LOG.warning("%s was damaged or replaced, and is opened anew", self._index_path)
                    self._index = self._open_index()
            except (*OPERATING_ERRORS, ConfigurationError) as error:
                self.failed(error)
                return False
            self._was_damaged = False
            return True

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
                    sizes.setdefault(whole_blocks(page_bytes(sources[number])), []).append(number)
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
            _decoding(self._index.close)
        finally:
            self._files.close()
            try:
                self._remove_damaged()
            finally:
                self._folder.close()

    def _remove_damaged(self) -> None:
        """Remove an index that was found damaged and could not be replaced."""
        if self._is_damaged or self._was_damaged:
            with self._folder.locked():
                if self._folder.is_alone:
                    self._remove_files()


def _is_file(path: Path, expected: os.stat_result) -> bool:
    """Whether a path leads to this file. Raises OSError when the disk fails, which tells nothing about the file."""
    try:
        return os.path.samestat(path.stat(), expected)
    except FileNotFoundError:
        return False


def _decoding(act: Callable[[], T]) -> T:
    """Make what Python raises for a message of SQLite that quotes damaged bytes an error of the tables."""
    try:
        return act()
    except UnicodeDecodeError as error:
        raise DamagedDatabaseError(str(error)) from error
