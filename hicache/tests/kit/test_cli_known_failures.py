"""`hicache known-failures` writes a list that a person completes, and a run names the entries that are too wide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.errors import ConfigurationError
from hicache.testing.plugin import known_failures
from hicache.testing.plugin.failures import CRASHED, FLAKY, STALE
from hicache.testing.plugin.known_failures import KnownFailure, narrower, read_known_failures
from hicache.testing.plugin.tags import SUITES
from hicache.testing.report import Execution, Outcome, write_run
from hicache.tests.kit.suite_runs import HOSTILE, execution, record


def failed(name: str, configuration: str, clause: str, cause: str, reason: str = "one") -> Execution:
    """A failed test of a clause, for a cause."""
    return execution(
        clause, outcome=Outcome.FAILED, name=name, configuration=configuration, causes=(cause,), reason=reason
    )


RUN = (
    failed("test_every", "a", "MATCH-1", "MATCH-1", HOSTILE),
    failed("test_every", "b", "MATCH-1", "MATCH-1"),
    failed("test_law", "a", "INS-2", "MATCH-1"),
    failed("test_all", "a", "INS-2", "INS-2"),
    failed("test_all", "b", "INS-2", "INS-2"),
    failed("test_some", "a", "INS-2", "KeyError in A.insert"),
    execution("INS-2", name="test_some", configuration="b"),
    failed("test_flaky", "a", "EVICT-2", FLAKY),
    failed("test_died", "a", "EVICT-2", CRASHED),
    failed("test_stale", "a", "EVICT-2", STALE),
)


def write(directory: Path, *executions: Execution) -> tuple[int, str, Path]:
    """The exit code and the output of the command, and its file."""
    write_run(record(*executions), directory / "run.json")
    output = directory / "known.toml"
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["known-failures", str(directory), "-o", str(output)])
    return result.exit_code, result.output, output


def test_the_list_has_clauses_that_fail_everywhere_and_otherwise_tests(tmp_path: Path) -> None:
    code, output, path = write(tmp_path, *RUN)
    assert code == 0, f"expected 0, got {code}: {output}"
    text = path.read_text(encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"failures\[0\].reason is empty"):
        read_known_failures(path)
    path.write_text(text.replace('reason = ""', 'reason = "looked at"'), encoding="utf-8")
    found = [entry.id for entry in read_known_failures(path)]
    assert found == [
        "MATCH-1",
        "conformance/test_file.py::test_all[*]",
        "conformance/test_file.py::test_some[a]",
    ], f"got {found} in {text}"


def test_the_list_covers_all_that_failed_and_nothing_that_passed(tmp_path: Path) -> None:
    _, _, path = write(tmp_path, *RUN)
    path.write_text(path.read_text(encoding="utf-8").replace('reason = ""', 'reason = "x"'), encoding="utf-8")
    entries = read_known_failures(path)
    for one in RUN[:7]:
        by_test = any(entry.covers(one.node_id, one.clauses) for entry in entries)
        by_law = bool(one.causes) and {entry.id for entry in entries}.issuperset(one.causes)
        assert (by_test or by_law) is (one.outcome is Outcome.FAILED), f"{one.node_id}: got {by_test} and {by_law}"


LISTED = {
    "of each suite": [f"{suite}/test_file.py::test_one[full/page16/lru]" for suite in SUITES],
    "of a backend": ["conformance/storage/test_files.py::test_one[file]", "storage::500 faults[file]"],
    "of two backends": ["storage::1,000 kills[file]", "storage::1,000 kills[slotfile]"],
    "a replay": ["replay::generated trace"],
    "replays": ["replay::generated trace", "replay::generated trace, host", "replay::a trace of 50% [twice]"],
    "of a project": ["test_mine.py::TestMine::test_one[full]", "tests/unit/test_it.py::test_two"],
    "with any characters": ["conformance/test_file.py::test_one[a*b-'c'-\"d\"-\\\\x00-\u00e9]"],
}
"""Ids of everything that a run executes, by what it is."""

NOT_LISTED = ("conformance::the process of the stage", "the worker processes")
"""Ids of failures that are those of no test, so that no entry can expect them."""


def failures_of(*ids: str) -> list[Execution]:
    """Failures with these ids, for a cause other than a clause."""
    one = failed("test_one", "a", "MATCH-1", "KeyError in A.insert", HOSTILE)
    return [replace(one, node_id=node_id, clauses=(), causes=(HOSTILE,)) for node_id in ids]


@pytest.mark.parametrize("ids", LISTED.values(), ids=LISTED)
def test_a_list_that_was_written_is_read_and_covers_what_failed(tmp_path: Path, ids: list[str]) -> None:
    code, output, path = write(tmp_path, *failures_of(*ids, *NOT_LISTED), execution("KEY-1"))
    assert code == 0, f"expected 0, got {code}: {output}"
    path.write_text(path.read_text(encoding="utf-8").replace('reason = ""', 'reason = "x"'), encoding="utf-8")
    entries = read_known_failures(path)
    lost = [node_id for node_id in ids if not any(entry.covers(node_id, ()) for entry in entries)]
    assert not lost, f"no entry covers {lost} in {path.read_text(encoding='utf-8')}"
    wide = [node_id for node_id in NOT_LISTED for entry in entries if entry.covers(node_id, ())]
    assert not wide, f"{wide} are not tests"


@pytest.mark.parametrize("node_id", NOT_LISTED)
def test_what_is_no_test_cannot_be_listed(tmp_path: Path, node_id: str) -> None:
    code, output, path = write(tmp_path, *failures_of(node_id))
    assert (code, path.exists()) == (2, False), f"expected 2 and no file, got {code}: {output}"
    assert "no test failed that can be listed" in output, f"got {output}"


@pytest.mark.parametrize(
    ("executions", "told"), [((execution("KEY-1"),), "no test failed that can be listed"), (RUN[:1], "exists")]
)
def test_nothing_to_write_is_a_usage_error(tmp_path: Path, executions: tuple[Execution, ...], told: str) -> None:
    (tmp_path / "known.toml").write_text("mine")
    if told != "exists":
        (tmp_path / "known.toml").unlink()
    code, output, path = write(tmp_path, *executions)
    assert (code, told in output) == (2, True), f"expected 2 and {told!r}, got {code}: {output}"
    assert not path.exists() or path.read_text() == "mine", "the file of a person stays"


def known_failure(name: str, configuration: str) -> Execution:
    """A failure that an entry covers."""
    return execution("INS-2", outcome=Outcome.KNOWN_FAILURE, name=name, configuration=configuration)


def test_an_entry_of_which_tests_pass_is_narrowed_to_those_that_fail() -> None:
    entry = KnownFailure("known.toml: entry 1 (INS-2)", "INS-2", "bug", "lost", "", flaky=False)
    executions = [
        known_failure("test_all", "a"),
        known_failure("test_all", "b"),
        known_failure("test_some", "a"),
        failed("test_some", "b", "INS-2", STALE),
        failed("test_other", "b", "EVICT-2", "EVICT-2"),
    ]
    found = list(narrower([entry], executions))
    assert found == [
        "narrow known.toml: entry 1 (INS-2): 3 of its tests fail and 1 pass; list these:",
        '  "conformance/test_file.py::test_all[*]",',
        '  "conformance/test_file.py::test_some[a]",',
    ], f"expected a pattern for the test that always fails and an id for the other, got {found}"
    assert not list(narrower([entry], executions[:3])), "all of its tests fail"
    assert not list(narrower([entry], executions[3:])), "none of its tests fails: the entry is to be removed"


OLD_LIST = r'''# A list; see docs. For
#   pytest conformance
format = 1 # stated

# first

[[failure]]
id = "conformance/test_old.py::test_a[*]" # by hand
kind = "bug"
reason = "a # in \"quotes\""
link = ""
[[failure]]
# asked upstream
id = 'LOCK-3'
kind = "unsupported"
reason = """by
design"""
link = "https://example.org/7"

# The same again.
[[failure]]
kind = "bug"
reason = 'a # in "quotes"'
id = "conformance/test_file.py::test_b*"
link = ""

# Host.

[[failure]]
id = "conformance/test_file.py::test_c*"
kind = "bug"
reason = 'a # in "quotes"'
link = ""

# The end.
'''

NEW_LIST = r"""# A list; see docs. For
#   pytest conformance
format = 2
 # stated

