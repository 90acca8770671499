"""ScopeFolder: the folder of a scope, which several processes share."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from threading import Lock

from hicache.errors import ConfigurationError

LOCK, WRITERS = "lock", "writers"


class ScopeFolder:
    """`root/scope`, with a lock among processes, and a folder for the unfinished files of each writer.

    A writer's folder is locked while its process lives: an unlocked one belongs to a dead writer, even if another
    process has its process number now. Do not use it after a fork: both processes would hold the same locks. Raises
    ConfigurationError if the folder cannot be made, or is a link.
    """

    def __init__(self, root: str, scope: str) -> None:
        self.path = Path(root).absolute() / scope
        try:
            (self.path / WRITERS).mkdir(parents=True, exist_ok=True)
            self._refuse_links()
            self.lock_file = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise ConfigurationError(f"storage option 'root': got {root!r}, which cannot be used: {error}") from error
        self._threads = Lock()
        self.writer = secrets.token_hex(8)
        self.unfinished = self.path / WRITERS / self.writer
        with self.locked():
            self.unfinished.mkdir()
            self._alive = _lock_folder(self.unfinished)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock against all other threads and processes. The system releases the lock of a dead process."""
        with self._threads:
            flock(self.lock_file, LOCK_EX)
            try:
                yield
            finally:
                flock(self.lock_file, LOCK_UN)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Hold the lock while a backend is being opened. If that raises, close the folder."""
        try:
            with self.locked():
                yield
        except BaseException:
            self.close()
            raise

    def remove_dead_writers(self) -> bool:
        """Remove the folders of dead writers. Returns whether there were any. Called under the lock."""
        dead = [path for path in (self.path / WRITERS).iterdir() if path != self.unfinished and _is_dead(path)]
        for path in dead:
            shutil.rmtree(path)
        return bool(dead)

    def writers(self) -> set[str]:
        """All writers whose folders exist. Called under the lock."""
        return {path.name for path in (self.path / WRITERS).iterdir()}

    def close(self) -> None:
        """Close the folder, and remove unfinished files."""
        with self.locked():
            shutil.rmtree(self.unfinished, ignore_errors=True)
        os.close(self._alive)
        os.close(self.lock_file)

    def _refuse_links(self) -> None:
        for path in (self.path, *self.path.iterdir()):
            if path.is_symlink():
                raise ConfigurationError(f"{path} is a link: the objects of a scope must be in its own folder")


def _lock_folder(path: Path) -> int:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flock(folder, LOCK_EX | LOCK_NB)
    except OSError:
        os.close(folder)
        raise
    return folder


def _is_dead(path: Path) -> bool:
    with suppress(BlockingIOError):
        os.close(_lock_folder(path))
        return True
    return False
