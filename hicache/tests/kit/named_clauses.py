"""The gate: which clauses the test modules of a suite name, and which clauses of some tiers have no test."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterator
from typing import Any

from hicache.testing.contract import CONTRACT


def clauses_missing_in(package: str, tiers: Collection[str]) -> tuple[str, ...]:
    """The clauses of these tiers that no test module of a package names, in order."""
    tested = set(clauses_named_in(package))
    wanted = (clause for clause in CONTRACT.values() if clause.tier in tiers)
    return tuple(clause.id for clause in wanted if clause.id not in tested)


def clauses_named_in(package: str) -> Iterator[str]:
    """The clauses that the test modules of a package and its subpackages name, with repetitions."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if module.name.rpartition(".")[2].startswith("test_"):
            yield from _named_in(importlib.import_module(module.name))


def _named_in(holder: Any) -> Iterator[str]:
    for name, member in vars(holder).items():
        if not name.lower().startswith("test"):
            continue
        for mark in getattr(member, "pytestmark", ()):
            if mark.name == "clause":
                yield from mark.args[0].clauses
        if isinstance(member, type):
            yield from _named_in(member)
