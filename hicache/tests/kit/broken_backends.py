"""Storage backends that are each wrong in one way, as shipped ones were."""

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
    """`exists` takes the minimum of each pool's own best."""

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        ask = super().exists
        return min([ask(keys, [], []), *(ask(keys, [query], []) for query in queries)])


class FixedWindow(DictionaryStorage):
    """`exists` takes a window for whole at the end of all pages only."""

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        asked = [one for one in queries if one.policy is HitPolicy.ALL_PAGES or all(self.has(one.keys[-1:]))]
        return super().exists(keys, asked, prefix_keys)


class TurnedAnswers(DictionaryStorage):
    """Answers of `get` stand in another order than the keys."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return super().get(keys, targets, prefix_keys)[::-1]


class ClearsAll(DictionaryStorage):
    """`clear` removes what other scopes hold as well."""

    def clear(self) -> bool:
        for (store, _), objects in STORES.items():
            if store == self.store:
                objects.clear()
        return True


class Overwrites(DictionaryStorage):
    """`set` of a key that exists writes it again."""

    def write(self, name: str, pieces: Pieces) -> bool:
        self.objects.pop(name, None)
        return super().write(name, pieces)


class TakesShort(DictionaryStorage):
    """An object that is too short is read as far as it goes."""

    def read(self, name: str, pieces: Pieces) -> bool:
        kept = self.objects.get(name, b"")
        if name in self.objects:
            self.objects[name] = kept.ljust(sum(map(len, pieces)), b"\0")
        return super().read(name, pieces)


class Raises(DictionaryStorage):
    """A key that is not there is an exception."""

    def read(self, name: str, pieces: Pieces) -> bool:
        return len(self.objects[name]) > 0 and super().read(name, pieces)


class TouchesTargets(DictionaryStorage):
    """With more keys than targets, those that there are are filled."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        least = min(len(keys), len(targets))
        answers = super().get(keys[:least], targets[:least], prefix_keys)
        return answers if len(keys) == len(targets) else [False] * len(keys)


class OneForAll(DictionaryStorage):
    """A mismatch has one answer."""

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return super().set(keys, sources, prefix_keys) if len(keys) == len(sources) else [False]


class Unbounded(DictionaryStorage):
    """Everything is kept."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, {**options, "capacity_bytes": 1 << 40})


class Remembers(DictionaryStorage):
    """`has` goes by what was seen once."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self.seen: set[str] = set()

    def has(self, keys: Sequence[str]) -> list[bool]:
        there = super().has(keys)
        self.seen.update(key for key, is_there in zip(keys, there, strict=True) if is_there)
        return [key in self.seen for key in keys]


class OneScope(DictionaryStorage):
    """Scopes are not told apart."""

    @property
    def objects(self) -> dict[str, bytes]:
        """What all scopes hold."""
        return STORES.setdefault((self.store, "one"), {})


class NoCase(DictionaryStorage):
    """Keys are told apart as a file system without case does."""

    def checked_key(self, key: str) -> str:
        return super().checked_key(key).lower()


class OneContextRank(DictionaryStorage):
    """The ranks of context parallelism have one name."""

    def checked_key(self, key: str) -> str:
        return re.sub(r"\.cp\d+of", ".cp0of", super().checked_key(key))


class AnyKey(DictionaryStorage):
    """Keys are taken as they come."""

    def checked_key(self, key: str) -> str:
        return key


class Copies(DictionaryStorage):
    """A page is put together before it is handed over."""

    def read(self, name: str, pieces: Pieces) -> bool:
        whole = bytearray(sum(map(len, pieces)))
        answer = super().read(name, [memoryview(whole)])
        rest = memoryview(whole)
        for piece in pieces:
            piece[:], rest = rest[: len(piece)], rest[len(piece) :]
        return answer


class Unpickles(DictionaryStorage):
    """What is kept is looked at for an object of Python."""

    def read(self, name: str, pieces: Pieces) -> bool:
        if self.objects.get(name, b"")[:1] == b"\x80":
            pickle.loads(self.objects[name])  # noqa: S301 - the defect
        return super().read(name, pieces)


class HalfBatches(DictionaryStorage):
    """Of a batch, only the first hundred pages are kept."""

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if len(keys) != len(sources):
            return [False] * len(keys)
        return super().set(keys[:100], sources[:100], prefix_keys) + [True] * len(keys[100:])


class SharedRoom(DictionaryStorage):
    """Pages come through memory in which the next one lies before the last one is out."""

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
    """What one instance keeps is gone with it."""

    def close(self) -> None:
        self.objects.clear()


class KeepsBeginnings(FolderStorage):
    """What a process had begun that is gone stays for ever."""

    def sweep(self) -> None:
        """Remove nothing."""


class TornVisible(FolderStorage):
    """A page is written in its place, and no digest tells what is missing."""

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
    """What is read is believed."""

    def digest(self, path: Path, pieces: Pieces) -> bytes:
        return bytes(32)


class KeepsDamage(FolderStorage):
    """What cannot be read stays where it is, so that nobody can write it anew."""

    def spoiled(self, path: Path) -> None:
        """Nothing."""


class Escapes(FolderStorage):
    """A key is a path."""

    def path(self, key: str) -> Path:
        return self.folder / key.replace("\0", "")

    def write(self, path: Path, pieces: Pieces) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        return super().write(path, pieces)


class DiskRaises(FolderStorage):
    """A disk that fails is an exception."""

    def guarded(self, act: Any, path: Path, pieces: Pieces) -> bool:
        return (act == self.write or path.exists()) and bool(act(path, pieces))


class TrustsWrites(FolderStorage):
    """How much was written is not looked at."""

    def moved(self, call: Any, file: int, piece: memoryview) -> int:
        moved = super().moved(call, file, piece)
        return len(piece) if call is os.writev else moved
