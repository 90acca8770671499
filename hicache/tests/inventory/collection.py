"""Collects one suite in a process of its own and writes what it holds as JSON.

    python collection.py ROOT SUITE OUT [PYTEST OPTION ...]

The file needs nothing of the project, so that it describes any of its states: it runs by path, with the checkout ROOT
as the working directory. It recognizes objects by their attributes, not by their modules, because modules move.

The state machines are called too, with a runner that notes their settings instead of searching: the budget of a machine
is what its tests ask Hypothesis for, under each profile.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

CLAUSE = re.compile(r"\b[A-Z]+-\d+\b")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
SUITES = ("conformance", "properties", "distributed_tests", "accuracy", "benchmarks")
DEFECTIVE = ("hicache.tests", "hicache.tests.proof.mutants")
"""Packages of classes that are broken on purpose."""

MUTANT = ("slug", "source", "clauses", "adapter", "test")
UNSEEN = ("source", "defect", "reason", "test")


class Collector:
    """The pytest plugin. `report`: what was found, ready for JSON."""

    def __init__(self, root: Path) -> None:
        self.report: dict[str, Any] = {}
        self._root = root
        self._searches: list[tuple[type[Any], Any]] = []
        self._loaded: dict[str, str] = {}
        self._runner = self._note

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Replace the runner of state machines before the modules of tests import it."""
        # No earlier: pytest complains of a plugin, here Hypothesis, that is imported before it is registered.
        from hypothesis import stateful

        stateful.run_state_machine_as_test = self._runner  # type: ignore[assignment]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Note the settings in which the modules of a suite are imported."""
        from hypothesis import settings

        report = yield
        if isinstance(collector, pytest.Module):
            self._loaded = limits(settings())
        return report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Describe all tests; leave those to run that start a state machine."""
        from hypothesis import settings

        functions = [item for item in items if isinstance(item, pytest.Function)]
        self.report = {
            "tests": described(functions, self._root),
            "configurations": {name: fields(value) for item in functions for name, value in configurations(item)},
            "mutants": rows(functions, MUTANT, self._root),
            "unseen": rows(functions, UNSEEN, self._root),
            "defects": defects(functions, self._root),
            "profiles": {label: limits(settings.get_profile(name)) for label, name in profiles().items()},
            "default profile": self._loaded or limits(settings()),
        }
        items[:] = [item for item in functions if any(reaches(one, self._runner, set()) for one in called_by(item))]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        """Call a test that starts a state machine under each profile."""
        from hypothesis import settings

        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        for label, profile in profiles().items():
            settings.load_profile(profile)
            # The search does not run, so a test that expects something of it fails or skips: only its settings count.
            with suppress(Exception, pytest.skip.Exception):
                pyfuncitem.obj(**arguments)
            self._keep_budgets(label)
        return True

    def pytest_sessionfinish(self) -> None:
        """Keep the searches of unittest's test cases, which pytest calls in another way."""
        self._keep_budgets("as loaded")

    def _keep_budgets(self, profile: str) -> None:
        budgets = [{"profile": profile, **budget(machine, found, self._root)} for machine, found in self._searches]
        self.report.setdefault("budgets", []).extend(budgets)
        self._searches.clear()

    def _note(self, machine: type[Any], settings: Any = None, **_: object) -> None:
        """Note a search. Stands in for `hypothesis.stateful.run_state_machine_as_test`."""
        self._searches.append((machine, settings or machine.TestCase.settings))


def budget(machine: type[Any], settings: Any, root: Path) -> dict[str, Any]:
    """What one search tries: the machine under its name in the source, its rules, and its settings."""
    from hypothesis import stateful

    named = next(one for one in machine.__mro__ if getattr(sys.modules[one.__module__], one.__name__, None) is one)
    markers = {
        "rules": stateful.RULE_MARKER,
        "initializers": stateful.INITIALIZE_RULE_MARKER,
        "invariants": stateful.INVARIANT_MARKER,
    }
    methods = inspect.getmembers(machine)
    return {
        "machine": named.__name__,
        "where": place(named, root),
        **{kind: [name for name, method in methods if hasattr(method, mark)] for kind, mark in markers.items()},
        "limits": limits(settings),
    }


