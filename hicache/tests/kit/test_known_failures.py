"""Known failures: how their list is read, which tests an entry covers, and what becomes of these tests in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hicache import engines
from hicache.config import read_table
from hicache.errors import ConfigurationError
from hicache.testing.plugin import known_failures
from hicache.testing.plugin.failures import STALE
from hicache.testing.plugin.known_failures import (
    KNOWN_FAILURES_FORMAT,
    KnownFailure,
    judged,
    read_known_failures,
    stale_entry,
)
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import ROOT, run, write_suite

SHIPPED = sorted(Path(engines.__path__[0], "known").glob("*.toml"))

GOOD = """
[[failure]]
id = "LOCK-3"
kind = "bug"
reason = "a tombstone is released"
link = "https://example.org/7"

[[failure]]
id = "properties/test_machines.py::*"
kind = "future"
reason = "not tried yet"
link = ""
"""

GROUPED = """
format = 2

[[failures]]
kind = "bug"
reason = "a tombstone is released"
link = "https://example.org/7"
ids = ["LOCK-3"]

[[failures]]
kind = "future"
reason = "not tried yet"
link = ""
ids = [
    "properties/test_machines.py::*",   # all of them
    "KEY-1",
]
"""
"""The entries of GOOD in the present format, and one more."""

WRONG_GROUPS = {
    "unknown clause": (("LOCK-3", "LOCK-99"), r"failures\[0\].ids\[0\] is 'LOCK-99'; expected a clause"),
    "a second id": (("KEY-1", "KEY"), r"failures\[1\].ids\[1\] is 'KEY'"),
    "no ids": (('["LOCK-3"]', "[]"), r"failures\[0\].ids is empty"),
    "an id for a list": (('["LOCK-3"]', '"LOCK-3"'), r"failures\[0\].ids is 'LOCK-3' \(str\), not a list"),
    "no reason": (('"a tombstone is released"', '""'), r"failures\[0\].reason is empty"),
    "an entry of format 1": (('ids = ["LOCK-3"]', 'id = "LOCK-3"'), r"failures\[0\].ids is missing"),
    "tables of format 1": (
        ("[[failures]]", "[[failure]]"),
        r"failure is a table of format 1; format 2 has \[\[failures\]\] with ids = \[…\]",
    ),
}

WRONG = {
    "unknown clause": (("LOCK-3", "LOCK-99"), "id is 'LOCK-99'; expected a clause"),
    "a file is no test": (("properties/test_machines.py::*", "properties/test_machines.py"), r"failure\[1\].id is"),
    "a test of no suite": (
        ("properties/", "property/"),
        r"failure\[1\].id is 'property/test_machines.py::\*'; expected",
    ),
    "the process of a stage": (("properties/test_machines.py::*", "properties::the process"), r"failure\[1\].id is"),
    "unknown kind": (('"bug"', '"oops"'), "kind is 'oops', known: unsupported, bug, future"),
    "no reason": (('"a tombstone is released"', '" "'), "reason is empty"),
    "missing field": (('kind = "bug"', ""), "kind is missing"),
    "unknown field": (('kind = "bug"', 'kind = "bug"\nwhy = 1'), "why is unknown"),
    "unknown table": (('[[failure]]\nid = "LOCK-3"', '[other]\n[[failure]]\nid = "LOCK-3"'), "other is unknown"),
    "no list": ((GOOD, "failure = 3"), "failure is 3"),
    "not TOML": (("[[failure]]", "[[failure"), "line 2"),
    "format is no number": ((GOOD, f'format = "1"\n{GOOD}'), "format is '1'"),
}


def _write(path: Path, text: str) -> Path:
    file = path / "known.toml"
    file.write_text(text, encoding="utf-8")
    return file


def _entry(entry_id: str) -> KnownFailure:
    return KnownFailure("known.toml: entry 1", entry_id, "bug", "it is broken", "")


def test_entries_come_in_order_with_their_place(tmp_path: Path) -> None:
    first, second = read_known_failures(_write(tmp_path, GOOD))
    assert str(first) == "bug: a tombstone is released (https://example.org/7)", f"got {first!s}"
    assert str(second) == "future: not tried yet", f"without a link, got {second!s}"
    assert first.place.endswith("known.toml: entry 1 (LOCK-3)"), f"expected file, number and id, got {first.place}"
    assert (first.suite, second.suite) == ("conformance", "properties"), f"got {first.suite}, {second.suite}"


def test_ids_of_one_reason_are_entries_of_their_own(tmp_path: Path) -> None:
    before, found = (read_known_failures(_write(tmp_path, text)) for text in (GOOD, GROUPED))
    assert found[:2] == before, f"expected the entries of format 1, got {found}"
    assert found[2] == replace(before[1], place=f"{tmp_path / 'known.toml'}: entry 2 (KEY-1)", id="KEY-1"), (
        f"{found[2]}"
    )


@pytest.mark.parametrize(("change", "named"), WRONG_GROUPS.values(), ids=WRONG_GROUPS)
def test_a_wrong_entry_of_ids_is_refused_with_its_place(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    path = _write(tmp_path, GROUPED.replace(*change))
    with pytest.raises(ConfigurationError, match=f"known.toml: {named}"):
        read_known_failures(path)


@pytest.mark.parametrize(
    ("entry_id", "suite"),
    [
        ("LOCK-3", "conformance"),
        ("RANK-1", "distributed_tests"),
        ("FETCH-7", "distributed_tests"),
        ("properties/test_a.py::test_*", "properties"),
        ("replay::generated trace", "replay"),
        ("tests/test_mine.py::TestMine::*", ""),
    ],
)
def test_an_entry_must_cover_a_test_of_the_suite_that_its_clause_is_tested_in(entry_id: str, suite: str) -> None:
    assert _entry(entry_id).suite == suite, f"{entry_id}: expected {suite}, got {_entry(entry_id).suite}"


@pytest.mark.parametrize(("change", "named"), WRONG.values(), ids=WRONG)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    path = _write(tmp_path, GOOD.replace(*change))
    with pytest.raises(ConfigurationError, match=f"known.toml.*{named}"):
        read_known_failures(path)


@pytest.mark.parametrize("written", [KNOWN_FAILURES_FORMAT + 1, 0])
def test_a_list_of_another_format_is_refused_with_the_known_ones(tmp_path: Path, written: int) -> None:
    path = _write(tmp_path, f"format = {written}\n{GOOD}")
    expected = f"known.toml: format is {written}, but this hicache reads 1 and 2: .* docs/reference/versions.md"
    with pytest.raises(ConfigurationError, match=expected):
        read_known_failures(path)


def test_a_list_that_states_no_format_is_of_format_1(tmp_path: Path) -> None:
    unstated = [str(one) for one in read_known_failures(_write(tmp_path, GOOD))]
    stated = [str(one) for one in read_known_failures(_write(tmp_path, f"format = 1\n{GOOD}"))]
    assert stated == unstated, f"expected the same entries with `format = 1` and without, got {stated}, {unstated}"


RENAMES = {
    "conformance/test_old.py::test_split": "conformance/test_lock.py::test_split",
    "properties/test_old.py::test_host[*/lru]": "conformance/test_lock.py::test_tiers[host-*/lru]",
}

LISTED_BEFORE = {
    "a function": ("conformance/test_old.py::test_split", "conformance/test_lock.py::test_split"),
    "with parameters": ("conformance/test_old.py::test_split[a*]", "conformance/test_lock.py::test_split[a*]"),
    "all of its parameters": ("conformance/test_old.py::test_split*", "conformance/test_lock.py::test_split*"),
    "the name begins like it": ("conformance/test_old.py::test_splits[a]", "conformance/test_old.py::test_splits[a]"),
    "a pattern of names": ("conformance/test_old.py::test_s*", "conformance/test_old.py::test_s*"),
    "another suite": (
        "properties/test_old.py::test_host[full/lru]",
        "conformance/test_lock.py::test_tiers[host-full/lru]",
    ),
    "a pattern there": ("properties/test_old.py::test_host[full*", "conformance/test_lock.py::test_tiers[host-full*"),
    "all of it there": ("properties/test_old.py::test_host*", "conformance/test_lock.py::test_tiers[host-*/lru]"),
    "another end": ("properties/test_old.py::test_host[a/lfu]", "properties/test_old.py::test_host[a/lfu]"),
    "a clause": ("LOCK-3", "LOCK-3"),
}
"""Ids in a list, and what `known-failures --migrate` makes of them."""


@pytest.mark.parametrize(("listed", "present"), LISTED_BEFORE.values(), ids=LISTED_BEFORE)
def test_a_renamed_test_is_found_by_its_old_id(monkeypatch: pytest.MonkeyPatch, listed: str, present: str) -> None:
    monkeypatch.setattr(known_failures, "RENAMED", RENAMES)
    entry = _entry(listed)
    assert entry.present_id == present, f"{listed}: expected {present}, got {entry.present_id}"
    tests = ["split[a]", "tiers[host-full/lru]", "tiers[device-full/lru]", "tiers[host-a/lfu]"]
    tests = [f"conformance/test_lock.py::test_{name}" for name in tests]
    # The only pattern with * in the name of the test: it stays, and is found by the old id alone.
    expected = [one for one in tests if _entry(present).covers(one, ())] or [tests[0]][: "test_s*" in listed]
    found = [one for one in tests if entry.covers(one, ())]
    assert found == expected, f"{listed}: expected to cover {expected}, got {found}"


def test_a_run_names_the_new_id_of_a_listed_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        known_failures, "RENAMED", {"conformance/test_old.py::test_bad": "conformance/test_it.py::test_bad"}
    )
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, "conformance/test_old.py::test_bad[*]")
    result.assert_outcomes(passed=1, xfailed=2)
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.ret}"
    told = "renamed known.toml: entry 1 (*): is conformance/test_it.py::test_bad[[]*] now; update the list: *"
    result.stdout.fnmatch_lines([told])


def test_the_table_that_ships_names_tests_that_there_are() -> None:
    for old, new in known_failures.RENAMED.items():
        for test, count in ((old, 0), (new, 1)):
            file, _, name = test.partition("[")[0].partition("::")
            source = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
            # Neither id may be the beginning of another test's: a pattern that ends with * would mean both.
            found = source.count(f"def {name}")
            assert found == count, (
                f"{old} = {new}: expected {count} test of {file} that begins with {name}, got {found}"
            )
        assert new not in known_failures.RENAMED, f"{new} was renamed again: the row of {old} must name the last id"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_list_that_ships_states_its_format(path: Path) -> None:
    assert read_table(f"@{path}").get("format") == KNOWN_FAILURES_FORMAT, f"{path.name}: expected its format"
    assert read_known_failures(path), f"{path.name}: expected entries"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        read_known_failures(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("entry_id", "reason", "expected"),
    [
        ("replay::generated*", "POOL-1: lost", (Outcome.KNOWN_FAILURE, ("POOL-1",), "bug: it is broken")),
        ("POOL-1", "POOL-1: lost", (Outcome.KNOWN_FAILURE, ("POOL-1",), "bug: it is broken")),
        ("LOCK-1", "POOL-1: lost", (Outcome.FAILED, ("POOL-1",), "POOL-1: lost")),
        ("replay::generated*", "", (Outcome.FAILED, (STALE,), stale_entry("known.toml: entry 1"))),
        ("REQ-4", "", (Outcome.PASSED, ("POOL-1",), "")),
    ],
)
def test_what_an_entry_makes_of_a_replay(
    entry_id: str, reason: str, expected: tuple[Outcome, tuple[str, ...], str]
) -> None:
    found = judged([_entry(entry_id)], "replay::generated trace", ("REQ-4",), ("POOL-1",), reason)
    assert found == expected, f"{entry_id} and {reason!r}: expected {expected}, got {found}"


TEST = "conformance/test_lock.py::test_split[full+swa/page16/lru]"

COVERED = {
    "a clause": ("LOCK-3", True),
    "another clause": ("LOCK-2", False),
    "the test itself": (TEST, True),
    "another parameter": (TEST.replace("16", "64"), False),
    "all of a file": ("conformance/test_lock.py::*", True),
    "a beginning alone": ("conformance/test_lock.py::test_spl", False),
    "one page size": ("conformance/*::*[*/page16/*]", True),
    "another page size": ("conformance/*::*[*/page1/*]", False),
    "brackets are no choice of letters": ("conformance/test_lock.py::test_[sp]lit*", False),
}


@pytest.mark.parametrize(("entry_id", "expected"), COVERED.values(), ids=COVERED)
def test_an_entry_covers(entry_id: str, expected: bool) -> None:
    covers = _entry(entry_id).covers(TEST, ("LOCK-3", "INS-8"))
    assert covers is expected, f"{entry_id!r} covers {TEST!r}: expected {expected}, got {covers}"


ONE_OF_TWO_FAILS = """
@clause("KEY-1", page_sizes=[1])
def test_good(config): ...

