"""Storage backends for tests: two correct ones, and backends with one defect each, as found in real backends."""

from __future__ import annotations

import os
import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from ctypes import memmove, memset
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Event, RLock
from typing import Any
from urllib.parse import quote

import numpy as np

from hicache.storage.base import Pieces, PoolQuery, StorageBackend, StorageStats
from hicache.storage.file import FileStorage, Staged
from hicache.storage.keys import check_key, check_scope
from hicache.storage.paged import Answer
from hicache.storage.slotfile.backend import SlotFileStorage
from hicache.storage.slotfile.index import Pinned
from hicache.types import HitPolicy

STORES: dict[tuple[str, str], dict[str, bytes]] = {}
"""The objects, by the name of a store and a scope."""


class DictionaryStorage(StorageBackend):
    """Options: `store`, a name that instances share; `capacity_bytes` of one scope."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        self.scope = self.checked_scope(scope)
        self.store = options["store"]
        self.capacity_bytes = options["capacity_bytes"]
        self.lock = RLock()
        self.counts: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects of the scope, oldest first."""
        return STORES.setdefault((self.store, self.scope), {})

    def checked_scope(self, scope: str) -> str:
        """The name of a scope in the store."""
        return check_scope(scope)

    def checked_key(self, key: str) -> str:
        """The name of an object in the store."""
        return check_key(key)

    def has(self, keys: Sequence[str]) -> list[bool]:
        return [self.checked_key(key) in self.objects for key in keys]

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        names = [self.checked_key(key) for key in keys]
        if len(keys) != len(targets):
            return [False] * len(keys)
        return [self.read(name, pieces) for name, pieces in zip(names, targets, strict=True)]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        names = [self.checked_key(key) for key in keys]
        if len(keys) != len(sources):
            return [False] * len(keys)
        return [self.write(name, pieces) for name, pieces in zip(names, sources, strict=True)]

    def read(self, name: str, pieces: Pieces) -> bool:
        """Copy an object to its target."""
        kept = self.objects.get(name)
        if kept is None or len(kept) != sum(map(len, pieces)):
            self.missed("absent" if kept is None else "short")
            return False
        rest = memoryview(kept)
        for piece in pieces:
            piece[:], rest = rest[: len(piece)], rest[len(piece) :]
        self.counts.update(hits=1, bytes_read=len(kept))
        return True

    def write(self, name: str, pieces: Pieces) -> bool:
        """Store an object, and evict others for it if needed."""
        with self.lock:
            objects = self.objects
            if name in objects:
                self.use(name)
                self.counts["present"] += 1
                return True
            size = sum(map(len, pieces))
            if size > self.capacity_bytes:
                return False
            while sum(map(len, objects.values())) + size > self.capacity_bytes:
                objects.pop(next(iter(objects)))
                self.counts["removed"] += 1
            objects[name] = b"".join(pieces)
            self.counts.update(written=1, bytes_written=size)
            return True

    def use(self, name: str) -> None:
        """Make an object that exists the youngest."""
        self.objects[name] = self.objects.pop(name)

    def missed(self, reason: str) -> None:
        """Count a miss."""
        self.misses[reason] += 1

    def clear(self) -> bool:
        self.objects.clear()
        return True

    def stats(self) -> StorageStats:
        names = ("hits", "written", "present", "removed", "bytes_read", "bytes_written")
        counts = {name: self.counts[name] for name in names}
        kept = sum(map(len, self.objects.values()))
        return StorageStats(
            objects=len(self.objects), object_bytes=kept, misses=dict(self.misses), refused={}, **counts
        )

    def close(self) -> None:
        """Do nothing, as nothing is open."""


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


class SmallestOfEach(DictionaryStorage):
    """`exists` returns the minimum of the pools' own longest prefixes."""

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        ask = super().exists
        return min([ask(keys, [], []), *(ask(keys, [query], []) for query in queries)])


class FixedWindow(DictionaryStorage):
    """`exists` checks the window only at the end of all pages."""

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        asked = [one for one in queries if one.policy is HitPolicy.ALL_PAGES or all(self.has(one.keys[-1:]))]
        return super().exists(keys, asked, prefix_keys)


