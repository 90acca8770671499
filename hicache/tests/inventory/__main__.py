"""Takes stock of a checkout, and compares it with an earlier inventory.

    python -m hicache.tests.inventory [--root DIR] [--json FILE] [--compare BEFORE.json] [--renames FILE]

Each suite is collected once, in a process of its own. Without `--compare` the counts and the table of sizes are
printed. With it, what is the same, moved, renamed, new or lost; the exit status is 1 when anything is lost, and 2 when
a suite cannot be collected. A module that needs a library which is not installed is left out. Lost is
also a clause that runs on fewer configurations, a test with fewer cases, a mutant that another test finds, and a state
machine that searches less.

`--renames`: a JSON object of old names and new ones, of tests, laws, invariants, mutants, defects and machines: what
the comparison cannot know by itself. A name is a bare one or a label such as `conformance/test_match.py::test_a_hit`;
the new one may be a list where an old test became several. What a clause runs on must still be kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hicache.tests.inventory import collection
from hicache.tests.inventory.comparison import Comparison
from hicache.tests.inventory.laws import read_invariants, read_laws
from hicache.tests.inventory.sizes import SUITES, read_sizes, table

ALL_SUITES = ("hicache/tests", *SUITES)
QUICK = "conformance --hicache-quick"
"""The name under which the configurations of a quick run are listed."""


def take_stock(root: Path, suites: tuple[str, ...] = ALL_SUITES) -> dict[str, Any]:
    """The inventory of a checkout. Raises RuntimeError, with pytest's words, when a suite cannot be collected."""
    runs: list[tuple[str, tuple[str, ...]]] = [(suite, ()) for suite in suites if (root / suite).is_dir()]
    runs += [(suite, ("--hicache-quick",)) for suite in suites if f"{suite} --hicache-quick" == QUICK]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(lambda run: collected(root, *run), runs))
    reports = {" ".join((suite, *options)): report for (suite, options), report in zip(runs, found, strict=True)}
    return assembled(reports, root)


def assembled(reports: dict[str, Any], root: Path) -> dict[str, Any]:
    """The inventory of a checkout, of what was found in its suites."""
    quick = reports.pop(QUICK, None)
    configurations = {suite: report["configurations"] for suite, report in reports.items()}
    profiles = {
        suite: report["profiles"] | {"as loaded": report["default profile"]} for suite, report in reports.items()
    }
    tests = [test for report in reports.values() for test in report["tests"]]
    return {
        "tests": tests,
        "clauses": by_clause(tests),
        "configurations": configurations | ({QUICK: quick["configurations"]} if quick else {}),
        **{
            kind: [one for report in reports.values() for one in report[kind]]
            for kind in ("mutants", "unseen", "defects")
        },
        "machines": machines([budget for report in reports.values() for budget in report.get("budgets", ())]),
        "profiles": profiles,
        "laws": read_laws(root),
        "invariants": read_invariants(root),
        "sizes": read_sizes(root),
    }


def collected(root: Path, suite: str, options: tuple[str, ...]) -> Any:
    """What a process of its own finds in a suite."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONPATH", "PYTEST_ADDOPTS")}
        fixed = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        done = subprocess.run(
            [sys.executable, collection.__file__, str(root), suite, str(out), "--basetemp", f"{folder}/base", *options],
            cwd=root,
            env=kept | fixed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode or not out.is_file():
            raise RuntimeError(f"{suite} in {root}: exit status {done.returncode}:\n{done.stdout[-4000:]}")
        return json.loads(out.read_text(encoding="utf-8"))


def by_clause(tests: list[dict[str, Any]]) -> dict[str, Any]:
    """For each clause how many tests run, and its test functions with the configurations of each."""
    clauses: dict[str, Any] = {}
    for test in tests:
        for clause in test["clauses"]:
            entry = clauses.setdefault(clause, {"items": 0, "tests": {}})
            entry["items"] += len(test["cases"])
            entry["tests"][f"{test['where']}::{test['name']}"] = sorted({*test["cases"].values()})
    return dict(sorted(clauses.items()))


def machines(budgets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The state machines, each with how many searches of which size its tests ask for under each profile."""
    entries: dict[str, dict[str, Any]] = {}
    for budget in budgets:
        parts = {kind: budget[kind] for kind in ("rules", "initializers", "invariants")}
        new = {"name": budget["machine"], "where": budget["where"], "clauses": [], **parts, "budgets": Counter[str]()}
        limits = " ".join(f"{name}={value}" for name, value in budget["limits"].items())
        entry = entries.setdefault(f"{budget['where']}::{budget['machine']}", new)
        entry["budgets"][f"{budget['profile']}: {limits}"] += 1
    return list(entries.values())


def summary(inventory: Mapping[str, Any]) -> str:
    """The counts and the sizes."""
    tests = inventory["tests"]
    cases = sum(len(test["cases"]) for test in tests)
    counts = [
        f"{len(tests)} test functions, {cases} tests, {len(inventory['clauses'])} clauses",
        *(
            f"{len(inventory[kind])} {kind}"
            for kind in ("laws", "invariants", "mutants", "unseen", "defects", "machines")
        ),
        *(f"{len(names)} configurations in {suite}" for suite, names in inventory["configurations"].items()),
    ]
    return "\n".join([*counts, "", table(inventory["sizes"])])


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hicache.tests.inventory", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout; default: the working directory")
    parser.add_argument("--json", type=Path, help="write the inventory there")
    parser.add_argument("--compare", type=Path, metavar="BEFORE.json", help="an earlier inventory")
    parser.add_argument("--renames", type=Path, help="JSON object of old names and new ones")
    arguments = parser.parse_args()
    renames = json.loads(arguments.renames.read_text(encoding="utf-8")) if arguments.renames else {}
    try:
        inventory = take_stock(arguments.root.resolve())
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps(inventory, indent=1, sort_keys=True, ensure_ascii=False), encoding="utf-8")
    if not arguments.compare:
        sys.stdout.write(f"{summary(inventory)}\n")
        return 0
    before = json.loads(arguments.compare.read_text(encoding="utf-8"))
    listed = {old: [new] if isinstance(new, str) else new for old, new in renames.items()}
    comparison = Comparison(before, inventory, listed)
    sys.stdout.writelines(f"{line}\n" for line in comparison.lines())
    return 1 if comparison.lost else 0


if __name__ == "__main__":
    sys.exit(main())