@clause("MATCH-14", page_sizes=[1, 3])
def test_bad(config):
    assert config.page_size < 1, "MATCH-14: broken"
"""


def _run_with(pytester: pytest.Pytester, entry_id: str, *options: str) -> pytest.RunResult:
    entry = f'[[failure]]\nid = "{entry_id}"\nkind = "bug"\nreason = "we know"\nlink = "https://example.org/7"\n'
    (pytester.path / "known.toml").write_text(entry, encoding="utf-8")
    return run(pytester, "--hicache-known-failures", "known.toml", *options)


@pytest.mark.parametrize("entry_id", ["MATCH-14", "conformance/test_it.py::test_bad*"])
def test_a_listed_test_may_fail(pytester: pytest.Pytester, entry_id: str) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, entry_id)
    result.assert_outcomes(passed=1, xfailed=2)
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.ret}"
    result.stdout.fnmatch_lines(
        ["hicache: 1 passed, 0 failed, 2 known to fail, 0 skipped, * of * clauses not executed"]
    )


def test_what_is_not_listed_fails(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, "conformance/test_it.py::*[full/page3/*]")
    result.assert_outcomes(passed=1, failed=1, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, f"expected a run that fails, got {result.ret}"


def test_a_listed_test_that_passes_fails(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, "conformance/test_it.py::*")
    result.assert_outcomes(failed=1, xfailed=2)
    result.stdout.fnmatch_lines(["listed as a known failure, but passes: remove known.toml: entry 1 (conformance/*)"])


def test_a_listed_test_may_fail_before_it_begins(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        @pytest.fixture
        def broken():
            raise RuntimeError("no such pool")

        @clause("MATCH-14")
        def test_bad(broken): ...

        @clause("KEY-1")
        def test_good(): ...
        """,
    )
    _run_with(pytester, "MATCH-14").assert_outcomes(passed=1, xfailed=1)