class TurnedAnswers(DictionaryStorage):
    """`get` returns its answers in another order than the keys."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return super().get(keys, targets, prefix_keys)[::-1]


class VectorAnswers(DictionaryStorage):
    """`has` answers with numpy, whose True is not True itself."""

    def has(self, keys: Sequence[str]) -> list[bool]:
        return list(np.array(super().has(keys), dtype=np.bool_))


class VectorCounts(DictionaryStorage):
    """`exists` counts with numpy."""

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return np.int64(super().exists(keys, queries, prefix_keys))  # type: ignore[return-value]


class ClearsAll(DictionaryStorage):
    """`clear` also removes the objects of other scopes."""

    def clear(self) -> bool:
        for (store, _), objects in STORES.items():
            if store == self.store:
                objects.clear()
        return True


class Overwrites(DictionaryStorage):
    """`set` overwrites an existing key."""

    def write(self, name: str, pieces: Pieces) -> bool:
        self.objects.pop(name, None)
        return super().write(name, pieces)


class TakesShort(DictionaryStorage):
    """`get` accepts an object that is too short, and reads what it has."""

    def read(self, name: str, pieces: Pieces) -> bool:
        kept = self.objects.get(name, b"")
        if name in self.objects:
            self.objects[name] = kept.ljust(sum(map(len, pieces)), b"\0")
        return super().read(name, pieces)


class Raises(DictionaryStorage):
    """`get` raises for an absent key."""

    def read(self, name: str, pieces: Pieces) -> bool:
        return len(self.objects[name]) > 0 and super().read(name, pieces)


class TouchesTargets(DictionaryStorage):
    """`get` with more keys than targets fills the targets that it has."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        least = min(len(keys), len(targets))
        answers = super().get(keys[:least], targets[:least], prefix_keys)
        return answers if len(keys) == len(targets) else [False] * len(keys)


class WritesBeyond(DictionaryStorage):
    """`get` writes a byte behind each page."""

    def read(self, name: str, pieces: Pieces) -> bool:
        answer = super().read(name, pieces)
        last = np.frombuffer(pieces[-1], dtype=np.uint8)
        memset(last.ctypes.data + len(last), 0, 1)
        return answer


class OneForAll(DictionaryStorage):
    """`set` returns one answer when the numbers of keys and sources differ."""

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return super().set(keys, sources, prefix_keys) if len(keys) == len(sources) else [False]


class Unbounded(DictionaryStorage):
    """The capacity is ignored."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, {**options, "capacity_bytes": 1 << 40})


class EvictsItsBatch(DictionaryStorage):
    """An object that `set` finds stored stays the oldest: a new page of the same batch evicts it."""

    def use(self, name: str) -> None:
        """Do nothing."""


class CountsFailedLinks(FileStorage):
    """The bytes of a page whose file could not be linked stay counted."""

    def _link(self, page: Staged, held: set[str]) -> Answer:
        try:
            return super()._link(page, held)
        except OSError:
            self._usage.add(1, page.length)
            raise


class NeverAgain(DictionaryStorage):
    """A key that was evicted counts as present, so that it is never written again."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.written: set[str] = set()

    def write(self, name: str, pieces: Pieces) -> bool:
        if name in self.written:
            return True
        is_kept = super().write(name, pieces)
        self.written.update([name] if is_kept else [])
        return is_kept

    def clear(self) -> bool:
        self.written.clear()
        return super().clear()


class Remembers(DictionaryStorage):
    """`has` remembers a key that was present once."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.seen: set[str] = set()

    def has(self, keys: Sequence[str]) -> list[bool]:
        there = super().has(keys)
        self.seen.update(key for key, is_there in zip(keys, there, strict=True) if is_there)
        return [key in self.seen for key in keys]


class OneScope(DictionaryStorage):
    """All scopes share one set of objects."""

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects of all scopes."""
        return STORES.setdefault((self.store, "one"), {})


class ShortNames(DictionaryStorage):
    """Scopes and keys are cut after 128 characters."""

    def checked_scope(self, scope: str) -> str:
        return super().checked_scope(scope)[:128]

    def checked_key(self, key: str) -> str:
        return super().checked_key(key)[:128]


class FlatKeys(DictionaryStorage):
    """The slash of a key becomes two hyphens."""

    def checked_key(self, key: str) -> str:
        return super().checked_key(key).replace("/", "--")


class NoCase(DictionaryStorage):
    """Keys are not case-sensitive, as on some file systems."""

    def checked_key(self, key: str) -> str:
        return super().checked_key(key).lower()


class OneContextRank(DictionaryStorage):
    """All context-parallel ranks have the same name."""

    def checked_key(self, key: str) -> str:
        return re.sub(r"\.cp\d+of", ".cp0of", super().checked_key(key))


class AnyKey(DictionaryStorage):
    """Keys are not checked."""

    def checked_key(self, key: str) -> str:
        return key


