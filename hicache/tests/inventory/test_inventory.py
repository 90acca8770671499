"""The inventory finds what there is, and its comparison tells what moved from what is lost."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import stateful

from hicache.testing.plugin.tags import SUITES
from hicache.tests.inventory.__main__ import assembled, collected, main
from hicache.tests.inventory.collection import Collector
from hicache.tests.inventory.comparison import Comparison, label
from hicache.tests.inventory.sizes import read_sizes
from hicache.tests.proof.mutant_table import MUTANTS, Mutant
from hicache.tests.proof.mutants.accuracy.transfers import ROWS as ACCURACY_ROWS
from hicache.tests.proof.mutants.rows import ROWS, Row

ROOT = Path(__file__).parents[3]

MATCHES = """
import pytest
from hicache.testing.contract import clause

@clause("MATCH-1", "MATCH-2")
@pytest.mark.parametrize("pages", [1, 2])
def test_a_hit_is_whole_pages(pages): ...

@clause("LOCK-3")
def test_nobody_evicts_what_is_locked(): ...
"""

MACHINE = """
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

class Machine(RuleBasedStateMachine):
    @rule()
    def put(self): ...

class Search:
    def __call__(self, machine, share):
        run_state_machine_as_test(type("Bound", (machine,), {}), settings=settings(max_examples=50 // share))

@pytest.fixture
def search():
    return Search()

def test_any_order(search):
    search(Machine, 5)
    assert False, "the search has run, which it must not"
"""

LAW = '''
def check_depth(node):
    """LOCK-6: no count is below zero."""
    require("LOCK-6", node.locks >= 0)

def check_path(node):
    raise InvariantError(f"LOCK-1: {node}")
'''

Take = Callable[[dict[str, str]], dict[str, Any]]


@pytest.fixture
def take(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Take:
    """Take stock of a checkout that is made of these files."""
    monkeypatch.setattr(stateful, "run_state_machine_as_test", stateful.run_state_machine_as_test)
    # Another test of this process may have imported the suites, whose names the modules of a checkout have too.
    for name in [name for name in sys.modules if name.partition(".")[0] in SUITES]:
        monkeypatch.delitem(sys.modules, name)

    def stock(files: dict[str, str]) -> dict[str, Any]:
        root = tmp_path_factory.mktemp("checkout").resolve()
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        collector = Collector(root)
        arguments = ["--rootdir", str(root), "--import-mode", "importlib", "-p", "no:cacheprovider", str(root)]
        pytester.inline_run(*arguments, plugins=[collector])
        return assembled({"conformance": collector.report}, root)

    return stock


@pytest.fixture
def before(take: Take) -> dict[str, Any]:
    """A small checkout with tests, a machine and laws."""
    return take({"conformance/test_match.py": MATCHES, "properties/test_any.py": MACHINE, "hicache/laws.py": LAW})


def test_the_rows_of_mutants_are_found_with_the_tests_that_find_them() -> None:
    rows = {row["name"]: row for row in collected(ROOT, "hicache/tests/proof", ())["mutants"]}
    listed: list[Row | Mutant] = [*ROWS, *ACCURACY_ROWS, *MUTANTS]
    expected = {row.slug: row for row in listed}
    assert rows.keys() == expected.keys(), f"expected the mutants {sorted(expected)}, found {sorted(rows)}"
    for slug, row in expected.items():
        (killer,) = rows[slug]["killers"]
        assert killer.endswith(row.test), f"{slug}: expected a path to {row.test}, found {killer}"
        path, _, name = killer.partition("[")[0].partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{slug}: {path} defines no {name}"


def test_a_checkout_is_described(before: dict[str, Any]) -> None:
    clauses = {name: entry["items"] for name, entry in before["clauses"].items()}
    assert clauses == {"LOCK-3": 1, "MATCH-1": 2, "MATCH-2": 2}, f"tests by clause: found {clauses}"
    laws = {law["name"]: law["clauses"] for law in before["laws"]}
    assert laws == {"check_depth": ["LOCK-6"], "check_path": ["LOCK-1"]}, f"laws: found {laws}"
    (machine,) = before["machines"]
    assert (machine["name"], machine["rules"]) == ("Machine", ["put"]), f"machines: found {machine}"
    assert all("max_examples=10 " in budget for budget in machine["budgets"]), f"50 / 5 examples: {machine['budgets']}"


def test_a_suite_that_cannot_be_collected_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "properties").mkdir()
    (tmp_path / "properties" / "test_any.py").write_text("import hicache_has_no_such_library\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["inventory", "--root", str(tmp_path)])
    code, told = main(), capsys.readouterr().err
    assert code == 2, f"expected 2, got {code}: {told}"
    assert told.startswith(f"properties in {tmp_path}: exit status 2"), f"expected the suite first, got {told}"
    assert "No module named 'hicache_has_no_such_library'" in told, f"expected pytest's words, got {told}"


def compared(before: dict[str, Any], now: dict[str, Any], **renames: str) -> Comparison:
    # As from a file.
    before = json.loads(json.dumps(before))
    return Comparison(before, now, {old: [new] for old, new in renames.items()})


def test_the_same_is_the_same(before: dict[str, Any]) -> None:
    comparison = compared(before, copy.deepcopy(before))
    assert not comparison.lost, f"nothing has changed, lost: {comparison.lost}"
    assert not comparison.notes, f"nothing has changed, noted: {comparison.notes}"


def test_what_moved_or_has_a_similar_name_is_not_lost(before: dict[str, Any], take: Take) -> None:
    renamed = MATCHES.replace("nobody_evicts_what_is_locked", "evict_skips_what_is_locked")
    machine, laws = MACHINE.replace("Machine(R", "CacheMachine(R").replace("(Machine", "(CacheMachine"), LAW
    files = {"conformance/test_one.py": renamed, "properties/test_all.py": machine, "hicache/tree/invariants.py": laws}
    comparison = compared(before, take(files))
    assert not comparison.lost, f"all is there under another name, lost: {comparison.lost}"
    tests = comparison.pairings["tests"]
    moved = {label(old): label(new) for old, new in tests.moved}
    expected = "conformance/test_one.py::test_a_hit_is_whole_pages"
    assert moved["conformance/test_match.py::test_a_hit_is_whole_pages"] == expected, f"moved: {moved}"
    similar = [(old["name"], new["name"]) for old, new in tests.similar]
    assert similar == [("test_nobody_evicts_what_is_locked", "test_evict_skips_what_is_locked")], f"found {similar}"
    text = "\n".join(comparison.lines())
    assert "tests moved: conformance/test_match.py → conformance/test_one.py: test_a_hit_is_whole_pages" in text, text


LOSSES = {
    "a test": ("test_match.py", "def test_nobody_evicts_what_is_locked", "def locked", "tests: conformance/test_match"),
    "a case": ("test_match.py", "[1, 2]", "[1]", "2 cases before, 1 now"),
    "a clause of a test": ("test_match.py", '"MATCH-1", "MATCH-2"', '"MATCH-1"', "clause MATCH-2"),
    "examples": ("test_any.py", "50 // share", "40 // share", "max_examples=10 "),
    "a search": ("test_any.py", "    search(Machine, 5)\n", "", "machines: properties/test_any.py::Machine"),
    "a rule": ("test_any.py", "    @rule()\n", "    tries = 1\n    @rule()\n    def look(self): ...\n", ""),
    "a law": ("laws.py", '    require("LOCK-6", node.locks >= 0)', "    pass", "laws: hicache/laws.py::check_depth"),
}


@pytest.mark.parametrize(("name", "old", "new", "expected"), LOSSES.values(), ids=LOSSES)
def test_a_loss_is_named(before: dict[str, Any], take: Take, name: str, old: str, new: str, expected: str) -> None:
    files = {"conformance/test_match.py": MATCHES, "properties/test_any.py": MACHINE, "hicache/laws.py": LAW}
    changed = {path: text.replace(old, new) if path.endswith(name) else text for path, text in files.items()}
    assert changed != files, f"{name} has no {old!r} to be replaced"
    lost = compared(before, take(changed)).lost
    if expected:
        assert any(expected in line for line in lost), f"expected a line with {expected!r}, lost: {lost}"
    else:
        assert not lost, f"one more is not a loss: {lost}"


def test_a_test_that_a_person_lists_may_have_any_new_name(before: dict[str, Any], take: Take) -> None:
    merged = MATCHES.replace("test_nobody_evicts_what_is_locked", "test_lru")
    now = take({"conformance/test_match.py": merged, "properties/test_any.py": MACHINE, "hicache/laws.py": LAW})
    assert compared(before, now).lost, "the names are not alike"
    comparison = compared(before, now, test_nobody_evicts_what_is_locked="test_lru")
    assert not comparison.lost, f"the new name was listed, lost: {comparison.lost}"


def entry(**more: Any) -> dict[str, Any]:
    return {"where": "conformance/test_a.py", "clauses": ["MATCH-1"], "skipped": 0, "cases": {"": ""}} | more


def empty(**kinds: Any) -> dict[str, Any]:
    return {"clauses": {}, "configurations": {}, "profiles": {}, "sizes": {}} | kinds


def test_a_configuration_that_is_gone_or_changed_is_a_loss() -> None:
    old = empty(configurations={"conformance": {"full/page1/lru": {"page_size": "1"}, "full/page3/lru": {}}})
    new = empty(configurations={"conformance": {"full/page1/lru": {"page_size": "2"}}})
    lost = "\n".join(Comparison(old, new, {}).lost)
    assert "named full/page3/lru" in lost, f"expected the name that is gone, lost: {lost}"
    assert "page_size was 1, is 2" in lost, f"expected the field that changed, lost: {lost}"


def test_a_clause_that_runs_on_fewer_configurations_is_a_loss() -> None:
    old = empty(clauses={"LOCK-3": {"items": 2, "tests": {"test_a": ["page1", "page3"]}}})
    new = empty(clauses={"LOCK-3": {"items": 2, "tests": {"test_b": ["page1"]}}})
    lost = Comparison(old, new, {}).lost
    assert lost == ["clauses: LOCK-3: on configuration page3"], f"lost: {lost}"


def test_a_mutant_follows_the_test_that_finds_it() -> None:
    mutant = {"name": "slug", "where": "a.py", "clauses": ["MATCH-1"], "told": "x"}
    tests = [entry(name="test_a"), entry(name="test_other")]
    moved = [one | {"where": "conformance/test_b.py"} for one in tests]
    old = empty(tests=tests, mutants=[mutant | {"killers": ["conformance/test_a.py::test_a[1]"]}])
    for killer, count in (("conformance/test_b.py::test_a[1]", 0), ("conformance/test_b.py::test_other[1]", 1)):
        lost = Comparison(old, empty(tests=moved, mutants=[mutant | {"killers": [killer]}]), {}).lost
        assert len(lost) == count, f"now found by {killer}: expected {count} losses, got {lost}"


def test_sizes_are_those_of_their_group(tmp_path: Path) -> None:
    module = '"""A module."""\n\nimport os\nimport sys\n\ndef f():\n    return 1\n\ndef g():\n    x = 1\n    return x\n'
    for path in ("hicache/cache.py", "hicache/storage/base.py", "hicache/storage/slot_files.py", "hicache/cli/app.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(module, encoding="utf-8")
    (tmp_path / "hicache/__init__.py").write_text('"""Two lines."""\n\n', encoding="utf-8")
    sizes = read_sizes(tmp_path)
    modules = {name: row["modules"] for name, row in sizes.items()}
    assert modules == {"all": 4, "core": 2, "core, no storage": 1}, f"found {modules}"
    row = sizes["core"]
    assert (row["lines"], row["function"], row["imports"]) == (22, (2.5, 3, 3), 2.0), f"found {row}"
    assert row["header"] == 36.4, f"4 of 11 lines are header, found {row['header']} %"
