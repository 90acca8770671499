"""What each departure of an adapter switches off, read from the source, for the reference."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from hicache.tests.inventory.laws import CLAUSE, Function

LAWS = "hicache/testing/laws"
"""What is checked after each verb."""

PARTS = re.compile(rf"(?:^|; )({CLAUSE.pattern}): ")
IN_BRACKETS = re.compile(rf" ?\(({CLAUSE.pattern})\)")

READERS = ("hicache/testing/driving", "properties")
"""Where else the departures of an adapter are asked for."""

HEADER = "| clause | laws that are not checked after verbs | comparisons that are left out |\n|---|---|---|\n"


def departures_table(root: Path) -> str:
    """One row for each clause whose departure switches something off, in Markdown."""
    laws, comparisons = switched_laws(root), switched_comparisons(root)
    rows = [
        f"| {clause} | {'; '.join(laws.get(clause, []))} | {', '.join(comparisons.get(clause, []))} |\n"
        for clause in sorted({*laws, *comparisons}, key=_in_order)
    ]
    return HEADER + "".join(rows)


def switched_laws(root: Path) -> Mapping[str, list[str]]:
    """By clause, the laws that are not checked after a departure from it, as their docstrings say them."""
    found = defaultdict(list)
    for law in guarded_laws(root):
        summary = (ast.get_docstring(law) or "").partition("\n")[0].rstrip(".")
        _, *parts = PARTS.split(summary)
        for clause, sentence in zip(parts[::2], parts[1::2], strict=True):
            for one in (clause, *IN_BRACKETS.findall(sentence)):
                found[one].append(IN_BRACKETS.sub("", sentence))
    return found


def guarded_laws(root: Path) -> list[Function]:
    """The functions of the laws that are called, at any depth, where an error is compared with the departures."""
    laws = {(where, one.name): one for where, _, one in functions(root, (LAWS,))}
    reached = [place for place, one in laws.items() if any(_questions(node) for node in ast.walk(one))]
    for where, name in reached:  # grows
        named = {_name(node) for node in ast.walk(laws[where, name]) if isinstance(node, ast.expr)}
        own = [place for place in laws if place[1] in named and place[0] == where]
        other = [place for place in laws if place[1] in named - {place[1] for place in own}]
        reached += [place for place in (*own, *other) if place not in reached]
    return [law for place, law in laws.items() if place in reached]


def switched_comparisons(root: Path) -> Mapping[str, list[str]]:
    """By clause, the functions of drivers and machines that ask whether the adapter departs from it."""
    found = defaultdict(list)
    for where, owner, function in functions(root, READERS):
        for clause in sorted(_asked(function)):
            name = f"{owner}.{function.name}" if owner else function.name
            found[clause].append(f"[`{name}`](../../{where})")
    return found


def functions(root: Path, places: tuple[str, ...]) -> Iterator[tuple[str, str, Function]]:
    """Every function of these files and folders: its file, its class or an empty text, and itself."""
    for path in sorted(file for place in places for file in _modules(root / place)):
        module = ast.parse(path.read_text(encoding="utf-8"))
        classes = [one for one in ast.walk(module) if isinstance(one, ast.ClassDef)]
        owners = {id(one): owner.name for owner in classes for one in owner.body}
        for one in ast.walk(module):
            if isinstance(one, Function):
                yield path.relative_to(root).as_posix(), owners.get(id(one), ""), one


def _modules(place: Path) -> list[Path]:
    return list(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []


def _asked(function: Function) -> set[str]:
    """The clauses in `departs(…)` and in `… in departures` or `… in clauses_not_checked(…)`, also by a local name."""
    texts = [text for node in ast.walk(function) for one in _questions(node) for text in _texts(one, function)]
    return {text for text in texts if CLAUSE.fullmatch(text)}


def _questions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call) and _name(node.func) == "departs":
        return node.args
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        asked = node.comparators[0]
        name = _name(asked.func if isinstance(asked, ast.Call) else asked)
        return [node.left] if name in {"departures", "clauses_not_checked"} else []
    return []


def _texts(node: ast.expr, function: Function) -> Iterator[str]:
    """The strings in an expression, and in what is assigned to the names in it."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    assigned = [
        one.value
        for one in ast.walk(function)
        if isinstance(one, ast.Assign) and names.intersection(map(_name, one.targets))
    ]
    for one in (each for expression in (node, *assigned) for each in ast.walk(expression)):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _in_order(clause: str) -> tuple[str, int]:
    section, _, number = clause.partition("-")
    return section, int(number)