SEVERAL_CAUSES = """
@clause("KEY-1")
def test_bad():
    error = AssertionError("of two ranks")
    error.causes = ("LOCK-2", "LOCK-3")
    raise error
"""


@pytest.mark.parametrize(
    ("entry_ids", "outcome"), [(["LOCK-2"], "failed"), (["LOCK-3"], "failed"), (["LOCK-2", "LOCK-3"], "xfailed")]
)
def test_each_cause_of_a_failure_must_be_listed(pytester: pytest.Pytester, entry_ids: list[str], outcome: str) -> None:
    write_suite(pytester, SEVERAL_CAUSES)
    # The id of the first entry, and whole entries after it.
    result = _run_with(pytester, '"\nkind = "bug"\nreason = "we know"\nlink = ""\n[[failure]]\nid = "'.join(entry_ids))
    result.assert_outcomes(**{outcome: 1})


@pytest.mark.parametrize("entry_id", ["LOCK-2", "LOCK-7", "conformance/test_gone.py::*"])
def test_an_entry_that_matches_nothing_fails(pytester: pytest.Pytester, entry_id: str) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS.replace("< 1", "> 0") + '\n@clause("LOCK-7")\ndef test_skipped(): ...\n')
    result = _run_with(pytester, entry_id)
    result.assert_outcomes(passed=3, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, f"expected a run that fails, got {result.ret}"
    lines = [f"ERROR: known.toml: entry 1 ({entry_id}) matches no executed test: remove it"]
    result.stdout.fnmatch_lines(lines)


@pytest.mark.parametrize("selection", [["-k", "good"], ["conformance/test_it.py"]])
def test_a_part_of_a_suite_needs_not_match_every_entry(pytester: pytest.Pytester, selection: list[str]) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS.replace("< 1", "> 0"))
    result = _run_with(pytester, "LOCK-2", *selection)
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.ret}"


