"""ScopeFolder: the folder of a scope, which several processes share."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from hicache.errors import ConfigurationError
from hicache.storage.file_lock import FileLock

LOCK, WRITERS = "lock", "writers"


class ScopeFolder:
    """`root/scope`, with a lock among processes, and a folder for the unfinished files of each writer.

    A writer's folder is locked while its process lives: an unlocked one belongs to a dead writer, even if another
    process has its process number now. Do not use it after a fork: both processes would hold the same locks. Raises
    ConfigurationError if the folder cannot be made, or is a link.
    """

    def __init__(self, root: str, scope: str, lock_timeout_s: float) -> None:
        self.path = Path(root).absolute() / scope
        self.writer = secrets.token_hex(8)
        self.unfinished = self.path / WRITERS / self.writer
        with ExitStack() as opened, _refusing(root):
            (self.path / WRITERS).mkdir(parents=True, exist_ok=True)
            self._refuse_links()
            self.lock_file = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            opened.callback(os.close, self.lock_file)
            self._lock = FileLock(self.lock_file, lock_timeout_s)
            with self.locked():
                self.unfinished.mkdir()
                self._alive = _lock_folder(self.unfinished)
            opened.pop_all()

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock against all other threads and processes. Raises OSError when a deadline is over."""
        return self._lock.held()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Hold the lock while a backend is being opened. If that raises, close the folder.

        Raises ConfigurationError for an error of the system.
        """
        try:
            with _refusing(str(self.path)), self.locked():
                yield
        except BaseException:
            with suppress(OSError):
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

    @property
    def is_alone(self) -> bool:
        """Whether there is no other writer, dead or alive. Called under the lock."""
        return self.writers() == {self.writer}

    def close(self) -> None:
        """Close the folder, and remove unfinished files. Raises OSError, with the folder closed."""
        try:
            with self.locked():
                shutil.rmtree(self.unfinished, ignore_errors=True)
        finally:
            # What could not be removed is that of a dead writer now, which the next process removes.
            os.close(self._alive)
            os.close(self.lock_file)

    def _refuse_links(self) -> None:
        for path in (self.path, *self.path.iterdir()):
            if path.is_symlink():
                raise ConfigurationError(f"{path} is a link: the objects of a scope must be in its own folder")


@contextmanager
def _refusing(root: str) -> Iterator[None]:
    """Make an error of the system that of the configuration. Python raises ValueError for a zero in a path."""
    try:
        yield
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"storage option 'root': got {root!r}, which cannot be used: {error}") from error


def _lock_folder(path: Path) -> int:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flock(folder, LOCK_EX | LOCK_NB)
    except OSError:
        os.close(folder)
        raise
    return folder


def _is_dead(path: Path) -> bool:
    """Whether a writer's folder is not locked. Raises ConfigurationError unless it is a folder."""
    if not path.is_dir():
        raise ConfigurationError(f"{path} is not a folder of a writer: the folder of a scope must have no other files")
    with suppress(BlockingIOError):
        os.close(_lock_folder(path))
        return True
    return False
