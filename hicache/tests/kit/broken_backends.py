"""Storage backends with one defect each, as found in real backends."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from hicache.storage.base import Pieces, PoolQuery
from hicache.tests.kit.dictionary_storage import STORES, DictionaryStorage
from hicache.tests.kit.folder_storage import FolderStorage
from hicache.types import HitPolicy


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


class OneForAll(DictionaryStorage):
    """`set` returns one answer when the numbers of keys and sources differ."""

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return super().set(keys, sources, prefix_keys) if len(keys) == len(sources) else [False]


class Unbounded(DictionaryStorage):
    """The capacity is ignored."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, {**options, "capacity_bytes": 1 << 40})


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
