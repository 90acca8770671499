"""Load modules of the cache with a changed text, in a process that has imported the rest already."""

from __future__ import annotations

import builtins
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from types import CodeType, ModuleType


class ChangeError(Exception):
    """A change that does not say which place it means, or that changes nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """`replacement` in the place of `text`, which the source of the module has exactly once."""

    module: str
    text: str
    replacement: str

    def applied(self, source: str) -> str:
        """The changed source. Raises ChangeError unless it has the text exactly once, and differs afterwards."""
        if (count := source.count(self.text)) != 1:
            raise ChangeError(f"{self.module} has this text {count} times, expected once:\n{self.text}")
        if self.replacement == self.text:
            raise ChangeError(f"{self.module}: the replacement is the text itself:\n{self.text}")
        return source.replace(self.text, self.replacement)


class ChangedSource(SourceFileLoader):
    """Compiles a module from its changed source. Nothing is written to disk."""

    changes: Sequence[Change]

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname) or ""
        for change in self.changes:
            source = change.applied(source)
        return compile(source, self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds the modules that are changed. `loaded`: those that were loaded with their change."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._changes: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            self._changes[change.module].append(change)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname in self._changes else None
        if found is not None and found.origin is not None:
            found.loader = ChangedSource(fullname, found.origin)
            found.loader.changes = self._changes[fullname]
        return found


class Imports:
    """Notes which modules have imported a module, from the creation of this object on."""

    def __init__(self) -> None:
        self._importers: dict[str, set[str]] = defaultdict(set)
        self._import: Callable[..., ModuleType] = builtins.__import__
        builtins.__import__ = self._noted  # type: ignore[assignment]

    def _noted(
        self,
        name: str,
        namespace: Mapping[str, object] | None = None,
        local: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = None,
        level: int = 0,
    ) -> ModuleType:
        module = self._import(name, namespace, local, fromlist, level)
        importer = str((namespace or {}).get("__name__", "__main__"))
        whole = module.__name__ if fromlist else name
        for target in (whole, *(f"{whole}.{one}" for one in fromlist or ())):
            self._importers[target].add(importer)
        return module

    def forget(self, modules: Iterable[str]) -> None:
        """Remove modules, and all that have imported them, so that the next import of each loads it again.

        Nothing is noted from then on.
        """
        builtins.__import__ = self._import
        left = list(modules)
        while left:
            name = left.pop()
            if name != "__main__" and sys.modules.pop(name, None) is not None:
                package, _, last = name.rpartition(".")
                if package in sys.modules:
                    vars(sys.modules[package]).pop(last, None)
            left += self._importers.pop(name, ())


def load_changed(changes: Sequence[Change], imports: Imports) -> None:
    """Change modules for the rest of this process, and load them. Raises ChangeError where a change does not apply."""
    sys.meta_path.insert(0, Finder(changes))
    imports.forget({change.module for change in changes})
    for change in changes:
        __import__(change.module)


def changed_module(changes: Sequence[Change]) -> ModuleType:
    """A second module beside the one that is loaded. All changes are to this one module."""
    (name,) = {change.module for change in changes}
    spec = find_spec(name)
    assert spec is not None, f"there is no module {name}"
    assert spec.origin is not None, f"{name} has no source"
    loader = ChangedSource(name, spec.origin)
    loader.changes = changes
    spec.loader = loader
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
