"""Names that were withdrawn stay withdrawn: no identifier of the repository is one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache.testing.plugin.tags import SUITES
from hicache.tests.architecture.shape import python_files

ROOT = Path(__file__).parents[3]
FOLDERS = ("hicache", "examples", *SUITES)

WITHDRAWN = {
    "ComponentTree": ("Ensemble",),
    "ComponentTier": ("Holding", "Surroundings", "Ways"),
    "BackupManager": ("Backups",),
    "LoadBackManager": ("Loads", "LoadPlan", "LoadTicket"),
    "PrefetchManager": ("Fetches", "Fetch", "Arrivals", "Landing", "Patience"),
    "StorageWriter": ("Persists", "Persist", "persisting", "persists"),
    "TransferQueue": ("StorageQueue", "StorageExecutor", "StorageProgress", "ThreadStorage", "StepStorage"),
    "DeviceEvictor, HostEvictor": ("DeviceRoom", "HostRoom"),
    "RequestManager": ("RequestLife",),
    "Runtime": ("StorageWorld",),
    "propagate_recency": ("hand_up",),
    "can_back_up_child": ("bears_on_host", "has_ground"),
    "is_write_back": ("leaves_gaps",),
    "prune_and_requeue, complete": ("settle",),
    "synthetic_tree": ("grove",),
    "concurrent_requests": ("crowd",),
    "corrupt, restore": ("spoil", "mend"),
    "drop_device_copy": ("strand",),
    "residency_cases": ("charts", "residences"),
    "RankMonitor": ("RollCall", "roll_call"),
}
"""The name to use, and those that it replaced."""

REPLACED_BY = {name: new for new, names in WITHDRAWN.items() for name in names}


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of every name that a module defines or uses, and of the module itself."""
    yield 0, path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.lineno, node.arg


def withdrawn(path: Path) -> Iterator[str]:
    """One line for each identifier that was withdrawn. Constants that begin with MOST_ are MAX_ now."""
    for line, name in identifiers(path):
        plain = name.lstrip("_")
        if plain in REPLACED_BY or plain.lower() in {old for old in REPLACED_BY if old.islower()}:
            yield f"{path}:{line}: {name} was withdrawn: use {REPLACED_BY.get(plain) or REPLACED_BY[plain.lower()]}"
        elif plain.startswith("MOST_"):
            yield f"{path}:{line}: {name} was withdrawn: use MAX_{plain.removeprefix('MOST_')}"


def test_no_identifier_was_withdrawn() -> None:
    paths = [path for path in python_files(ROOT, FOLDERS) if path != Path(__file__)]
    assert paths, f"no module was found below {ROOT}: the check looked at nothing"
    found = [line for path in paths for line in withdrawn(path)]
    assert not found, "withdrawn names:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source", ["class Ensemble: ...", "x.hand_up()", "def grove(): ...", "f(spoil=1)", "MOST_X = 1"]
)
def test_a_withdrawn_name_is_found(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert len(list(withdrawn(path))) == 1, f"expected one finding in {source!r}, got {list(withdrawn(path))}"
