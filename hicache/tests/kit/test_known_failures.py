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
from hicache.testing.report import Outcome, read_run
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
    "a flaky clause": (
        ('ids = ["LOCK-3"]', 'flaky = true\nids = ["LOCK-3"]'),
        r"failures\[0\].ids\[0\] is 'LOCK-3'; expected tests",
    ),
    "flaky beyond": (('kind = "bug"', 'kind = "beyond"\nflaky = true'), r"failures\[0\].flaky is true"),
    "flaky is a text": (
        ('kind = "bug"', 'kind = "bug"\nflaky = "yes"'),
        r"failures\[0\].flaky is 'yes' \(str\), not true or",
    ),
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
    "unknown kind": (('"bug"', '"oops"'), "kind is 'oops', known: bug, unsupported, beyond, future"),
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
    return KnownFailure("known.toml: entry 1", entry_id, "bug", "it is broken", "", flaky=False)


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


LISTS = [
    *((GOOD, change, f".*{named}") for change, named in WRONG.values()),
    *((GROUPED, change, f": {named}") for change, named in WRONG_GROUPS.values()),
]


@pytest.mark.parametrize(("text", "change", "named"), LISTS, ids=[*WRONG, *(f"{name} in 2" for name in WRONG_GROUPS)])
def test_a_wrong_entry_is_refused_with_its_place(
    tmp_path: Path, text: str, change: tuple[str, str], named: str
) -> None:
    path = _write(tmp_path, text.replace(*change))
    with pytest.raises(ConfigurationError, match=f"known.toml{named}"):
        read_known_failures(path)


def test_a_list_that_states_no_format_is_of_format_1_and_one_of_another_is_refused(tmp_path: Path) -> None:
    unstated, stated = (read_known_failures(_write(tmp_path, text)) for text in (GOOD, f"format = 1\n{GOOD}"))
    assert stated == unstated, f"expected the same entries with `format = 1` and without, got {stated}, {unstated}"
    for number in (KNOWN_FAILURES_FORMAT + 1, 0):
        path = _write(tmp_path, f"format = {number}\n{GOOD}")
        expected = f"known.toml: format is {number}, but this hicache reads 1 and 2: .* docs/reference/versions.md"
        with pytest.raises(ConfigurationError, match=expected):
            read_known_failures(path)


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
    result = run(pytester, *_list(pytester, "conformance/test_old.py::test_bad[*]"))
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


BROKEN_FIXTURE = """
@pytest.fixture
def broken():
    raise RuntimeError("no such pool")

@clause("MATCH-14")
def test_bad(broken): ...

@clause("KEY-1")
def test_good(): ...
"""

TWO_CAUSES = """
@clause("KEY-1")
def test_bad():
    error = AssertionError("of two ranks")
    error.causes = ("LOCK-2", "LOCK-3")
    raise error
"""

ALL_PASS = ONE_OF_TWO_FAILS.replace("< 1", "> 0")
ONE_SKIPPED = f'{ALL_PASS}\n@clause("LOCK-7")\ndef test_skipped(): ...\n'