# first

[[failures]]
kind = "bug"
reason = "a # in \"quotes\""
link = ""
ids = [
    # by hand
    "conformance/test_file.py::test_a[*]",
    # The same again.
    "conformance/test_file.py::test_b*",
]

# asked upstream
[[failures]]
kind = "unsupported"
reason = "by\ndesign"
link = "https://example.org/7"
ids = ["LOCK-3"]

# Host.

[[failures]]
kind = "bug"
reason = "a # in \"quotes\""
link = ""
ids = ["conformance/test_file.py::test_c*"]

# The end.
"""


def migrate(path: Path) -> tuple[int, str]:
    """The exit code and the output of the command."""
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["known-failures", "--migrate", str(path)])
    return result.exit_code, result.output


@pytest.mark.parametrize("text", [OLD_LIST, NEW_LIST.replace("test_file.py::test_a", "test_old.py::test_a")])
def test_an_older_list_is_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    old, new = "conformance/test_old.py::test_a", "conformance/test_file.py::test_a"
    monkeypatch.setattr(known_failures, "RENAMED", {old: new})
    path = tmp_path / "known.toml"
    path.write_text(text, encoding="utf-8")
    before = {(one.present_id, str(one)) for one in read_known_failures(path)}
    code, output = migrate(path)
    assert (code, f"renamed {old}[*]: {new}[*]" in output) == (0, True), (
        f"expected 0 and the new id, got {code}: {output}"
    )
    assert path.read_text(encoding="utf-8") == NEW_LIST, f"got {path.read_text(encoding='utf-8')}"
    after = {(one.id, str(one)) for one in read_known_failures(path)}
    assert after == before, f"expected {before}, got {after}"
    assert migrate(path)[0] == 0, "a list that is up to date can be rewritten"
    assert path.read_text(encoding="utf-8") == NEW_LIST, "and stays the same"
    assert list(tmp_path.iterdir()) == [path], f"expected nothing else, got {list(tmp_path.iterdir())}"


CANNOT_BE_REWRITTEN = {
    "entries in one line": 'failure = [{id = "LOCK-3", kind = "bug", reason = "x", link = ""}]',
    "an id in escapes": '[[failures]]\nkind = "bug"\nreason = "x"\nlink = ""\n'
    'ids = ["conformance/test_\\u006fld.py::test_a"]',
}


@pytest.mark.parametrize("text", CANNOT_BE_REWRITTEN.values(), ids=CANNOT_BE_REWRITTEN)
def test_a_list_that_would_lose_something_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(
        known_failures, "RENAMED", {"conformance/test_old.py::test_a": "conformance/test_file.py::test_a"}
    )
    path = tmp_path / "known.toml"
    text = f"format = {2 if 'failures' in text else 1}\n{text}\n"
    path.write_text(text, encoding="utf-8")
    code, output = migrate(path)
    assert code == 2, f"expected 2, got {code}: {output}"
    assert path.read_text(encoding="utf-8") == text, f"the list has changed: {path.read_text(encoding='utf-8')}"
    assert list(tmp_path.iterdir()) == [path], f"expected nothing else, got {list(tmp_path.iterdir())}"
