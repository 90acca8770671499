"""`hicache verify`: what it runs, what it shows, and how it ends."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.cli.stage import Progress, StageResult
from hicache.cli.verify import verify
from hicache.testing.report import Execution, Outcome, read_run
from hicache.tests.kit.suite_runs import HOSTILE, execution, record

FLAT = "hicache.tests.kit.flat_cache:FlatCache"
PASSED = execution("KEY-1")
FAILED = execution("KEY-2", outcome=Outcome.FAILED, reason="expected 1, got 2", name="test_two")


@dataclass(frozen=True, slots=True)
class FakeStage:
    """Ends at once with what it was given."""

    name: str
    executions: tuple[Execution, ...] | None
    problem: str | None

    def run(self, progress: Progress) -> StageResult:
        """Half of the way, and the result."""
        progress(50, 100)
        run = None if self.executions is None else record(*self.executions)
        return StageResult(self.name, run, self.problem, 1.5)


def shown(stages: list[FakeStage], directory: Path) -> str:
    """What a verification prints."""
    output = io.StringIO()
    verify(stages, directory, Console(file=output, width=100))
    return output.getvalue()


def run_command(
    monkeypatch: pytest.MonkeyPatch, directory: Path, conformance: FakeStage, *arguments: str
) -> tuple[int, str]:
    """`hicache verify` in which conformance ends as given, and everything else passes: its exit code and output."""
    others = {name: FakeStage(name, (execution("KEY-1", suite=name),), None) for name in ("properties", "replay")}
    stages = {"conformance": conformance, **others}
    monkeypatch.setattr("hicache.cli.left_out.missing_libraries", lambda: ["transformers"])
    monkeypatch.setattr("hicache.cli.suite_stage.SuiteStage", lambda name, *_: stages[name])
    monkeypatch.setattr("hicache.cli.replay_stage.ReplayStage", lambda *_: stages["replay"])
    return run_app("--adapter", FLAT, "--report", str(directory), *arguments)


def run_app(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of `hicache verify`."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["verify", *arguments])
    return result.exit_code, result.output


def test_all_stages_end_in_one_report(tmp_path: Path) -> None:
    other = execution("KEY-1", suite="properties")
    output = shown([FakeStage("conformance", (PASSED,), None), FakeStage("properties", (other,), None)], tmp_path)
    merged = read_run(tmp_path / "run.json")
    assert merged.executions == (PASSED, other), f"the report holds {merged.executions}"
    assert f"verified: no test failed\nreport: {tmp_path / 'report.html'}" in output, (
        f"the last lines name the report: {output}"
    )


def test_the_table_counts_each_outcome(tmp_path: Path) -> None:
    outcomes = [*Outcome, Outcome.PASSED, Outcome.SKIPPED, Outcome.SKIPPED]
    executions = tuple(execution("KEY-1", outcome=one, name=f"test_{n}") for n, one in enumerate(outcomes))
    output = shown([FakeStage("conformance", executions, None)], tmp_path)
    row = next(line for line in output.splitlines() if "conformance" in line and "│" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["conformance", "4", "2", "1", "1", "3", "1.5"], f"executed, passed, failed, known, skipped: {row}"


def test_the_last_failures_are_shown_with_their_commands(tmp_path: Path) -> None:
    names = [f"test_{'long_' * 20}{number}" for number in range(7)]
    failures = tuple(execution("KEY-1", outcome=Outcome.FAILED, reason=HOSTILE, name=name) for name in names)
    output = shown([FakeStage("conformance", failures, None)], tmp_path)
    assert "7 failures; these are the last 5" in output, f"what is left out is said: {output}"
    assert [failure.replay in output for failure in failures] == [False] * 2 + [True] * 5, f"whole commands: {output}"
    assert "failed: conformance" in output, f"the verdict names the suite: {output}"


def test_without_a_passed_test_nothing_is_verified(tmp_path: Path) -> None:
    output = shown([FakeStage("conformance", (execution("KEY-1", outcome=Outcome.SKIPPED),), None)], tmp_path)
    assert "failed: no test passed" in output, f"a run of skipped tests shows nothing: {output}"


@pytest.mark.parametrize(
    ("conformance", "code"),
    [
        (FakeStage("conformance", (PASSED,), None), 0),
        (FakeStage("conformance", (PASSED, FAILED), None), 1),
        (FakeStage("conformance", (PASSED,), "pytest ended with code 3"), 1),
        (FakeStage("conformance", None, "pytest ended with code 4"), 1),
        (FakeStage("conformance", (execution("KEY-1", outcome=Outcome.SKIPPED),), None), 0),
    ],
)
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conformance: FakeStage, code: int) -> None:
    ended, output = run_command(monkeypatch, tmp_path, conformance)
    assert ended == code, f"expected {code}, got {ended}: {output}"
    assert conformance.problem is None or conformance.problem in output, f"the problem is told: {output}"
    assert (tmp_path / "report.html").exists(), "whatever ran is reported"


def test_an_adapter_that_cannot_be_loaded_is_a_usage_error(tmp_path: Path) -> None:
    ended, output = run_app("--adapter", "no_such_module:Cache", "--report", str(tmp_path))
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert "no_such_module" in output, f"the adapter is named: {output}"
    assert not list(tmp_path.iterdir()), "nothing ran"


def test_known_failures_that_cannot_be_read_are_a_usage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text("[[failure]]\nid = 3\n")
    stage = FakeStage("conformance", None, None)
    ended, output = run_command(monkeypatch, tmp_path / "report", stage, "--known-failures", str(path))
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert "known.toml" in output, f"the file is named: {output}"


@pytest.mark.parametrize(
    ("missing", "options", "accuracy", "reason"),
    [
        ([], (), ["accuracy"], None),
        (["lm_eval"], (), [], "not installed: lm_eval; run pip install 'hicache[accuracy]', or make .venv/models"),
        ([], ("--quick",), [], "takes minutes and is not part of --quick"),
    ],
    ids=["models", "no-models", "quick"],
)
def test_what_a_cache_declares_and_the_machine_has_is_run_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    missing: list[str],
    options: tuple[str, ...],
    accuracy: list[str],
    reason: str | None,
) -> None:
    begun: list[str] = []

    def stage(name: str, *_: object) -> FakeStage:
        begun.append(name)
        return FakeStage(name, (execution("KEY-1", suite=name),), None)

    monkeypatch.setattr("hicache.cli.suite_stage.SuiteStage", stage)
    monkeypatch.setattr("hicache.cli.replay_stage.ReplayStage", lambda *_: stage("replay"))
    monkeypatch.setattr("hicache.cli.left_out.missing_libraries", lambda: missing)
    ended, output = run_app("--report", str(tmp_path), *options)
    assert ended == 0, f"expected 0, got {ended}: {output}"
    expected = ["conformance", "properties", "distributed_tests", *accuracy, "replay"]
    assert begun == expected, f"the reference declares ranks and bytes: expected {expected}, got {begun}"
    told = [line.removeprefix("not run: ") for line in output.splitlines() if line.startswith("not run: ")]
    assert told == ([f"accuracy: {reason}"] if reason else []), f"expected {reason!r}, got {told}"


def test_what_a_cache_does_not_declare_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended, output = run_command(monkeypatch, tmp_path, FakeStage("conformance", (PASSED,), None))
    assert ended == 0, f"expected 0, got {ended}: {output}"
    assert "not run: distributed_tests: FlatCache does not declare RANKS" in output, f"expected it to be said: {output}"


def test_help_is_quick_to_come() -> None:
    heavy = "{'torch', 'matplotlib', 'jinja2', 'pytest', 'hypothesis'}"
    program = f"import sys, hicache.cli.app; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert loaded == "[]\n", f"the commands' names alone load {loaded}"
