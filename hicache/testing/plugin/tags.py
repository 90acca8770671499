"""Tags: the properties of a test that its reports carry, also from a worker process."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SUITES = ("conformance", "properties", "distributed_tests", "accuracy", "benchmarks")

CLAUSE_ID = re.compile(r"\b[A-Z]{2,}-\d+\b")
"""What looks like the id of a clause."""

_NAME = re.compile(r"[\w:+\-.\[\]\\/]+")
"""A name in the value of -k, which pytest compares with the names of tests."""

OPERATIONS = "hicache.operations"
"""The report property with the number of verbs that one driver of the test called."""

PROCESSES = "hicache.processes"
"""The report property with the number of processes that the process of the test started during the test."""

COLLECTIVES = "hicache.collectives"
"""The report property with the backends of the collectives that ranks of the test were in with each other."""

EVIDENCE = "hicache.evidence"
"""The report property with the evidence of a failure, as JSON."""

_SUITE = "hicache.suite"
_TEST = "hicache.test"
_CLAUSES = "hicache.clauses"
_CONFIGURATION = "hicache.configuration"
_REPLAY = "hicache.replay"
_LACKS = "hicache.lacks"
_SUBJECT = "hicache.subject"


@dataclass(frozen=True, slots=True)
class Tags:
    """`test`: the test's id relative to its suite's parent folder, the same wherever the suite is installed.

    `suite`, `clauses`: both are empty for a test of a project that has a driver and names no clause. `lacks`: names of
    capabilities that the test needs and the adapter does not declare. `subject`: the adapter, as `module:Class`, if the
    test or its class names it; empty for that of the run.
    """

    suite: str
    test: str
    clauses: tuple[str, ...]
    configuration: str
    replay: str
    lacks: tuple[str, ...]
    subject: str = ""

    def to_properties(self) -> list[tuple[str, object]]:
        """The tags as the user properties of a pytest item."""
        return [
            (_SUITE, self.suite),
            (_TEST, self.test),
            (_CLAUSES, " ".join(self.clauses)),
            (_CONFIGURATION, self.configuration),
            (_REPLAY, self.replay),
            (_LACKS, " ".join(self.lacks)),
            (_SUBJECT, self.subject),
        ]


def named_subject(adapter: type) -> tuple[str, object]:
    """The tag with the adapter that a test names, as a user property that replaces the one before."""
    return _SUBJECT, f"{adapter.__module__}:{adapter.__qualname__}"


def has_driver(item: pytest.Item) -> bool:
    """Whether a test has a driver beside the suites: by the fixture `hicache_driver`, or in a class with an adapter."""
    if "hicache_driver" in getattr(item, "fixturenames", ()):
        return True
    # Where no adapter was imported, no class names one.
    if "hicache.testing.adapter" not in sys.modules:
        return False
    from hicache.testing.plugin.selection import own_adapter

    return own_adapter(item) is not None


def read_tags(properties: Iterable[tuple[str, object]]) -> Tags | None:
    """The tags of a report, or None when its test belongs to no suite and has no driver."""
    found = {name: str(value) for name, value in properties}
    if _SUITE not in found:
        return None
    return Tags(
        suite=found[_SUITE],
        test=found[_TEST],
        clauses=tuple(found[_CLAUSES].split()),
        configuration=found[_CONFIGURATION],
        replay=found[_REPLAY],
        lacks=tuple(found[_LACKS].split()),
        subject=found[_SUBJECT],
    )


def keyword_problem(keyword: str) -> str:
    """Why pytest cannot read the value of its option -k; empty if it can."""
    words = _NAME.sub(lambda found: found[0] if found[0] in ("and", "or", "not") else "name", keyword)
    try:
        parts = {type(part) for part in ast.walk(ast.parse(words.strip() or "name", mode="eval"))}
    except SyntaxError as error:
        return f"{keyword!r} is not an expression: {error.msg}"
    others = parts - {ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Name, ast.Load}
    return f"{keyword!r} is not an expression of names with and, or, not and parentheses" if others else ""


@cache
def place_in_suite(path: Path, root: Path) -> Path:
    """A file's path that starts with its suite's folder; relative to `root` when it is in no suite.

    It is kept, for a file has many tests.
    """
    inside = path.relative_to(root) if path.is_relative_to(root) else path
    parts = inside.parts[:-1]
    folders = [index for index, part in enumerate(parts) if part in SUITES]
    return Path(*inside.parts[folders[-1] :]) if folders else inside


def suite_of(path: Path, root: Path) -> str:
    """The suite of a file; empty when it is in none."""
    folder = place_in_suite(path, root).parts[0]
    return folder if folder in SUITES else ""
