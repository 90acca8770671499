"""The laws of the repository, read from its source: what raises a clause, and what the core checks of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLAUSE = re.compile(r"[A-Z]+-\d+")
LAW_OF_DOCSTRING = re.compile(r"([A-Z]+-\d+)\b.*:")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_laws(root: Path) -> list[dict[str, Any]]:
    """Functions below `hicache/` that raise a clause: pass its id to a call, or begin an error's message with it.

    Tests and mutants are left out. `clauses`: the ids, also those that the docstring begins with.
    """
    return [
        {"name": function.name, "where": where, "clauses": sorted(found)}
        for where, function in _functions(root)
        if (found := _raised(function) | (_of_docstring(function) if _raised(function) else set()))
    ]


def read_invariants(root: Path) -> list[dict[str, Any]]:
    """The sentences that the core requires of its own tree, in the modules whose name says invariants."""
    return [
        {"name": sentence, "where": where, "clauses": []}
        for where, function in _functions(root)
        if Path(where).stem == "invariants"
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and not _is_error(call)
        for argument in call.args
        if (sentence := _sentence(argument))
    ]


def _functions(root: Path) -> Iterator[tuple[str, Function]]:
    for path in sorted((root / "hicache").rglob("*.py")):
        where = path.relative_to(root)
        if where.parts[1] != "tests" and "mutants" not in where.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, Function):
                    yield where.as_posix(), node


def _raised(function: Function) -> set[str]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    words = [word for call in calls for argument in call.args if (word := _first_word(argument)) is not None]
    return {word for word in words if CLAUSE.fullmatch(word)}


def _first_word(node: ast.expr) -> str | None:
    """The id that a string consists of, or that comes before its first colon."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0] if isinstance(node.values[0], ast.Constant) else node
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.partition(":")[0]
    return None


def _of_docstring(function: Function) -> set[str]:
    begins = LAW_OF_DOCSTRING.match(ast.get_docstring(function) or "")
    return {begins[1]} if begins else set()


def _is_error(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id.endswith("Error")


def _sentence(node: ast.expr) -> str:
    """A string of several words, with `…` for the values in it, or nothing."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
    text = "".join(word for word in words if isinstance(word, str))
    return text if " " in text else ""
