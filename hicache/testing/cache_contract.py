"""CacheContract: the conformance tests of some clauses, as tests of a class in a project's own files."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import pytest

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.fixtures import drive, open_cache, parametrize
from hicache.testing.plugin.selection import configurations_of

SUITE = "hicache.suites.conformance"


class CacheContract:
    """A base class of tests: a subclass has the conformance tests of its clauses, for its adapter.

        class TestMyCache(CacheContract):
            adapter = MyAdapter
            clauses = ["MATCH-*", "LOCK-1"]

    `clauses`: ids, where * matches any text; a test is taken if it names one of them. `configurations`: what they run
    with, or None for those of the adapter, or the standard ones. The tests, and those that the class adds, take the
    parameters of the conformance suite: `driver`, `adapter`, `config` and `adapter_type`. Raises ConfigurationError
    when the class is made, for a pattern that matches no clause of the suite.
    """

    adapter: ClassVar[type[CacheAdapter]]
    configurations: ClassVar[Sequence[CacheConfig] | None] = None
    clauses: ClassVar[Sequence[str]] = ("*",)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # As static methods they keep the parameters that they have as functions.
        for name, test in _tests(cls.clauses).items():
            setattr(cls, name, staticmethod(test))
        for name, function in _fixtures().items():
            setattr(cls, name, pytest.fixture(staticmethod(function)))

    @pytest.fixture(name="adapter_type")
    def _adapter_type(self) -> type[CacheAdapter]:
        """The class under test, with randomly delayed transfers."""
        return self.adapter.delayed()

    @pytest.fixture(name="adapter")
    def _open(self, adapter_type: type[CacheAdapter], config: CacheConfig) -> Iterator[CacheAdapter]:
        """A new cache for the test, closed after it."""
        yield from open_cache(adapter_type, config)

    @pytest.fixture(name="driver")
    def _drive(self, adapter: CacheAdapter, config: CacheConfig, request: pytest.FixtureRequest) -> Iterator[Driver]:
        """A driver of that cache. If the test passes, everything is checked once more at its end."""
        scenario = importlib.import_module(f"{SUITE}.scenario").Scenario
        yield from drive(scenario(adapter, config), request)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a test over the configurations of the class that fit its clauses, or over all of them."""
        own = self.configurations
        parametrize(metafunc, self.adapter, configurations_of(self.adapter, quick=False) if own is None else own)


def _tests(patterns: Sequence[str]) -> dict[str, Callable[..., object]]:
    """The tests that name a clause of these patterns, by their names."""
    unknown = [pattern for pattern in patterns if not any(fnmatchcase(clause, pattern) for clause in CONTRACT)]
    if unknown:
        raise ConfigurationError(f"clauses: the contract has no {', '.join(unknown)}")
    return {
        name: test
        for module in _modules()
        for name, test in vars(module).items()
        if name.startswith("test_") and any(fnmatchcase(one, each) for one in _clauses(test) for each in patterns)
    }


def _clauses(test: Any) -> Sequence[str]:
    marks = getattr(test, "pytestmark", ())
    return next((mark.args[0].clauses for mark in marks if mark.name == "clause"), ())


def _fixtures() -> dict[str, Callable[..., Any]]:
    """The functions of the fixtures of the suite's modules, by their names."""
    kind = type(pytest.fixture(lambda: None))
    return {
        name: inspect.unwrap(member)
        for module in _modules()
        for name, member in vars(module).items()
        if isinstance(member, kind)
    }


@cache
def _modules() -> tuple[ModuleType, ...]:
    """The test modules of the conformance suite, without those about storage backends."""
    pytest.register_assert_rewrite(SUITE)
    folder = importlib.import_module(SUITE).__path__
    names = sorted(one.name for one in pkgutil.iter_modules(folder) if one.name.startswith("test_"))
    return tuple(importlib.import_module(f"{SUITE}.{name}") for name in names)
