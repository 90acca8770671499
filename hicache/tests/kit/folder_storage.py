"""FolderStorage: a correct storage backend with one file per object; the base class of defective ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hicache.storage.base import Pieces, StorageBackend, StorageStats
from hicache.storage.keys import check_key, check_scope

DIGEST_BYTES = 32

_numbers = count()


class FolderStorage(StorageBackend):
    """Options: `directory`. A file holds the page, followed by the digest of its key and its bytes."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        self.folder = Path(options["directory"], check_scope(scope))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.counts: Counter[str] = Counter()
        self.sweep()

    def sweep(self) -> None:
        """Remove the incomplete files of processes that have ended."""
        for beside in self.folder.glob("*.*.*"):
            if not Path("/proc", beside.name.split(".")[1]).exists():
                beside.unlink(missing_ok=True)

    def path(self, key: str) -> Path:
        """The file of an object."""
        return self.folder / sha256(quote(check_key(key)).encode()).hexdigest()

    def has(self, keys: Sequence[str]) -> list[bool]:
        return [self.guarded(lambda path, _: path.exists(), self.path(key), ()) for key in keys]

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        paths = [self.path(key) for key in keys]
        if len(keys) != len(targets):
            return [False] * len(keys)
        return [self.guarded(self.read, path, pieces) for path, pieces in zip(paths, targets, strict=True)]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        paths = [self.path(key) for key in keys]
        if len(keys) != len(sources):
            return [False] * len(keys)
        return [self.guarded(self.write, path, pieces) for path, pieces in zip(paths, sources, strict=True)]

    def guarded(self, act: Any, path: Path, pieces: Pieces) -> bool:
        """Run `act`, and return False for an OSError."""
        try:
            return bool(act(path, pieces))
        except OSError:
            return False

    def read(self, path: Path, pieces: Pieces) -> bool:
        """Read an object, and remove it unless it is whole."""
        file = os.open(path, os.O_RDONLY)
        try:
            size, digest = os.fstat(file).st_size, bytearray(DIGEST_BYTES)
            moved = sum(self.moved(os.readv, file, piece) for piece in (*pieces, memoryview(digest)) if len(piece))
        finally:
            os.close(file)
        is_whole = size == moved == sum(map(len, pieces)) + DIGEST_BYTES and digest == self.digest(path, pieces)
        if not is_whole:
            self.remove_corrupt(path)
        return is_whole

    def write(self, path: Path, pieces: Pieces) -> bool:
        """Write an object to a temporary file, and rename it when it is whole."""
        if path.exists():
            return True
        beside = path.with_name(f"{path.name}.{os.getpid()}.{next(_numbers)}")
        try:
            self.write_to(beside, pieces, self.digest(path, pieces))
            os.link(beside, path)
        except FileExistsError:
            return True
        finally:
            beside.unlink(missing_ok=True)
        return True

    def write_to(self, path: Path, pieces: Pieces, digest: bytes) -> None:
        """Write a file. Raises OSError unless it is whole."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for piece in (*pieces, memoryview(digest)):
                if self.moved(os.writev, file, piece) != len(piece):
                    raise OSError(f"{path} is full")
        finally:
            os.close(file)

    def moved(self, call: Any, file: int, piece: memoryview) -> int:
        """Write or read one piece, and return how many bytes the call moved."""
        return int(call(file, [piece])) if len(piece) else 0

    def digest(self, path: Path, pieces: Pieces) -> bytes:
        """The digest at the end of an object's file."""
        found = sha256(str(path).encode())
        for piece in pieces:
            found.update(piece)
        return found.digest()

    def remove_corrupt(self, path: Path) -> None:
        """Remove an unreadable object."""
        path.unlink()

    def clear(self) -> bool:
        try:
            for path in self.folder.iterdir():
                path.unlink()
        except OSError:
            return False
        return True

    def stats(self) -> StorageStats:
        raise NotImplementedError("no test of the derived backends reads statistics")

    def close(self) -> None:
        """Do nothing, as nothing is open."""
