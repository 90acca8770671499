"""What is checked of every file: the length of its functions, its docstring and its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