def described(items: Iterable[pytest.Function], root: Path) -> list[dict[str, Any]]:
    """One entry for each test function: its clauses, and each case with the configuration that it runs on."""
    entries: dict[str, dict[str, Any]] = {}
    for item in items:
        name = item.nodeid.partition("::")[2].partition("[")[0]
        where = item.path.relative_to(root).as_posix()
        mark = item.get_closest_marker("clause")
        clauses = [] if mark is None else sorted(mark.args[0].clauses)
        new = {"name": name, "where": where, "clauses": clauses, "cases": {}, "skipped": 0}
        entry = entries.setdefault(f"{where}::{name}", new)
        case = item.callspec.id if hasattr(item, "callspec") else ""
        entry["cases"][case] = next((name for name, _ in configurations(item)), "")
        entry["skipped"] += is_skipped(item)
        explicit = getattr(item.function, "_hypothesis_internal_use_settings", None)
        if explicit is not None:
            entry["limits"] = limits(explicit)
    return list(entries.values())


def is_skipped(item: pytest.Item) -> bool:
    """Whether a mark skips the test here."""
    return item.get_closest_marker("skip") is not None or any(
        bool(mark.args and mark.args[0]) for mark in item.iter_markers("skipif")
    )


def parameters(item: pytest.Function) -> Mapping[str, Any]:
    """The values of a test's parameters."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def configurations(item: pytest.Function) -> Iterator[tuple[str, object]]:
    """The configuration, backend or mesh that a test runs on, with its name in the reports."""
    values = parameters(item)
    config, backend, mesh = (values.get(name) for name in ("config", "backend", "mesh"))
    if config is not None and hasattr(config, "name"):
        yield config.name, config
    elif backend is not None and hasattr(backend, "name"):
        yield f"storage/{backend.name}", backend
    elif mesh is not None and hasattr(mesh, "name"):
        yield f"ranks/{mesh.name}/{values.get('transport', '')}", mesh


def fields(value: object, prefix: str = "") -> dict[str, str]:
    """The fields of a data class, those of the data classes in it included, by dotted name."""
    if not dataclasses.is_dataclass(value):
        return {prefix: ADDRESS.sub("", str(value.value if isinstance(value, Enum) else value))}
    found: dict[str, str] = {}
    for field in dataclasses.fields(value):
        found |= fields(getattr(value, field.name), f"{prefix}.{field.name}".lstrip("."))
    return found


def rows(items: Iterable[pytest.Function], attributes: Iterable[str], root: Path) -> list[dict[str, Any]]:
    """The rows with these attributes that tests are parametrized with: each a defect, and the test that has to fail."""
    values = [value for item in items for value in parameters(item).values() if not isinstance(value, type)]
    entries = {
        getattr(row, "slug", row.source): {
            "where": row.where
            if hasattr(row, "where")
            else place(row.adapter, root)
            if hasattr(row, "adapter")
            else "",
            "source": row.source,
            "clauses": sorted(getattr(row, "clauses", ())),
            "killers": [in_suite(row.test, root)],
            "told": next(getattr(row, name) for name in ("message", "told", "defect") if hasattr(row, name)),
        }
        for row in values
        if all(hasattr(row, name) for name in attributes)
    }
    return [{"name": name, **entry} for name, entry in entries.items()]


def in_suite(test: str, root: Path) -> str:
    """The path of a test from the root on; a row may give it from its suite on."""
    path, _, name = test.partition("[")[0].partition("::")
    files = [folder / path for folder in (root, *(root / suite for suite in SUITES)) if (folder / path).is_file()]
    found = next((file for file in files if f"def {name}(" in file.read_text(encoding="utf-8")), root / path)
    return found.relative_to(root).as_posix() + test.removeprefix(path)


def defects(items: Iterable[pytest.Function], root: Path) -> list[dict[str, Any]]:
    """Classes that are defined in tests or mutants and that a test takes as a parameter or uses by name.

    Each with its tests, and with the clauses that the parameters of those tests name.
    """
    entries: dict[str, dict[str, Any]] = {}
    for item in items:
        values = parameters(item).values()
        words = {clause for value in values if isinstance(value, str) for clause in CLAUSE.findall(value)}
        used = [value for value in (*values, *used_globals(item.function)) if is_double(value)]
        for one in used:
            where = place(one, root)
            new = {"name": one.__qualname__, "where": where, "killers": defaultdict(set)}
            entry = entries.setdefault(f"{where}::{one.__qualname__}", new)
            entry["killers"][item.nodeid.partition("[")[0]] |= words
    return [
        entry
        | {
            "clauses": sorted(set().union(*entry["killers"].values())),
            "killers": {test: sorted(words) for test, words in entry["killers"].items()},
        }
        for entry in entries.values()
    ]


def is_double(value: object) -> bool:
    """Whether a value is a class of the tests that replaces one of the project's."""
    if not isinstance(value, type) or not value.__module__.startswith(DEFECTIVE):
        return False
    replaced = [base for base in value.__mro__[1:] if base.__module__.startswith("hicache.")]
    return any(not base.__module__.startswith(DEFECTIVE) for base in replaced)


