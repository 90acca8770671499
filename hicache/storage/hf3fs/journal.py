"""Journal: the file of a metadata service, and a log of the changes since it was written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.pages import Change
from hicache.storage.hf3fs.snapshot import Snapshot, check_pages, read_snapshots, write_snapshots

MIN_GROWTH_BYTES = 1 << 20
"""The file is rewritten when the journal is longer than this, and longer than the file itself."""


class Journal:
    """Stores every change before it is answered, so that no page is assigned twice after a crash.

    The file is replaced as a whole: a temporary one is written, synchronised and renamed. A change is a line of the
    journal, synchronised too. Lines that the file already includes may be replayed: the last line of a page decides its
    state. Raises ConfigurationError when another service uses the file, or when it cannot be used or read; the file is
    not changed then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_torn = False
        self._growth_bytes = MIN_GROWTH_BYTES
        try:
            self._file = os.open(path.with_name(f"{path.name}.journal"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise ConfigurationError(f"metadata file {path} cannot be used: {error}") from error
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
            self.snapshots = self._read()
        except (OSError, ValueError) as error:
            os.close(self._file)
            raise ConfigurationError(f"metadata file {path} cannot be used: {error}") from error

    @property
    def is_long(self) -> bool:
        """Whether the file should be rewritten before the next change. Raises OSError."""
        return self._is_torn or os.fstat(self._file).st_size > self._growth_bytes

    def open(self, state: str, num_pages: int) -> None:
        """Append a new namespace. Raises OSError."""
        self._append({"state": state, "num_pages": num_pages})

    def change(self, state: str, change: Change) -> None:
        """Append a change of keys and pages. Raises OSError."""
        if any(change):
            self._append({"state": state, **{name: value for name, value in change._asdict().items() if value}})

    def save(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Rewrite the file, and empty the journal. Raises OSError; the file is not changed then."""
        written = self.path.with_name(f"{self.path.name}.tmp")
        text = write_snapshots(snapshots).encode()
        with written.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.path)
        _synchronise(self.path.parent)
        os.ftruncate(self._file, 0)
        self._is_torn = False
        self._growth_bytes = max(MIN_GROWTH_BYTES, len(text))

    def close(self) -> None:
        """Close the journal, and release its lock."""
        os.close(self._file)

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._is_torn = True
        if os.write(self._file, data) < len(data):
            raise OSError(f"{self.path}: only a part of a line could be written to the journal")
        os.fdatasync(self._file)
        self._is_torn = False

    def _read(self) -> dict[str, Snapshot]:
        snapshots = read_snapshots(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        with os.fdopen(os.dup(self._file), "rb") as file:
            *lines, _unfinished = file.read().split(b"\n")
        taken: dict[str, set[int]] = {}
        try:
            for line in lines:
                _replay(snapshots, taken, json.loads(line))
            for state, reserved in taken.items():
                _count_free(state, snapshots[state], reserved)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"its journal is invalid: {error!r}") from error
        return snapshots


def _replay(snapshots: dict[str, Snapshot], taken: dict[str, set[int]], line: Any) -> None:
    """Apply one line of the journal. Free pages are computed after all lines."""
    state = line["state"]
    if "num_pages" in line:
        snapshots.setdefault(state, Snapshot(line["num_pages"], list(range(line["num_pages"])), {}))
        return
    snapshot, change = snapshots[state], Change(**{name: value for name, value in line.items() if name != "state"})
    if state not in taken:
        used = {*snapshot.free_pages, *snapshot.keys.values()}
        taken[state] = {page for page in range(snapshot.num_pages) if page not in used}
    reserved = taken[state]
    for key in change.removed:
        snapshot.keys.pop(key, None)
    reserved.difference_update(change.freed)
    reserved.update(change.taken)
    for key, page in change.confirmed:
        snapshot.keys[key] = page
        reserved.discard(page)


def _count_free(state: str, snapshot: Snapshot, reserved: set[int]) -> None:
    """Set the free pages: all that are neither reserved nor have a key."""
    used = reserved.union(snapshot.keys.values())
    snapshot.free_pages[:] = [page for page in range(snapshot.num_pages) if page not in used]
    check_pages(state, snapshot)


def _synchronise(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