def test_an_entry_of_another_suite_is_left_alone(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS.replace("< 1", "> 0"))
    result = _run_with(pytester, "properties/test_machines.py::*")
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.ret}"


def test_a_list_that_cannot_be_read_ends_the_run(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, "LOCK-99")
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    result.stderr.fnmatch_lines(["ERROR: known.toml: failure[[]0[]].id is 'LOCK-99'; expected a clause, or tests *"])


SEARCHING = """
from hypothesis import Phase, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test, rule

seen = []
before = settings().phases

@clause("KEY-1")
@settings(database=None, derandomize=True)
@given(st.integers())
def test_decorated(number):
    seen.append(number)
    assert number < 1000, "KEY-1: too much"

@clause("KEY-2")
def test_machine():
    class Machine(RuleBasedStateMachine):
        @rule()
        def fail(self):
            raise AssertionError("KEY-2: broken")

    seen.append(Phase.shrink in Machine.TestCase.settings.phases)
    run_state_machine_as_test(Machine)

@clause("POOL-2")
def test_what_was_tried():
    phases = test_decorated._hypothesis_internal_use_settings.phases
    print(f"shrunk: {1000 in seen}, {seen[-1]}, phases as before: {phases == before}")
    assert Phase.shrink in settings().phases, "the profile of the run is back"
"""


