"""MisbehavingStorage: a wrapper around any backend that lies, dies or hangs when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from threading import Event
from typing import Any, TypeVar, cast

from hicache.storage.base import Pieces, PoolQuery
from hicache.storage.wrappers import StorageWrapper
from hicache.testing.storage.scripted import NOISE

BACKEND = f"{__name__}:MisbehavingStorage"
"""The name of the backend in a configuration."""

GUARD_S = 20.0
"""After this time a call that hangs goes on, so that a cache which waits for it fails a test and does not block it."""

T = TypeVar("T")

Lie = Callable[[int], object]
"""What is answered in the place of an answer, for so many keys."""


class ThreadKilledError(BaseException):
    """What a backend raises to end the thread that calls it. No `except Exception` stops it."""


class CallGate:
    """Holds a call until it is opened. `entered`: set when a call has come. `was_late`: it was not opened in time."""

    def __init__(self) -> None:
        self.entered = Event()
        self.was_late = False
        self._is_open = Event()

    def enter(self) -> None:
        """Return when the gate is open."""
        self.entered.set()
        if not self._is_open.wait(GUARD_S):
            self.was_late = True
            self.open()

    def open(self) -> None:
        """Let all calls go on, those that come later too."""
        self._is_open.set()


@dataclass(slots=True)
class Script:
    """What a wrapper does from now on, by verb.

    `lies`: what is given instead of a call of the inner backend. `gates`: where a call waits before the inner backend
    is called. `deadly`: the verbs that raise ThreadKilledError. `kept`: the targets of each `get` that has returned, if
    they are kept; a backend that keeps them does not accept the memory of a cache.
    """

    lies: dict[str, Lie] = field(default_factory=dict)
    gates: dict[str, CallGate] = field(default_factory=dict)
    deadly: set[str] = field(default_factory=set)
    kept: list[Pieces] | None = None

    def write_late(self) -> int:
        """Write to all that was kept. Returns to how many pages."""
        kept = self.kept or []
        for piece in chain.from_iterable(kept):
            piece[:] = bytes([NOISE]) * len(piece)
        return len(kept)

    def hang(self, verb: str) -> CallGate:
        """Hold the calls of a verb at a new gate."""
        self.gates[verb] = CallGate()
        return self.gates[verb]

    def behave(self) -> None:
        """From now on the wrapper only calls the inner backend; what hangs goes on."""
        self.lies.clear()
        self.deadly.clear()
        for gate in self.gates.values():
            gate.open()


_SCRIPTS: dict[str, Script] = {}
_numbers = count()


@contextmanager
def script() -> Iterator[tuple[str, Script]]:
    """A new script, and its name: the option `script` of a wrapper."""
    name = f"script {next(_numbers)}"
    made = _SCRIPTS[name] = Script()
    try:
        yield name, made
    finally:
        made.behave()
        del _SCRIPTS[name]


class MisbehavingStorage(StorageWrapper):
    """Options: those of StorageWrapper, and `script`, a name that `script` gave."""

    NAME = "misbehaving"
    OWN = ("script",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        self._script = _SCRIPTS[self.parsed.text("script")]
        self._answer("open", 0, lambda: None)

    def has(self, keys: Sequence[str]) -> list[bool]:
        return self._answer("has", len(keys), lambda: self.inner.has(keys))

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        answers = self._answer("get", len(keys), lambda: self.inner.get(keys, targets, prefix_keys))
        if self._script.kept is not None:
            self._script.kept += targets
        return answers

    def register(self, regions: Sequence[memoryview]) -> bool:
        return self._script.kept is None and self.inner.register(regions)

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self._answer("set", len(keys), lambda: self.inner.set(keys, sources, prefix_keys))

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return self._answer("exists", len(keys), lambda: self.inner.exists(keys, queries, prefix_keys))

    def clear(self) -> bool:
        return self._answer("clear", 0, self.inner.clear)

    def close(self) -> None:
        self._answer("close", 0, self.inner.close)

    def _answer(self, verb: str, keys: int, ask: Callable[[], T]) -> T:
        script = self._script
        if verb in script.gates:
            script.gates[verb].enter()
        if verb in script.deadly:
            raise ThreadKilledError(f"{verb} of {keys} keys ends its thread")
        return cast("T", script.lies[verb](keys)) if verb in script.lies else ask()
