"""docs/modules.md is the map of the house: every module of the package and the suites, with its own first line."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAP = ROOT / "docs" / "modules.md"
FOLDERS = ("hicache", "conformance", "properties", "distributed_tests", "accuracy", "benchmarks")


def first_line(path: Path) -> str:
    """The first line of a module's docstring, or nothing."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n", maxsplit=1)[0]


def expected_rows() -> list[str]:
    """One row of the table for each module that says what it is, tests of our own aside."""
    modules = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    outside = [path for path in modules if path.parts[:2] != ("hicache", "tests")]
    return [f"| `{path}` | {line} |" for path in outside if (line := first_line(ROOT / path))]


def test_the_map_shows_every_module_as_it_describes_itself() -> None:
    rows = set(MAP.read_text(encoding="utf-8").splitlines())
    expected = expected_rows()
    assert len(expected) > 50, (
        f"only {len(expected)} modules were found below {ROOT}: the check looks in the wrong place"
    )
    missing = [row for row in expected if row not in rows]
    assert not missing, f"{MAP} lacks these rows, or says something else:\n" + "\n".join(missing)


def test_the_map_shows_nothing_that_is_gone() -> None:
    shown = [row.split("`")[1] for row in MAP.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    gone = [path for path in shown if not (ROOT / path).is_file()]
    assert not gone, f"{MAP} shows modules that do not exist: {gone}"
