"""How large the repository is: the table of modules, lines, functions, imports and headers.

The groups:

core              `hicache/` without `testing/`, `tests/`, `cli/` and `suites/`, and without the storage backends:
                  the files and packages in `hicache/storage/` whose name begins as one of `BACKENDS`. What is left of
                  storage is its interface: base, keys, registry, options, answers, counters and wrappers.
core, no storage  the same without all of `hicache/storage/` and without `hicache/__init__.py`
                  (72 modules before the core was re-cut)
kit               `hicache/testing/`
conformance       `conformance/`
all               `hicache/` and the five suites

Only modules of more than two lines count. A function has the lines from `def` to its end, without decorators; methods
and functions inside functions count too. Imports: the import statements of a module, wherever they stand. Header: the
mean, over modules, of the share of lines up to the last import at the top. p90: nine of ten are no larger.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

SUITES = ("conformance", "properties", "distributed_tests", "accuracy", "benchmarks")
BESIDE_CORE = ("testing", "tests", "cli", "suites")
BACKENDS = (
    *("file", "slot", "memory", "hf3fs", "places", "paged", "vectors", "scope_folder", "page_io"),
    "gate",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """One row. `file`, `function`: lines, as median, p90 and largest. `imports`: per module. `header`: in percent."""

    modules: int
    lines: int
    file: tuple[float, int, int]
    functions: int
    function: tuple[float, int, int]
    imports: float
    header: float


def read_sizes(root: Path) -> Mapping[str, Mapping[str, Any]]:
    """A row for each group that there is."""
    paths = [path for folder in ("hicache", *SUITES) for path in sorted((root / folder).rglob("*.py"))]
    modules = {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}
    groups: dict[str, list[str]] = {}
    for path, text in modules.items():
        if text.count("\n") > 2:
            for group in _groups(path):
                groups.setdefault(group, []).append(text)
    return {name: asdict(measured(texts)) for name, texts in groups.items()}


def _groups(path: Path) -> Iterator[str]:
    yield "all"
    if path.parts[0] == "conformance":
        yield "conformance"
    elif path.parts[:2] == ("hicache", "testing"):
        yield "kit"
    elif path.parts[0] == "hicache" and path.parts[1] not in BESIDE_CORE:
        in_storage = path.parts[1] == "storage"
        if not in_storage or not path.parts[2].startswith(BACKENDS):
            yield "core"
        if not in_storage and path != Path("hicache/__init__.py"):
            yield "core, no storage"


def measured(texts: Sequence[str]) -> Sizes:
    """The row of these modules."""
    trees = [ast.parse(text) for text in texts]
    lines = [text.count("\n") for text in texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    lengths = [_length(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
    shares = [_header_lines(tree) / count for tree, count in zip(trees, lines, strict=True)]
    return Sizes(
        modules=len(texts),
        lines=sum(lines),
        file=_spread(lines),
        functions=len(lengths),
        function=_spread(lengths or [0]),
        imports=round(imports / len(texts), 1),
        header=round(100 * mean(shares), 1),
    )


def table(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """The rows as text, those of `now` below those of `before`."""
    titles = ("", "modules", "lines", "file median/p90/max", "function median/p90/max", "imports", "header")
    rows: list[tuple[str, ...]] = [titles]
    order = [name for name in ("core", "core, no storage", "kit", "conformance", "all") if name in before]
    for name in order:
        rows.append((name if now is None else f"{name}, before", *_cells(before[name])))
        if now is not None and name in now:
            rows.append((f"{name}, now", *_cells(now[name])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    padded = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    spreads = [" / ".join(f"{value:g}" for value in row[name]) for name in ("file", "function")]
    return str(row["modules"]), f"{row['lines']:,}", *spreads, f"{row['imports']:g}", f"{row['header']:g} %"


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _header_lines(tree: ast.Module) -> int:
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return max((node.end_lineno or 0 for node in imports), default=0)


def _spread(values: Sequence[int]) -> tuple[float, int, int]:
    ordered = sorted(values)
    return median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)], ordered[-1]