NOT_INSTALLED = """
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

OK, FAILED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
COUNTS = "hicache: 1 passed, 0 failed, 2 known to fail, 0 skipped, * of * clauses not executed"
OBSOLETE = "listed as a known failure, but passes: remove known.toml: entry 1 (conformance/*)"

RUNS = {
    "a clause": (ONE_OF_TWO_FAILS, "MATCH-14", "", "1 passed 2 xfailed", OK, COUNTS),
    "a test": (ONE_OF_TWO_FAILS, "conformance/test_it.py::test_bad*", "", "1 passed 2 xfailed", OK, COUNTS),
    "one of two": (
        *(ONE_OF_TWO_FAILS, "conformance/test_it.py::*[full/page3/*]", ""),
        *("1 failed 1 passed 1 xfailed", FAILED, "*"),
    ),
    "a test that passes": (ONE_OF_TWO_FAILS, "conformance/test_it.py::*", "", "1 failed 2 xfailed", FAILED, OBSOLETE),
    "a test that does not begin": (BROKEN_FIXTURE, "MATCH-14", "", "1 passed 1 xfailed", OK, "*"),
    "the first cause": (TWO_CAUSES, "LOCK-2", "", "1 failed", FAILED, "*"),
    "the second cause": (TWO_CAUSES, "LOCK-3", "", "1 failed", FAILED, "*"),
    "both causes": (TWO_CAUSES, "LOCK-2 LOCK-3", "", "1 xfailed", OK, "*"),
    **{
        f"nothing {entry}": (
            *(ONE_SKIPPED, entry, "", "3 passed 1 skipped", FAILED),
            f"ERROR: known.toml: entry 1 ({entry}) matches no executed test: remove it",
        )
        for entry in ("LOCK-2", "LOCK-7", "conformance/test_gone.py::*")
    },
    "nothing of the tests that -k selects": (ALL_PASS, "LOCK-2", "-kgood", "1 passed 2 deselected", OK, "*"),
    "nothing of a file": (ALL_PASS, "LOCK-2", "conformance/test_it.py", "3 passed", OK, "*"),
    "another suite": (ALL_PASS, "properties/test_machines.py::*", "", "3 passed", OK, "*"),
    "a cache that cannot be imported": (NOT_INSTALLED, "KEY-1", "", "1 failed 1 errors", FAILED, "*"),
}
"""Runs: the suite, the listed ids, an option, the counts, the exit code, and a line of the output."""


def _list(pytester: pytest.Pytester, *entry_ids: str, kind: str = "bug") -> tuple[str, str]:
    """Write a list of one kind, and return the words that name it."""
    fields = f'kind = "{kind}"\nreason = "we know"\nlink = "https://example.org/7"\n'
    text = "".join(f'[[failure]]\nid = "{one}"\n{fields}' for one in entry_ids)
    (pytester.path / "known.toml").write_text(text, encoding="utf-8")
    return "--hicache-known-failures", "known.toml"


@pytest.mark.parametrize(("suite", "entries", "option", "counts", "code", "line"), RUNS.values(), ids=RUNS)
def test_a_run_whose_list_names(
    pytester: pytest.Pytester, suite: str, entries: str, option: str, counts: str, code: pytest.ExitCode, line: str
) -> None:
    write_suite(pytester, suite)
    result = run(pytester, *_list(pytester, *entries.split()), *option.split())
    found = " ".join(f"{number} {outcome}" for outcome, number in result.parseoutcomes().items())
    assert (found, result.ret) == (counts, code), f"expected {counts!r} and {code}, got {found!r} and {result.ret}"
    result.stdout.fnmatch_lines([line])


@pytest.mark.parametrize(
    ("suite", "entry", "count"), [(ONE_OF_TWO_FAILS, "MATCH-14", 2), (TWO_CAUSES, "KEY-1", 1)], ids=["clause", "cause"]
)
def test_what_a_cache_does_beyond_the_contract_counts_as_passed(
    pytester: pytest.Pytester, suite: str, entry: str, count: int
) -> None:
    write_suite(pytester, suite)
    result = run(pytester, *_list(pytester, entry, kind="beyond"), "--hicache-report", "out")
    passed = count + (suite is ONE_OF_TWO_FAILS)
    assert result.ret == OK, f"what does more has not failed, got {result.ret}"
    result.stdout.fnmatch_lines([f"hicache: {passed} passed, {count} of them beyond the contract, 0 failed, *"])
    report = (pytester.path / "out" / "report.md").read_text(encoding="utf-8")
    assert f"| beyond: we know (https://example.org/7) | {entry} | {count} |" in report, (
        f"expected a table, got {report}"
    )


def test_what_passes_is_not_beyond_the_contract(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ALL_PASS)
    result = run(pytester, *_list(pytester, "conformance/*::test_good*", kind="beyond"))
    assert result.ret == FAILED, f"the entry may go, got {result.ret}"
    result.stdout.fnmatch_lines(["*listed as a known failure, but passes: remove known.toml: entry 1 *"])


def test_a_replay_beyond_the_contract_has_passed() -> None:
    entry = replace(_entry("replay::*"), kind="beyond")
    found = judged([entry], "replay::generated trace", ("REQ-4",), ("POOL-1",), "POOL-1: more slots")
    assert found == (Outcome.PASSED, ("POOL-1",), "beyond: it is broken"), f"got {found}"


FLAKY_RUNS = {
    "passes and fails": (ONE_OF_TWO_FAILS, "conformance/test_it.py::*", OK, (1, 2)),
    "passes": (ALL_PASS, "conformance/test_it.py::test_bad*", OK, (2, 0)),
    "fails": (ONE_OF_TWO_FAILS, "conformance/test_it.py::test_bad*", OK, (0, 2)),
    "passes beside a failure": (ONE_OF_TWO_FAILS, "conformance/test_it.py::test_good*", FAILED, (1, 0)),
    "is not there": (ALL_PASS, "conformance/test_gone.py::*", FAILED, (0, 0)),
}
"""Runs whose list has one flaky entry: the suite, the id, the exit code, how many of its tests passed and failed."""


@pytest.mark.parametrize(("suite", "entry", "code", "counts"), FLAKY_RUNS.values(), ids=FLAKY_RUNS)
def test_a_run_whose_list_names_a_flaky_test(
    pytester: pytest.Pytester, suite: str, entry: str, code: pytest.ExitCode, counts: tuple[int, int]
) -> None:
    write_suite(pytester, suite)
    fields = 'kind = "bug"\nflaky = true\nreason = "a race"\nlink = ""\n'
    _write(pytester.path, f'format = 2\n[[failures]]\n{fields}ids = ["{entry}"]\n')
    workers = ("-n", "1" if code is FAILED else "0")
    result = run(pytester, "--hicache-known-failures", "known.toml", "--hicache-report", "out", *workers)
    assert result.ret == code, f"expected {code}, got {result.ret}: {result.outlines}"
    told = f"listed as flaky: {counts[0]} passed, {counts[1]} failed" if any(counts) else ""
    assert result.outlines[-1].endswith(told or "executed"), f"expected {told!r}, got {result.outlines[-1]}"
    report = (pytester.path / "out" / "report.md").read_text(encoding="utf-8")
    assert told in report, f"expected {told!r} in {report}"
    listed = [one for one in read_run(pytester.path / "out" / "run.json").executions if one.is_listed_flaky]
    found = [sum(one.outcome is outcome for one in listed) for outcome in (Outcome.PASSED, Outcome.KNOWN_FAILURE)]
    assert found == [*counts], f"run.json: expected {counts}, got {found}"
    assert not any(one.is_beyond or (one.causes and one.outcome is Outcome.PASSED) for one in listed), f"got {listed}"
    if not any(counts):
        result.stdout.fnmatch_lines([f"ERROR: known.toml: entry 1 ({entry}) matches no executed test: remove it"])


@pytest.mark.parametrize(
    ("reason", "outcome"), [("POOL-1: lost", Outcome.KNOWN_FAILURE), ("", Outcome.PASSED)], ids=["fails", "passes"]
)
def test_a_flaky_replay_that(reason: str, outcome: Outcome) -> None:
    entry = replace(_entry("replay::*"), flaky=True)
    found = judged([entry], "replay::generated trace", ("REQ-4",), ("POOL-1",), reason)
    causes = ("POOL-1",) if reason else ()
    assert found == (outcome, causes, "flaky bug: it is broken"), f"got {found}"


def test_a_list_that_cannot_be_read_ends_the_run(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = run(pytester, *_list(pytester, "LOCK-99"))
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


@pytest.mark.parametrize(
    ("entries", "counts", "told"),
    [(("KEY-1", "KEY-2"), {"xfailed": 2}, "False, False"), ((), {"failed": 2}, "True, True")],
    ids=["known", "unexpected"],
)
def test_only_an_unexpected_failure_is_shrunk(
    pytester: pytest.Pytester, entries: tuple[str, ...], counts: dict[str, int], told: str
) -> None:
    write_suite(pytester, SEARCHING)
    result = run(pytester, "-s", *(_list(pytester, *entries) if entries else ()))
    result.assert_outcomes(passed=1, **counts)
    result.stdout.fnmatch_lines([f"*shrunk: {told}, phases as before: True*"])