def used_globals(function: Any) -> Iterator[object]:
    """The globals that a function names, also in functions inside it."""
    function = inspect.unwrap(function)
    if isinstance(function, FunctionType):
        for name in names_in(function.__code__):
            yield function.__globals__.get(name)


def names_in(code: CodeType) -> Iterator[str]:
    """The names that code looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def called_by(item: pytest.Function) -> Iterator[Any]:
    """The function of a test, and those of its fixtures."""
    yield item.function
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from (one.func for one in definitions)


def reaches(function: Any, target: object, seen: set[object]) -> bool:
    """Whether a function names the target, or a function or class of its own suite that reaches it."""
    seen.add(function)
    suite = function.__module__.partition(".")[0]
    for value in used_globals(function):
        if value is target:
            return True
        for one in vars(value).values() if isinstance(value, type) else (value,):
            is_ours = isinstance(one, FunctionType) and one.__module__.partition(".")[0] == suite
            if is_ours and one not in seen and reaches(one, target, seen):
                return True
    return False


def place(value: Any, root: Path) -> str:
    """The file that defines a class, from the root on."""
    path = Path(str(sys.modules[value.__module__].__file__)).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def profiles() -> dict[str, str]:
    """The registered profiles by their labels. The suites' had no prefix once, and `ci` was theirs, not Hypothesis'."""
    from hypothesis import settings

    return {name.removeprefix("hicache-"): name for name in sorted(settings._profiles)}


def limits(of: Any) -> dict[str, str]:
    """The settings that say how much Hypothesis tries."""
    names = ("max_examples", "stateful_step_count", "deadline", "derandomize")
    return {name: str(getattr(of, name)) for name in names} | {"phases": " ".join(phase.name for phase in of.phases)}


def main(root: Path, suite: str, out: Path, options: list[str]) -> int:
    """Collect; returns pytest's exit status when nothing was collected, else 0."""
    sys.path[0] = str(root)
    collector = Collector(root)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(root), suite, *options]
    code = pytest.main(arguments, plugins=[collector])
    import hicache

    if not Path(hicache.__file__).resolve().is_relative_to(root):
        sys.stdout.write(f"{suite}: hicache was imported from {hicache.__file__}, which is not below {root}\n")
        return 2
    # A test that expects something of the search fails, and without a search all tests are deselected.
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    out.write_text(json.dumps(collector.report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]))
