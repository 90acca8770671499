"""Source: the names that the modules of an engine define, read from their text and not imported."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"(?P<owner>\w+)(?:\.(?P<member>\w+))?(?P<call>\((?P<not>!?)(?P<parameter>\w*)\))?")
"""A name of an interface, see `interfaces.toml`."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a name is defined. `node`: None for a name from outside of the source, which is taken to have all."""

    module: str
    node: ast.AST | None


class Source:
    """The modules below a folder, which are parsed and not imported."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}
        self._fields: dict[ast.ClassDef, frozenset[str]] = {}
        self._answers: dict[tuple[str, str], str] = {}

    def lacking(self, names: Iterable[tuple[str, str]]) -> Iterator[str]:
        """What the source lacks of these names, in words."""
        for name in sorted(names):
            if name not in self._answers:
                self._answers[name] = self._lacks(*name)
            if self._answers[name]:
                yield self._answers[name]

    def _lacks(self, module: str, name: str) -> str:
        if self._tree(module) is None or not name:
            return "" if self._tree(module) else f"there is no module {module}"
        found = NAME.fullmatch(name)
        assert found is not None, f"{module}: {name} is not a name of an interface"
        owner, member = found["owner"], found["member"]
        defined = self._defined(module, owner)
        if defined is None:
            return f"{module} has no {owner}"
        if member and (defined := self._member(defined, member)) is None:
            return f"{owner} has no {'field' if found['call'] is None else 'method'} {member}"
        return self._lacks_parameter(defined, name.partition("(")[0], found) if found["parameter"] else ""

    def _lacks_parameter(self, callee: Definition, called: str, found: re.Match[str]) -> str:
        parameter = found["parameter"]
        if found["not"]:
            return f"{called} requires the parameter {parameter}" if self._requires(callee, parameter) else ""
        return "" if self._takes(callee, parameter) else f"{called} has no parameter {parameter}"

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            place = self._root.joinpath(*module.split("."))
            file = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
            try:
                self._trees[module] = None if file is None else ast.parse(file.read_bytes())
            except SyntaxError as error:
                python = sys.version.split()[0]
                raise ImportError(f"{file}:{error.lineno} is not for Python {python}: {error.msg}") from error
        return self._trees[module]

    def _defined(self, module: str, name: str) -> Definition | None:
        """Where a module has a name from, or None."""
        tree = self._tree(module)
        for node in () if tree is None else _statements(tree.body):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        source = self._imported(module, node)
                        return (
                            Definition(source, None)
                            if self._tree(source) is None
                            else self._defined(source, alias.name)
                        )
            elif name in _bound(node):
                return Definition(module, node)
        return None

    def _imported(self, module: str, node: ast.ImportFrom) -> str:
        """The module that a module imports from."""
        if not node.level:
            return node.module or ""
        is_package = self._root.joinpath(*module.split("."), "__init__.py").is_file()
        parts = module.split(".")
        base = parts[: len(parts) - node.level + is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def _member(self, owner: Definition, name: str) -> Definition | None:
        """Where a class, or one of those that it derives from, has a method or a field."""
        if not isinstance(owner.node, ast.ClassDef):
            return owner if owner.node is None else None
        for node in _statements(owner.node.body):
            if name in _bound(node):
                return Definition(owner.module, node)
        if owner.node not in self._fields:
            self._fields[owner.node] = frozenset(filter(None, map(_own_field, ast.walk(owner.node))))
        if name in self._fields[owner.node]:
            return Definition(owner.module, None)
        bases = [self._defined(owner.module, base.id) for base in owner.node.bases if isinstance(base, ast.Name)]
        inside = (self._member(base, name) for base in bases if base is not None and base.node is not None)
        return next(filter(None, inside), None)

    def _takes(self, callee: Definition, parameter: str) -> bool:
        """Whether a function or a class is called with a parameter of this name."""
        function = self._function(callee)
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return function is None or self._member(callee, parameter) is not None
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return arguments.kwarg is not None or any(one.arg == parameter for one in named)

    def _requires(self, callee: Definition, parameter: str) -> bool:
        """Whether a function or a class with `__init__` has a parameter of this name without a default."""
        function = self._function(callee)
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        positional = [*function.args.posonlyargs, *function.args.args]
        required = positional[: len(positional) - len(function.args.defaults)]
        pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        return parameter in {one.arg for one in [*required, *(name for name, default in pairs if default is None)]}

    def _function(self, callee: Definition) -> ast.AST | None:
        """What is called: of a class `__init__`, or the class itself where it has none."""
        opened = self._member(callee, "__init__") if isinstance(callee.node, ast.ClassDef) else None
        return callee.node if opened is None else opened.node


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or a class, with those in `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse, *(node.finalbody if isinstance(node, ast.Try) else [])])


def _bound(node: ast.stmt) -> Iterable[str]:
    """The names that a statement binds, without those that it imports from a module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for one in targets if isinstance(one, ast.Name)]


def _own_field(node: ast.AST) -> str:
    """The name of the field that a node of a method assigns to `self`, or empty."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
        return ""
    return node.attr if isinstance(node.value, ast.Name) and node.value.id == "self" else ""
