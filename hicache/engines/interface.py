"""The interface of an engine: which adapter drives its source, or what the source lacks.

`interfaces.toml` has the names that each adapter uses. The version of the engine is not read: a checkout has none.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache.config import read_table
from hicache.engines.imports import package_root
from hicache.engines.source import Source
from hicache.testing.report.fields import RecordFields

TABLE = Path(__file__).with_name("interfaces.toml")


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface. `releases`: the adapter of each release that has it, oldest first; `checkouts`: those of a source.

    `names`: what the adapters use, each a module and a name in it, or an empty name for the module itself.
    """

    releases: Mapping[str, str]
    checkouts: Mapping[str, str]
    names: frozenset[tuple[str, str]]

    @property
    def release(self) -> str:
        """The newest release that has it."""
        return list(self.releases)[-1]


@dataclass(frozen=True, slots=True)
class FoundInterface:
    """The interface that a source has. `lacks`: if it has none that is known, what it lacks of the nearest one."""

    interface: Interface
    root: Path
    lacks: tuple[str, ...]

    def require(self, engine: str) -> Interface:
        """The interface. Raises ImportError, naming what the source lacks, if it is not known."""
        if self.lacks:
            shown = "; ".join(self.lacks[:3]) + (f"; and {len(self.lacks) - 3} more" if len(self.lacks) > 3 else "")  # noqa: PLR2004
            raise ImportError(
                f"{self.root}: an interface of {engine} that no adapter drives: {shown} "
                f"(the nearest is that of {self.interface.release})"
            )
        return self.interface


@functools.cache
def interfaces() -> Mapping[str, tuple[Interface, ...]]:
    """The interfaces of each engine, oldest first. Raises ConfigurationError naming the wrong field."""
    table = RecordFields(str(TABLE), "", read_table(TABLE))
    return {engine: tuple(_rows(table.tables(engine))) for engine in table.table}


def _rows(rows: Iterable[RecordFields]) -> Iterator[Interface]:
    names: frozenset[tuple[str, str]] = frozenset()
    for row in rows:
        names = (names - _names(row, "lost")) | _names(row, "has")
        checkouts = row.texts_by_name("checkouts") if "checkouts" in row.table else {}
        yield Interface(row.texts_by_name("releases"), checkouts, names)
        row.refuse_unread()


def _names(row: RecordFields, field: str) -> frozenset[tuple[str, str]]:
    if field not in row.table:
        return frozenset()
    modules = row.fields(field)
    return frozenset((module, name) for module in modules.table for name in modules.texts(module) or ("",))


def find_interface(engine: str) -> FoundInterface:
    """The interface of the engine that would be imported: the newest that its source has, or the nearest.

    Raises ImportError if the engine is not there, or is written for another Python.
    """
    return _find(engine, package_root(engine))


@functools.cache
def _find(engine: str, root: Path) -> FoundInterface:
    source, known = Source(root), []
    for one in reversed(interfaces()[engine]):
        known.append(FoundInterface(one, root, tuple(source.lacking(one.names))))
        if not known[-1].lacks:
            break
    return min(known, key=lambda one: len(one.lacks))


def release_of(engine: str) -> str | None:
    """The release whose interface an engine has or is next to; None if the engine is not there."""
    try:
        return find_interface(engine).interface.release
    except ImportError:
        return None


def require_interface(engine: str, adapter: type[Any]) -> None:
    """Raise ImportError unless the engine has the interface of the adapter's release, which is its `version`."""
    found = find_interface(engine).require(engine)
    if adapter.version not in found.releases:
        raise ImportError(
            f"{adapter.__name__} drives the interface of {engine} {adapter.version}, but {package_root(engine)} has "
            f"that of {found.release}"
        )


def checkouts(engine: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has `Checkout`: the adapter class that drives the source of an engine."""

    def find(name: str) -> Any:
        if not name.startswith("Checkout"):
            raise AttributeError(name)
        found = find_interface(engine).require(engine)
        path = found.checkouts.get(name, "") if name != "Checkout" else found.releases[found.release]
        if not path:
            raise AttributeError(name)
        module, _, kind = path.partition(":")
        return getattr(importlib.import_module(module), kind)

    return find