class Copies(DictionaryStorage):
    """A page is assembled in one buffer before it is copied to its target."""

    def read(self, name: str, pieces: Pieces) -> bool:
        whole = bytearray(sum(map(len, pieces)))
        answer = super().read(name, [memoryview(whole)])
        rest = memoryview(whole)
        for piece in pieces:
            piece[:], rest = rest[: len(piece)], rest[len(piece) :]
        return answer


class Accepts(DictionaryStorage):
    """Accepts the memory of a cache, and keeps to it."""

    def register(self, regions: Sequence[memoryview]) -> bool:
        return True


class KeepsMemory(Accepts):
    """Keeps the targets of its last call."""

    kept: Sequence[Pieces] = ()

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        # Parts of them: to release the targets would not release these.
        self.kept = [[piece[1:] for piece in page] for page in targets]
        return super().get(keys, targets, prefix_keys)


class WritesLate(Accepts):
    """Writes the pages of each get once more, when it is called again: the addresses are all that it keeps."""

    late: tuple[int, bytes] | None = None

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = super().get(keys, targets, prefix_keys)
        if self.late is not None:
            address, content = self.late
            memmove(address, content, len(content))
        first = targets[0][0]
        self.late = np.frombuffer(first, dtype=np.uint8).ctypes.data, bytes(first)
        return answers


class Unpickles(DictionaryStorage):
    """`get` tries to unpickle an object."""

    def read(self, name: str, pieces: Pieces) -> bool:
        if self.objects.get(name, b"")[:1] == b"\x80":
            pickle.loads(self.objects[name])  # noqa: S301 - the defect
        return super().read(name, pieces)


class HalfBatches(DictionaryStorage):
    """`set` stores only the first hundred pages of a batch."""

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if len(keys) != len(sources):
            return [False] * len(keys)
        return super().set(keys[:100], sources[:100], prefix_keys) + [True] * len(keys[100:])


class SharedRoom(DictionaryStorage):
    """Pages are copied through a shared buffer that the next page can overwrite too early."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.room = bytearray(1 << 20)

    def read(self, name: str, pieces: Pieces) -> bool:
        kept = self.objects.get(name, b"")
        self.room[: len(kept)] = kept
        Event().wait(0.001)
        pieces[0][:] = self.room[: len(pieces[0])]
        return bool(kept)


class Forgets(DictionaryStorage):
    """The objects are lost when the instance that stored them is closed."""

    def close(self) -> None:
        self.objects.clear()


class KeepsBeginnings(FolderStorage):
    """The incomplete files of processes that have ended are never removed."""

    def sweep(self) -> None:
        """Remove nothing."""


class TornVisible(FolderStorage):
    """A page is written directly to its final file, without a digest to detect an incomplete one."""

    def write(self, path: Path, pieces: Pieces) -> bool:
        if not path.exists():
            self.write_to(
                path, [piece[begin : begin + 64] for piece in pieces for begin in range(0, len(piece), 64)], b""
            )
        return True

    def read(self, path: Path, pieces: Pieces) -> bool:
        with path.open("rb", buffering=0) as file:
            return all(file.readinto(piece) is not None for piece in pieces)


class NoDigest(FolderStorage):
    """Reads are not checked."""

    def digest(self, path: Path, pieces: Pieces) -> bytes:
        return bytes(32)


class BytesAlone(FolderStorage):
    """The digest is over the bytes of a page, and not over its key."""

    def digest(self, path: Path, pieces: Pieces) -> bytes:
        return super().digest(Path(), pieces)


class KeepsDamage(FolderStorage):
    """An unreadable object stays, so that its key can never be written again."""

    def remove_corrupt(self, path: Path) -> None:
        """Do nothing."""


class Escapes(FolderStorage):
    """A key is used as a path without a check."""

    def path(self, key: str) -> Path:
        return self.folder / key.replace("\0", "")

    def write(self, path: Path, pieces: Pieces) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        return super().write(path, pieces)


class DiskRaises(FolderStorage):
    """A disk error is raised."""

    def guarded(self, act: Any, path: Path, pieces: Pieces) -> bool:
        return (act == self.write or path.exists()) and bool(act(path, pieces))


class TrustsWrites(FolderStorage):
    """The number of bytes written is not checked."""

    def moved(self, call: Any, file: int, piece: memoryview) -> int:
        moved = super().moved(call, file, piece)
        return len(piece) if call is os.writev else moved


class BelievesPins(SlotFileStorage):
    """Without checksums, takes what it read of a slot that another process has given to another object meanwhile."""

    def _recheck(self, pinned: Pinned, answers: list[Answer]) -> None:
        if any(answer is not Answer.DONE for answer in answers):
            super()._recheck(pinned, answers)
