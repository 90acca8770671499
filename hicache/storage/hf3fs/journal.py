"""Journal: the file of a metadata service, and beside it what has changed since it was written."""

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

LEAST_GROWTH_BYTES = 1 << 20
"""Until the file is written anew; more, where it is longer itself."""


class Journal:
    """What is answered has been written before, so that no page is handed out twice after a crash.

    The file is replaced as a whole: a temporary one is written, synchronised and renamed. A change is a line of the
    journal, synchronised too. Lines that the file has taken over already may be replayed: the last one of a page tells
    what it is. Raises ConfigurationError when another service has the file, or when it cannot be used or read; it is
    left as it is then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_torn = False
        self._growth_bytes = LEAST_GROWTH_BYTES
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
        """Whether the file should be written anew before the next change. Raises OSError."""
        return self._is_torn or os.fstat(self._file).st_size > self._growth_bytes

    def open(self, state: str, num_pages: int) -> None:
        """Note a new namespace. Raises OSError."""
        self._append({"state": state, "num_pages": num_pages})

    def change(self, state: str, change: Change) -> None:
        """Note what became of keys and pages. Raises OSError."""
        if any(change):
            self._append({"state": state, **{name: told for name, told in change._asdict().items() if told}})

    def save(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Write the file anew. Raises OSError, and it is as it was."""
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
        self._growth_bytes = max(LEAST_GROWTH_BYTES, len(text))

    def close(self) -> None:
        """Let another service have the file."""
        os.close(self._file)

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._is_torn = True
        if os.write(self._file, data) < len(data):
            raise OSError(f"{self.path}: the journal took a part of a line")
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
                _settle(state, snapshots[state], reserved)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"its journal does not fit: {error!r}") from error
        return snapshots


def _replay(snapshots: dict[str, Snapshot], taken: dict[str, set[int]], line: Any) -> None:
    """Take over one line. Free pages are counted at the end."""
    state = line["state"]
    if "num_pages" in line:
        snapshots.setdefault(state, Snapshot(line["num_pages"], list(range(line["num_pages"])), {}))
        return
    snapshot, change = snapshots[state], Change(**{name: told for name, told in line.items() if name != "state"})
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


def _settle(state: str, snapshot: Snapshot, reserved: set[int]) -> None:
    """All pages that are neither reserved nor under a key are free."""
    used = reserved.union(snapshot.keys.values())
    snapshot.free_pages[:] = [page for page in range(snapshot.num_pages) if page not in used]
    check_pages(state, snapshot)


def _synchronise(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
