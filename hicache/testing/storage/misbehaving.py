"""MisbehavingStorage: a wrapper around any backend that lies, dies or hangs when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar, cast

from hicache.storage.base import Pieces, PoolQuery
from hicache.storage.wrappers import StorageWrapper

BACKEND = f"{__name__}:MisbehavingStorage"
"""The name of the backend in a configuration."""

T = TypeVar("T")

Lie = Callable[[int], object]
"""What is answered in the place of an answer, for so many keys."""


@dataclass(slots=True)
class Script:
    """What a wrapper does from now on. `lies`: by verb, what is given instead of a call of the inner backend."""

    lies: dict[str, Lie] = field(default_factory=dict)


_SCRIPTS: dict[str, Script] = {}
_numbers = count()


@contextmanager
def script() -> Iterator[tuple[str, Script]]:
    """A new script, and its name: the option `script` of a wrapper."""
    name = f"script {next(_numbers)}"
    _SCRIPTS[name] = Script()
    try:
        yield name, _SCRIPTS[name]
    finally:
        del _SCRIPTS[name]


class MisbehavingStorage(StorageWrapper):
    """Options: those of StorageWrapper, and `script`, a name that `script` gave."""

    NAME = "misbehaving"
    OWN = ("script",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self._script = _SCRIPTS[self.parsed.text("script")]

    def has(self, keys: Sequence[str]) -> list[bool]:
        return self._answer("has", len(keys), lambda: self.inner.has(keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self._answer("get", len(keys), lambda: self.inner.get(keys, targets, prefix_keys))

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self._answer("set", len(keys), lambda: self.inner.set(keys, sources, prefix_keys))

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return self._answer("exists", len(keys), lambda: self.inner.exists(keys, queries, prefix_keys))

    def clear(self) -> bool:
        return self._answer("clear", 0, self.inner.clear)

    def _answer(self, verb: str, keys: int, ask: Callable[[], T]) -> T:
        lie = self._script.lies.get(verb)
        return ask() if lie is None else cast("T", lie(keys))
