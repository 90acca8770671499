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
    """`root/scope`, with a lock among processes and a folder for what each of its writers has not finished.

    A writer's folder is locked while its process lives, so that what a dead one left is known, whoever has its process
    number by now. Not to be carried over a fork: both would hold the same locks. Raises ConfigurationError where the
    folder cannot be made, or is a link to somewhere else.
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
        """Keep all other processes and threads out, those that are dead excepted."""
        with self._threads:
            flock(self.lock_file, LOCK_EX)
            try:
                yield
            finally:
                flock(self.lock_file, LOCK_UN)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """The lock, for what a backend does when it is opened; where that fails the folder is closed."""
        try:
            with self.locked():
                yield
        except BaseException:
            self.close()
            raise

    def bury(self) -> bool:
        """Remove what dead writers left; whether there was any. Under the lock."""
        dead = [path for path in (self.path / WRITERS).iterdir() if path != self.unfinished and _is_dead(path)]
        for path in dead:
            shutil.rmtree(path)
        return bool(dead)

    def writers(self) -> set[str]:
        """All that have not been buried. Under the lock."""
        return {path.name for path in (self.path / WRITERS).iterdir()}

    def close(self) -> None:
        """Let go of the folder. What was not finished goes."""
        with self.locked():
            shutil.rmtree(self.unfinished, ignore_errors=True)
        os.close(self._alive)
        os.close(self.lock_file)

    def _refuse_links(self) -> None:
        for path in (self.path, *self.path.iterdir()):
            if path.is_symlink():
                raise ConfigurationError(f"{path} is a link: no object of a scope lies outside its folder")


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
