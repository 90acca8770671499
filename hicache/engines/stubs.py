"""Stubs: modules that stand in for packages that an engine's cache imports and does not use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ABSENT = frozenset({"active"})
"""Names that no stub has: SGLang takes triton's active driver as a sign of a GPU."""


class _StubType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name in ABSENT:
            raise AttributeError(name)
        return cls

    def __call__(cls, *arguments: Any, **_: Any) -> Any:
        # Used as a decorator, it returns the function it decorates.
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else cls

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __ge__(cls, _: Any) -> bool:
        # Some packages compare the version of an imported package.
        return True


class Stub(metaclass=_StubType):
    """The value of every name in a stubbed package: usable as a class, a decorator or a constant."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Accept any keyword of a class statement."""


class StubFinder(MetaPathFinder, Loader):
    """Finds the named packages with all their modules, and loads modules that have every name."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        is_ours = any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)
        return ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, as a stub has no code."""


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # Only a package as a whole has a version: NIXL takes that of `cuda.bindings` for the version of CUDA.
        if name == "__version__" and "." not in self.__name__:
            return "0"
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub
