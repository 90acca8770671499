"""EngineCalls: writes the calls that an adapter makes to its engine into a file, in the terms of that engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "HICACHE_ENGINE_CALLS"
"""The variable of the environment that names the file. Without it nothing is written."""


class EngineCalls:
    """The calls to one engine. The file has those since the last engine was opened.

    Hypothesis runs the smallest example of a failure last, so that the file has its calls when the run ends.
    """

    def __init__(self) -> None:
        named = os.environ.get(VARIABLE)
        self._path = Path(named) if named else None
        self._names: dict[int, str] = {}
        self._kept: list[object] = []
        if self._path is not None:
            self._path.write_text("", encoding="utf-8")

    def watch(self, target: Any, name: str) -> Any:
        """The object itself without a file, else one that writes each call of a method and then makes it."""
        return target if self._path is None else _Watched(target, name, self)

    def name(self, value: Any, name: str) -> Any:
        """Let a value, such as a request, be written by a name; returns the value."""
        if self._path is not None:
            self._names[id(value)] = f"{name}{len(self._kept) + 1}"
            self._kept.append(value)
        return value

    def note(self, line: str) -> None:
        """Write a line, such as an assignment to a field of the engine."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def told(self, value: Any) -> str:
        """A value as a call shows it: by its name, an array by its numbers."""
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.told, value))}]"
        if hasattr(value, "cuda_handle"):
            return self.told(value.cuda_handle)
        if hasattr(value, "cached_len"):
            return f"handle of {value.cached_len} tokens"
        if hasattr(value, "tolist"):
            return str(value.tolist())
        is_plain = value is None or isinstance(value, (bool, int, float, str))
        return repr(value) if is_plain else type(value).__name__


class _Watched:
    """An object of an engine whose calls of methods are written."""

    def __init__(self, target: Any, name: str, calls: EngineCalls) -> None:
        self.__dict__.update(_target=target, _name=name, _calls=calls)

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._target, attribute)
        return self._writing(attribute, found) if callable(found) else found

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._target, attribute, value)

    def _writing(self, attribute: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            words = [
                *map(self._calls.told, arguments),
                *(f"{key}={self._calls.told(one)}" for key, one in named.items()),
            ]
            place = f"{self._name}.{attribute}({', '.join(words)})"
            try:
                answer = method(*arguments, **named)
            except Exception as error:
                self._calls.note(f"{place}  # raises {type(error).__name__}: {error}")
                raise
            self._calls.note(place if answer is None else f"{place}  # {self._calls.told(answer)}")
            return answer

        return call