def test_a_known_failure_is_not_shrunk(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SEARCHING)
    both = '[[failure]]\nid = "KEY-{}"\nkind = "bug"\nreason = "we know"\nlink = ""\n'
    (pytester.path / "known.toml").write_text(both.format(1) + both.format(2), encoding="utf-8")
    result = run(pytester, "--hicache-known-failures", "known.toml", "-s")
    result.assert_outcomes(passed=1, xfailed=2)
    result.stdout.fnmatch_lines(["*shrunk: False, False, phases as before: True"])


def test_an_unexpected_failure_is_shrunk(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SEARCHING)
    result = run(pytester, "-s")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*shrunk: True, True, phases as before: True*"])


NOT_INSTALLED = """
import pytest
from hicache.testing.contract import clause

@pytest.fixture
def opened():
    raise ImportError("the engine is not installed")

@clause("KEY-1")
def test_opens(opened):
    raise AssertionError("KEY-1: broken")

@clause("KEY-1")
def test_imports():
    raise ModuleNotFoundError("the engine is not installed")
"""


def test_a_cache_that_cannot_be_imported_is_no_known_failure(pytester: pytest.Pytester) -> None:
    write_suite(pytester, NOT_INSTALLED)
    entry = '[[failure]]\nid = "KEY-1"\nkind = "bug"\nreason = "we know"\nlink = ""\n'
    (pytester.path / "known.toml").write_text(entry, encoding="utf-8")
    result = run(pytester, "--hicache-known-failures", "known.toml")
    result.assert_outcomes(errors=1, failed=1)
