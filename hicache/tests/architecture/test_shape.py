"""What is checked of every file: short functions, a docstring, no name that is empty, withdrawn, or of two classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache.testing.plugin.tags import SUITES

ROOT = Path(__file__).parents[3]
FOLDERS = ("hicache", *SUITES)
WITH_EXAMPLES = (*FOLDERS, "examples")

VERIFIED = tuple(suite for suite in SUITES if suite != "benchmarks")
"""The suites that `hicache verify` runs."""

FUNCTION_LINES = 50
EMPTY_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})


def python_files(root: Path, folders: tuple[str, ...]) -> list[Path]:
    """Every module in these folders of `root`; a folder that does not exist has none."""
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def misshapen(path: Path) -> Iterator[str]:
    """One line for each rule that the file breaks."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield f"{path}: no docstring that says what the module is"
    if path.stem in EMPTY_NAMES or path.parent.name in EMPTY_NAMES:
        yield f"{path}: the name says nothing about what is inside"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}"


DOCSTRING = '"""A module."""\n'


def silent_asserts(path: Path) -> list[str]:
    """The assertions of a file that have no message."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [f"{path}:{one.lineno}: no message" for one in nodes if isinstance(one, ast.Assert) and one.msg is None]


MISSHAPEN = {
    "a long function": ("f.py", DOCSTRING + "def f():\n" + "    x = 1\n" * 50, ":2: f has 51 lines, at most 50"),
    "a long method": ("c.py", DOCSTRING + "class C:\n  def m(self):\n" + "    x = 1\n" * 50, ":3: m has 51 lines"),
    "no docstring": ("bare.py", "x = 1\n", "no docstring"),
    "an empty name": ("utils.py", DOCSTRING, "the name says nothing"),
    "an empty folder name": ("common/node.py", DOCSTRING, "the name says nothing"),
}


def test_every_file_is_in_shape() -> None:
    paths = python_files(ROOT, FOLDERS)
    assert paths, f"no module was found below {ROOT}: the check looked at nothing"
    found = [line for path in paths for line in misshapen(path)]
    assert not found, "files out of shape:\n" + "\n".join(found)


def test_every_assertion_of_the_tests_has_a_message() -> None:
    # `hicache verify` and tox run them with --assert=plain: pytest explains no assertion that has none.
    paths = python_files(ROOT, (*VERIFIED, "hicache/testing", "hicache/tests"))
    assert paths, f"no module was found below {ROOT}: the check looked at nothing"
    found = [line for path in paths for line in silent_asserts(path)]
    assert not found, "assertions without a message:\n" + "\n".join(found)


def test_an_assertion_without_a_message_is_found(tmp_path: Path) -> None:
    path = tmp_path / "suite.py"
    path.write_text('assert True\nassert 1 == 1, "why"\n')
    found, expected = silent_asserts(path), [f"{path}:1: no message"]
    assert found == expected, f"expected {expected}, got {found}"


@pytest.mark.parametrize(("name", "source", "expected"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_a_file_out_of_shape_is_named(tmp_path: Path, name: str, source: str, expected: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    found = list(misshapen(path))
    assert len(found) == 1, f"expected one finding, got {found}"
    assert str(path) in found[0], f"expected the path {path} in {found[0]!r}"
    assert expected in found[0], f"expected {expected!r} in {found[0]!r}"


def test_a_long_file_passes(tmp_path: Path) -> None:
    path = tmp_path / "node.py"
    path.write_text(DOCSTRING + "def f():\n" + "    x = 1\n" * 49 + "y = 1\n" * 2000, encoding="utf-8")
    assert not list(misshapen(path)), "a file may have any length, and a function 50 lines"


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
    paths = python_files(ROOT, WITH_EXAMPLES)
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


ENDING = ("abandon", "abort", "discard", "dispose", "forget", "give", "kill", "quit", "terminate", "undo", "withhold")
"""How no method that ends a thing is called: docs/architecture.md has the table of the verbs that are used."""

NOT_THE_CACHE = ("testing", "tests", "suites", "cli", "engines", "integrations")

INTERFACE = frozenset(
    {
        *("hicache/cache.py: abandon", "hicache/cache.py: abort_prefetch", "hicache/request.py: abort"),
        *("hicache/parallel/communicators.py: abort", "hicache/parallel/communicators.py: _abort"),
    }
)
"""Verbs of the interface, and of NCCL."""


def ending_verbs(root: Path) -> set[str]:
    """The functions of the cache that end a thing by another verb than those of the table."""
    paths = [path.relative_to(root) for path in python_files(root, ("hicache",))]
    return {
        f"{path.as_posix()}: {node.name}"
        for path in paths
        if path.parts[1] not in NOT_THE_CACHE
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").split("_")[0] in ENDING
    }


def test_a_thing_ends_by_a_verb_of_the_table() -> None:
    found = ending_verbs(ROOT)
    assert found == INTERFACE, f"other verbs: {sorted(found - INTERFACE)}; gone: {sorted(INTERFACE - found)}"


def test_another_verb_is_found(tmp_path: Path) -> None:
    for folder in ("tiers", "tests"):
        path = tmp_path / "hicache" / folder / "a.py"
        path.parent.mkdir(parents=True)
        path.write_text("class A:\n    def _forget_all(self): ...\n    def forgetful(self): ...", encoding="utf-8")
    assert ending_verbs(tmp_path) == {"hicache/tiers/a.py: _forget_all"}, f"got {ending_verbs(tmp_path)}"


SAME_NAME = {
    "MyAdapter": "the skeletons of `hicache init-adapter`, each in a file of its own",
    "Group": "the ranks that agree, and the layers that share a table, which the skeleton for requests names",
    "Namespace": "the keys' and that of files in 3FS",
    "Place": "where a backend under test keeps its objects, and the folder of a slotfile",
    "Tier": "the cache's and that of vLLM",
    "Transfer": "of a node between tiers, and of a NIXL agent",
    "StorageStats": "a backend's own and those that a cache counts",
    "Gate": "holds calls back: one inside a backend, one below SGLang",
    "Move": "of pages between tiers, and of bytes in a file",
    "MiniSglang": "the adapter and what it imports",
    "Page": "of a file of pages, and of a reply of Redis",
    "Reserved": "pages that a writer may fill, in each backend that has a catalogue",
    "Running": "requests of vLLM, in an adapter of its cache and in one of its connector",
}
"""The public classes that may have a name in common, and what they are. Give a new class another name."""


def class_modules(root: Path) -> dict[str, list[str]]:
    """The modules of the package that define each public class, by its name. Those of its tests do not count."""
    found: dict[str, list[str]] = {}
    for path in python_files(root, ("hicache",)):
        if "tests" not in path.relative_to(root).parts:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(path.relative_to(root).as_posix())
    return found


def test_no_public_class_has_the_name_of_another() -> None:
    several = {name: modules for name, modules in class_modules(ROOT).items() if len(modules) > 1}
    assert several.keys() == SAME_NAME.keys(), (
        f"names in more than one module: { ({name: several[name] for name in several.keys() - SAME_NAME.keys()}) }; "
        f"now in one module: {sorted(SAME_NAME.keys() - several.keys())}"
    )


def test_classes_of_one_name_are_found(tmp_path: Path) -> None:
    for name, text in (
        ("a", "class A: ...\nclass _B: ..."),
        ("b", "class A: ...\nclass C: ..."),
        ("tests/c", "class C: ..."),
    ):
        path = tmp_path / "hicache" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = class_modules(tmp_path)
    assert found == {"A": ["hicache/a.py", "hicache/b.py"], "C": ["hicache/b.py"]}, f"got {found}"
