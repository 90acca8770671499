"""A baseline: only new failures fail a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.plugin import known_failures
from hicache.testing.plugin.known_failures import Baseline, read_baseline
from hicache.testing.report import Execution, Outcome, RunRecord, read_run, write_run
from hicache.tests.kit.suite_runs import FLAT_CACHE, execution, record, run, write_suite
from hicache.tests.kit.test_cli_verify import PASSED, FakeStage, run_command

NAME = "package.cache:Adapter"

SUITE = """
import pathlib
@clause("MATCH-1")
def test_old(adapter_type):
    assert not pathlib.Path("broken").exists(), "MATCH-1: expected 1, got 2"
@clause("MATCH-1")
def test_new(adapter_type):
    assert not pathlib.Path("worse").exists(), "MATCH-1: expected 3, got 4"
"""


def failed(name: str, *causes: str, outcome: Outcome = Outcome.FAILED) -> Execution:
    """A failure for these causes."""
    return execution("KEY-1", outcome=outcome, name=name, causes=causes)


def baseline(directory: Path, *executions: Execution) -> Baseline:
    """The baseline of a run of these executions."""
    write_run(record(*executions), directory / "run.json")
    return read_baseline(directory, NAME, "tree")[0]


def test_what_failed_before_is_no_new_failure(tmp_path: Path) -> None:
    before = baseline(
        tmp_path,
        failed("test_a", "MATCH-1"),
        failed("test_known", "MATCH-2", outcome=Outcome.KNOWN_FAILURE),
        failed("test_b", "LOCK-1"),
        execution("KEY-1", name="test_passed"),
        execution("KEY-1", name="test_skipped", outcome=Outcome.SKIPPED),
    )
    told = {
        (name, cause): before.has(execution(name=name).node_id, [cause])
        for name in ("test_a", "test_known", "test_passed", "test_skipped", "test_absent")
        for cause in ("MATCH-1", "MATCH-2", "LOCK-1", "POOL-1")
    }
    expected = {("test_a", "MATCH-1"), ("test_known", "MATCH-2")}
    # LOCK-1 is a law: chance decides which of the executed tests meets it.
    expected |= {(name, "LOCK-1") for name in ("test_a", "test_known", "test_passed")}
    assert {pair for pair, is_old in told.items() if is_old} == expected, f"expected {expected}, got {told}"
    assert not before.has(execution(name="test_a").node_id, ["MATCH-1", "POOL-1"]), "a further cause is new"
    assert not before.has(execution(name="test_b").node_id, ["LOCK-1", "MATCH-1"]), "a cause beside a broken law is new"
    assert not before.has(execution(name="test_a").node_id, []), "a failure without a cause is new"


def test_a_test_that_was_renamed_since_is_no_new_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = (execution(name=name).node_id.partition("[")[0] for name in ("test_old", "test_new"))
    monkeypatch.setattr(known_failures, "RENAMED", {old: new})
    before = baseline(tmp_path, failed("test_old", "MATCH-1"))
    now = replace(failed("test_new", "MATCH-1"), outcome=Outcome.PASSED)
    assert before.has(now.node_id, ["MATCH-1"]), f"expected the failure of test_old, got {before}"
    told = list(before.summary([now]))
    assert told[1:] == [f"  fixed: {now.node_id}"], f"expected the test by its new id, got {told}"


@pytest.mark.parametrize(
    ("versions", "profile", "told"),
    [
        ({"contract": 99}, "tree", "contract version of the baseline is 99"),
        ({"interface": 99}, "tree", "adapter interface version of the baseline is 99"),
        ({}, "blocks", "profile of the baseline is tree, but that of this run is blocks"),
    ],
)
def test_a_baseline_whose_tests_mean_something_else_is_refused(
    tmp_path: Path, versions: dict[str, int], profile: str, told: str
) -> None:
    run_record = record(PASSED)
    write_run(replace(run_record, versions=replace(run_record.versions, **versions)), tmp_path / "run.json")
    with pytest.raises(ConfigurationError, match=told):
        read_baseline(tmp_path / "run.json", NAME, profile)


def test_another_adapter_is_a_warning(tmp_path: Path) -> None:
    write_run(record(PASSED), tmp_path / "run.json")
    assert read_baseline(tmp_path, NAME, "tree")[1] == "", "the same adapter needs none"
    told = read_baseline(tmp_path, "other:Adapter", "tree")[1]
    assert told.endswith(f"is a run of {NAME}, not of other:Adapter"), f"got {told}"


def run_on_baseline(pytester: pytest.Pytester, *broken: str) -> tuple[pytest.RunResult, RunRecord]:
    """A run whose tests fail where these files are, on the baseline of a run with the file `broken`."""
    write_suite(pytester, SUITE)
    (pytester.path / "broken").touch()
    assert run(pytester, "--hicache-report", "before.json").ret == 1, "the baseline has a failure"
    (pytester.path / "broken").unlink()
    for name in broken:
        (pytester.path / name).touch()
    result = run(pytester, "--hicache-report", "after.json", "--hicache-baseline", "before.json")
    return result, read_run(pytester.path / "after.json")


@pytest.mark.parametrize(
    ("broken", "code", "outcomes", "told"),
    [
        (("broken",), 0, (Outcome.KNOWN_FAILURE, Outcome.PASSED), "1 failed before, 0 fixed"),
        (("broken", "worse"), 1, (Outcome.KNOWN_FAILURE, Outcome.FAILED), "1 failed before, 0 fixed"),
        ((), 0, (Outcome.PASSED, Outcome.PASSED), "0 failed before, 1 fixed"),
    ],
)
def test_pytest_fails_for_new_failures_alone(
    pytester: pytest.Pytester, broken: tuple[str, ...], code: int, outcomes: tuple[Outcome, ...], told: str
) -> None:
    result, after = run_on_baseline(pytester, *broken)
    found = tuple(one.outcome for one in after.executions)
    assert (result.ret, found) == (code, outcomes), f"expected {code} and {outcomes}, got {result.ret} and {found}"
    result.stdout.fnmatch_lines([f"baseline *{told}"])
    if not broken:
        result.stdout.fnmatch_lines(["  fixed: conformance/test_it.py::test_old"])


def test_the_command_refuses_the_baseline_of_another_contract(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_record = record(PASSED)
    write_run(replace(run_record, versions=replace(run_record.versions, contract=99)), tmp_path / "run.json")
    stage = FakeStage("conformance", (PASSED,), None)
    ended, output = run_command(monkeypatch, tmp_path / "out", stage, "--baseline", str(tmp_path / "run.json"))
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert "contract version of the baseline is 99" in output, f"expected the version: {output}"


def test_the_command_tells_what_was_fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = replace(PASSED, outcome=Outcome.FAILED, causes=("KEY-1",))
    write_run(record(before, implementation=FLAT_CACHE), tmp_path / "run.json")
    stage = FakeStage("conformance", (PASSED,), None)
    _, output = run_command(monkeypatch, tmp_path / "out", stage, "--baseline", str(tmp_path))
    assert f"fixed: {PASSED.node_id}" in output, f"expected the test: {output}"
