"""Every import below a folder, read from the source: nothing is executed, nothing hides in a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module imports. `importer` and `target` are absolute and dotted; `path` is below the root."""

    importer: str
    path: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: imports {self.target}"


def within(module: str, package: str) -> bool:
    """Whether a dotted name is the package or lies below it."""
    return module == package or module.startswith(f"{package}.")


def read_imports(root: Path, folders: tuple[str, ...]) -> Iterator[Import]:
    """The imports of each module in these folders of `root`; a folder that does not exist has none."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield from _imports_of(path, path.relative_to(root))


def _imports_of(path: Path, relative: Path) -> Iterator[Import]:
    importer = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    package = ".".join(relative.parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in _targets(node, package):
                yield Import(importer, relative.as_posix(), node.lineno, target)


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    source = _absolute(node, package)
    return [f"{source}.{alias.name}" for alias in node.names]


def _absolute(node: ast.ImportFrom, package: str) -> str:
    parents = package.split(".")
    anchor = parents[: len(parents) - node.level + 1] if node.level else []
    return ".".join([*anchor, *filter(None, [node.module])])
