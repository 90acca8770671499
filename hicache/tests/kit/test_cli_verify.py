"""`hicache verify`: its stages, what it shows, and how it ends."""

from __future__ import annotations

import io
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import ClassVar

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hicache import __version__
from hicache.cli import stage as stage_module
from hicache.cli.app import app
from hicache.cli.described import describe
from hicache.cli.replay_stage import Replays, ReplayStage
from hicache.cli.stage import (
    INTERRUPTED,
    StageProgress,
    StageResult,
    SuiteStage,
    Verification,
    ended,
    follow,
    suite_folder,
)
from hicache.cli.verify import STAGES, left_out, verify
from hicache.cli.verify_view import run_with_progress, show_results
from hicache.errors import ConfigurationError
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.devices import missing_device
from hicache.testing.levels import Level
from hicache.testing.plugin.known_failures import KnownFailure
from hicache.testing.replay import HostOutcome, ReplayOutcome, ReplaySettings, StorageOutcome, replay_sample, samples
from hicache.testing.report import Execution, Outcome, read_run, write_run
from hicache.tests.kit.hosted_cache import FlatCache, HostedCache
from hicache.tests.kit.suite_runs import FLAT_CACHE, HOSTILE, execution, record

OF_DEVICE = tuple(clause.id for clause in CONTRACT.values() if clause.tier in ("device", "config"))
"""Clauses of the level `device`; the capabilities of `record` decide which of them apply."""

PASSED = execution(*OF_DEVICE)
FAILED = execution("KEY-2", outcome=Outcome.FAILED, reason="expected 1, got 2", name="test_two")


@dataclass(frozen=True, slots=True)
class FakeStage:
    """Ends at once with what it was given."""

    name: str
    executions: tuple[Execution, ...] | None
    problem: str | None
    capabilities: tuple[str, ...] = ("BYTES", "SWA")

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Half of the way, and the result."""
        progress(50, 100)
        run = None
        if self.executions is not None:
            run = replace(record(*self.executions), capabilities=self.capabilities)
        return StageResult(self.name, run, self.problem, 1.5)


def shown(stages: Sequence[FakeStage], directory: Path) -> str:
    """What a verification prints."""
    output = io.StringIO()
    verify(stages, directory, Console(file=output, width=100), [Level.DEVICE])
    return output.getvalue()


def rows(output: str) -> dict[str, list[str]]:
    """The cells of the table that a verification prints, by suite; the headings too."""
    words = [line.split() for line in output.splitlines()]
    return {row[0]: row[1:] for row in words if len(row) == 8}


def run_command(
    monkeypatch: pytest.MonkeyPatch, directory: Path, conformance: FakeStage, *arguments: str
) -> tuple[int, str]:
    """`hicache verify` in which conformance ends as given, and everything else passes: its exit code and output."""
    stages = {name: FakeStage(name, (execution("KEY-1", suite=name),), None) for name in STAGES}
    stages["conformance"] = conformance
    monkeypatch.setattr("hicache.cli.verify.missing_libraries", lambda: ["transformers"])
    monkeypatch.setattr("hicache.cli.verify.SuiteStage", lambda name, *_: stages[name])
    monkeypatch.setattr("hicache.cli.replay_stage.ReplayStage", lambda *_: stages["replay"])
    return run_app("--adapter", FLAT_CACHE, "--report", str(directory), *arguments)


def run_app(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of `hicache verify`."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["verify", *arguments])
    return result.exit_code, result.output


def test_all_stages_end_in_one_report(tmp_path: Path) -> None:
    other = execution("KEY-1", suite="properties")
    output = shown([FakeStage("conformance", (PASSED,), None), FakeStage("properties", (other,), None)], tmp_path)
    merged = read_run(tmp_path / "run.json")
    assert merged.executions == (PASSED, other), f"the report holds {merged.executions}"
    assert f"verified: device: no test failed\nreport: {tmp_path / 'report.html'}" in output, (
        f"the last lines name the report: {output}"
    )


def test_what_no_test_ran_on_a_gpu_is_told_before_the_levels(tmp_path: Path) -> None:
    lines = shown([FakeStage("conformance", (PASSED,), None, ("HOST", "RANKS"))], tmp_path).splitlines()
    told = lines.index("No test ran on a GPU of: CUDA streams, pinned host memory, NCCL")
    assert lines[told + 1].startswith("device: "), f"the levels follow: {lines}"


def test_the_table_counts_each_outcome(tmp_path: Path) -> None:
    outcomes = [*Outcome, Outcome.PASSED, Outcome.SKIPPED, Outcome.SKIPPED]
    executions = tuple(execution("KEY-1", outcome=one, name=f"test_{n}") for n, one in enumerate(outcomes))
    output = shown([FakeStage("conformance", executions, None)], tmp_path)
    cells = rows(output)["conformance"]
    assert cells == ["4", "2", "1", "1", "3", "49", "1.5"], f"executed to verbs, then seconds: {cells}"


def test_the_table_of_a_long_run_fits_80_columns() -> None:
    long = replace(record(replace(PASSED, operations=123_456_789)), capabilities=())
    output = io.StringIO()
    show_results([StageResult("distributed_tests", long, None, 12_345.6)], Console(file=output, width=80))
    assert rows(output.getvalue()) == {
        "suite": ["executed", "passed", "failed", "known", "skipped", "verbs", "seconds"],
        "distributed_tests": ["1", "1", "0", "0", "0", "123,456,789", "12345.6"],
    }, f"expected no word that is cut:\n{output.getvalue()}"


def test_each_cause_is_shown_once_with_the_command_of_its_smallest_example(tmp_path: Path) -> None:
    names = [f"test_{'long_' * 20}{number}" for number in range(7)]
    causes = ["KEY-1"] * 4 + ["LOCK-1"] * 2 + ["KeyError in Mine.match"]
    reasons = [HOSTILE + "!" * (7 - number) for number in range(7)]
    failures = tuple(
        execution("KEY-2", outcome=Outcome.FAILED, reason=reason, name=name, causes=(cause,))
        for name, reason, cause in zip(names, reasons, causes, strict=True)
    )
    output = shown([FakeStage("conformance", failures, None)], tmp_path)
    for told in (
        "✗ KEY-1, found by 4 tests",
        "✗ LOCK-1, found by 2 tests",
        "✗ KeyError in Mine.match, found by 1 test",
    ):
        assert told in output, f"expected {told!r}, got {output}"
    shortest = [number in (3, 5, 6) for number in range(7)]
    assert [failure.replay in output for failure in failures] == shortest, f"whole commands: {output}"
    assert "failed: conformance" in output, f"the verdict names the suite: {output}"


@pytest.mark.parametrize("problem", [INTERRUPTED, "no output for 300 s"])
def test_a_stage_that_did_not_come_to_its_end_verifies_no_level(tmp_path: Path, problem: str) -> None:
    ended = FakeStage("properties", (execution("KEY-1", suite="properties"),), problem)
    output = shown([FakeStage("conformance", (PASSED,), None), ended], tmp_path)
    assert "device: not verified, a part of the run is missing" in output, f"the rest was never run: {output}"


def test_without_a_sequence_of_operations_the_verdict_begins_with_that(tmp_path: Path) -> None:
    skipped = execution("EVICT-1", outcome=Outcome.SKIPPED, lacks=("SIZES",), name="test_two")
    lines = shown([FakeStage("conformance", (execution("LOCK-3"), skipped), None)], tmp_path).splitlines()
    told = lines.index("not verified: no sequence of operations was tried, and no eviction: declare SIZES")
    levels = [number for number, line in enumerate(lines) if line.startswith("device: ")]
    assert levels[0] > told, f"expected it before the levels, got {lines}"


def test_the_verdict_says_how_many_tests_that_are_listed_as_flaky_passed(tmp_path: Path) -> None:
    passed = replace(execution("LOCK-3"), reason="flaky bug: a race")
    failed = execution(
        "LOCK-1", outcome=Outcome.KNOWN_FAILURE, reason="flaky bug: a race\nLOCK-1: lost", name="test_two"
    )
    lines = shown([FakeStage("conformance", (passed, failed), None)], tmp_path).splitlines()
    assert "listed as flaky: 1 passed, 1 failed" in lines, f"expected both numbers, got {lines}"


def test_without_a_passed_test_nothing_is_verified(tmp_path: Path) -> None:
    output = shown([FakeStage("conformance", (execution("KEY-1", outcome=Outcome.SKIPPED),), None)], tmp_path)
    assert "not verified: device" in output, f"a run of skipped tests shows nothing: {output}"


@pytest.mark.parametrize(
    ("executions", "code", "verdict"),
    [
        ((execution("KEY-1"),), 0, "no test failed, and no level is verified"),
        ((execution("KEY-1", outcome=Outcome.SKIPPED),), 1, "failed: no clause was executed"),
        ((execution(name="test_of_the_suite"),), 1, "failed: no clause was executed"),
        ((), 1, "failed: no clause was executed"),
    ],
    ids=["in-part", "skipped", "no-clause", "no-test"],
)
def test_without_a_verified_level_no_success_is_told(
    tmp_path: Path, executions: tuple[Execution, ...], code: int, verdict: str
) -> None:
    output = io.StringIO()
    ended_with = verify([FakeStage("conformance", executions, None)], tmp_path, Console(file=output, width=100), [])
    found = (ended_with, output.getvalue().splitlines()[-2])
    assert found == (code, verdict), f"nothing is required, and nothing failed: {output.getvalue()}"


@pytest.mark.parametrize(
    "executions",
    [
        (),
        (execution(suite="properties", name="test_of_the_suite"),),
        (execution("KEY-1", suite="properties", outcome=Outcome.SKIPPED),),
    ],
    ids=["no-test", "no-clause", "skipped"],
)
def test_a_stage_in_which_no_clause_was_executed_is_not_ok(tmp_path: Path, executions: tuple[Execution, ...]) -> None:
    idle = FakeStage("properties", executions, None)
    output = shown([FakeStage("conformance", (PASSED,), None), idle], tmp_path)
    assert "conformance: ok: 1 passed" in output, f"a clause was executed: {output}"
    assert "properties: no clause was executed: " in output, f"expected no ok: {output}"
    assert "no clause was executed by: properties\n" in output, f"expected a line beside the verdict: {output}"
    assert "verified: device: no test failed" in output, f"the levels count clauses, in any stage: {output}"


def test_where_no_stage_runs_no_success_is_told(tmp_path: Path) -> None:
    output = io.StringIO()
    code = verify([], tmp_path, Console(file=output, width=100), [])
    verdict = output.getvalue().splitlines()[-1]
    assert (code, verdict) == (1, "failed: no clause was executed"), f"got {code}: {output.getvalue()}"


@pytest.mark.parametrize(
    ("conformance", "code"),
    [
        (FakeStage("conformance", (PASSED,), None), 0),
        (FakeStage("conformance", (PASSED, FAILED), None), 1),
        (FakeStage("conformance", (PASSED,), "pytest ended with code 3"), 1),
        (FakeStage("conformance", None, "pytest ended with code 4"), 1),
        (FakeStage("conformance", (execution("KEY-1", outcome=Outcome.SKIPPED),), None), 3),
        (FakeStage("conformance", (execution("KEY-1"),), None), 3),
    ],
)
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conformance: FakeStage, code: int) -> None:
    ended, output = run_command(monkeypatch, tmp_path, conformance)
    assert ended == code, f"expected {code}, got {ended}: {output}"
    assert conformance.problem is None or conformance.problem in output, f"the problem is shown: {output}"
    assert (tmp_path / "report.html").exists(), "the stages that ran are reported"


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
        ([], ("--full",), ["accuracy"], None),
        (
            ["lm_eval"],
            ("--full",),
            [],
            "not installed: lm_eval; run pip install 'hicache[accuracy]', or make .venv/models",
        ),
        ([], (), [], "takes minutes; run with --full"),
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

    class RecordedStage(FakeStage):
        def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
            begun.append(self.name)
            return super().run(progress, interrupt)

    def stage(name: str, *_: object) -> FakeStage:
        return RecordedStage(name, (execution(*OF_DEVICE, suite=name),), None)

    monkeypatch.setattr("hicache.cli.verify.SuiteStage", stage)
    monkeypatch.setattr("hicache.cli.replay_stage.ReplayStage", lambda *_: stage("replay"))
    monkeypatch.setattr("hicache.cli.verify.missing_libraries", lambda: missing)
    ended, output = run_app("--report", str(tmp_path), *options)
    assert ended == 0, f"expected 0, got {ended}: {output}"
    expected = ["replay", "conformance", "properties", "distributed_tests", *accuracy]
    assert sorted(begun) == sorted(expected), f"the reference has ranks and bytes: expected {expected}, got {begun}"
    told = [line.removeprefix("not run: ") for line in output.splitlines() if line.startswith("not run: ")]
    assert told == ([f"accuracy: {reason}"] if reason else []), f"expected {reason!r}, got {told}"


class MeetingStage(FakeStage):
    """Ends when as many stages run at a time as `meeting` waits for."""

    meeting: ClassVar[Barrier]

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Wait for the others."""
        self.meeting.wait(60.0)
        return super().run(progress, interrupt)


@pytest.mark.parametrize("names", [("conformance", "properties"), ("replay", "properties", "distributed_tests")])
def test_two_stages_run_at_a_time(tmp_path: Path, names: tuple[str, ...]) -> None:
    MeetingStage.meeting = Barrier(2)
    alone = [FakeStage(name, (execution(*OF_DEVICE, suite=name),), None) for name in names[:-2]]
    meeting = [MeetingStage(name, (execution(*OF_DEVICE, suite=name),), None) for name in names[-2:]]
    output = shown([*alone, *meeting], tmp_path)
    places = [output.index(name[:9], output.index("suite")) for name in names]
    assert places == sorted(places), f"expected the order of the stages:\n{output}"


class LonelyStage(FakeStage):
    """Fails if another one runs at the same time."""

    meeting: ClassVar[Barrier]

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Wait for another one for a short time."""
        result = super().run(progress, interrupt)
        try:
            self.meeting.wait(0.2)
        except BrokenBarrierError:
            return result
        return replace(result, problem="another stage runs")


@pytest.mark.parametrize("options", [("-x",), ("--jobs", "1")], ids=["stops", "one-job"])
def test_one_stage_runs_at_a_time_where_one_process_is_to_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...]
) -> None:
    LonelyStage.meeting = Barrier(2)

    def stage(name: str, *_: object) -> FakeStage:
        return LonelyStage(name, (execution(*OF_DEVICE, suite=name),), None)

    monkeypatch.setattr("hicache.cli.verify.SuiteStage", stage)
    monkeypatch.setattr("hicache.cli.replay_stage.ReplayStage", lambda *_: stage("replay"))
    ended, output = run_app("--report", str(tmp_path), *options)
    assert ended == 0, f"expected 0, got {ended}: {output}"


class InterruptedStage(FakeStage):
    """Is interrupted once the stage beside it runs."""

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Wait for the other one, and say that Ctrl-C ended it."""
        MeetingStage.meeting.wait(60.0)
        return super().run(progress, interrupt)


class EndlessStage(FakeStage):
    """Runs until it is interrupted."""

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Wait for the interrupt."""
        MeetingStage.meeting.wait(60.0)
        is_set = interrupt.wait(60.0)
        return replace(super().run(progress, interrupt), problem=INTERRUPTED if is_set else "not interrupted")


def test_an_interrupt_ends_the_stage_beside_as_well(tmp_path: Path) -> None:
    MeetingStage.meeting = Barrier(2)
    stages = [InterruptedStage("properties", (PASSED,), INTERRUPTED), EndlessStage("distributed_tests", (), None)]
    output = shown(stages, tmp_path)
    assert "distributed_tests: interrupted" in output, f"expected it to be ended:\n{output}"


def test_a_run_that_stops_at_the_first_failure_starts_no_stage_of_ranks_after_it() -> None:
    stages = [FakeStage("properties", (FAILED,), None), FakeStage("distributed_tests", (PASSED,), None)]
    results = run_with_progress(stages, Console(file=io.StringIO()), stops=True)
    assert [one.name for one in results] == ["properties"], f"expected no other stage, got {results}"


def test_what_a_cache_does_not_declare_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended, output = run_command(monkeypatch, tmp_path, FakeStage("conformance", (PASSED,), None))
    assert ended == 0, f"expected 0, got {ended}: {output}"
    assert "not run: distributed_tests: FlatCache does not declare RANKS" in output, f"expected it to be said: {output}"


def test_help_is_quick_to_come() -> None:
    heavy = "{'torch', 'matplotlib', 'jinja2', 'pytest', 'hypothesis'}"
    program = f"import sys, hicache.cli.app; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert loaded == "[]\n", f"the commands' names alone load {loaded}"


HOSTED = "hicache.tests.kit.hosted_cache:HostedCache"
REFERENCE = "hicache.testing.caches.reference:ReferenceAdapter"
BROKEN = "after 3 requests: POOL-1: slot 7: expected one owner, got two"


def ignore(done: int, total: int, failures: int = 0) -> None:
    """Progress without a display."""


def python(program: str) -> list[str]:
    """The command that runs a program in a process of its own."""
    return [sys.executable, "-c", program]


def test_a_process_is_followed_and_logged(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []
    program = "print('[gw0] [  5%] FAILED a'); print('no share'); print('[gw1] [100%] PASSED b')"
    ending = follow(
        python(program), tmp_path / "log", tmp_path / "run.json", lambda *counts: seen.append(counts), Event()
    )
    assert ending == ended(0), f"the process ended well, got {ending}"
    assert seen == [(5, 100, 1), (100, 100, 1)], f"expected 5 % and 100 %, and one failure, got {seen}"
    assert len((tmp_path / "log").read_text().splitlines()) == 3, "all lines are in the log"


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("3", "3")])
def test_torch_has_one_thread_in_a_process_unless_the_environment_says_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    log = tmp_path / "log"
    follow(python("import os; print(os.environ['OMP_NUM_THREADS'])"), log, tmp_path / "run.json", ignore, Event())
    assert log.read_text() == f"{threads}\n", f"expected {threads}, got {log.read_text()!r}"


def test_a_process_has_the_plugins_that_are_installed_and_no_options_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "HICACHE_ADAPTER"]
    for name in names:
        monkeypatch.setenv(name, "1")
    program = f"import os; print([name for name in {names} if name in os.environ])"
    follow(python(program), tmp_path / "log", tmp_path / "run.json", ignore, Event())
    assert (tmp_path / "log").read_text() == "[]\n", f"got {(tmp_path / 'log').read_text()}"


def test_what_a_process_says_of_its_errors_is_logged(tmp_path: Path) -> None:
    program = "import sys; print('a line'); sys.exit('the cause')"
    ending = follow(python(program), tmp_path / "log", tmp_path / "run.json", ignore, Event())
    assert ending == ended(1), f"expected code 1, got {ending}"
    assert set((tmp_path / "log").read_text().splitlines()) == {"a line", "the cause"}, "both streams are in the log"


def test_a_process_that_falls_silent_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stage_module, "_MAX_SILENCE_S", 1.0)
    program = "import threading; print('begun', flush=True); threading.Event().wait()"
    ending = follow(python(program), tmp_path / "log", tmp_path / "run.json", ignore, Event())
    assert ending == "wrote no output for 1 s", f"a process that never ends has to be ended, got {ending}"


LITTER = """
import os, pathlib, tempfile, threading
pathlib.Path(folder, "asked").write_text(" ".join([tempfile.gettempdir(), os.environ["TEMP"], os.environ["TMP"]]))
pathlib.Path(tempfile.mkdtemp(), "large").write_text("x")
tempfile.mkstemp()
print("[ 10%] begun", flush=True)
"""


@pytest.mark.parametrize(
    ("last", "ending"),
    [
        ("pass", ended(0)),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("threading.Event().wait()", "wrote no output for 5 s"),
    ],
    ids=["ends", "is-killed", "hangs"],
)
def test_no_temporary_file_of_a_process_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, last: str, ending: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(shared))
    monkeypatch.setattr(stage_module, "_MAX_SILENCE_S", 5.0)
    program = f"folder = {str(tmp_path)!r}\n{LITTER}\n{last}"
    ended = follow(python(program), tmp_path / "log", tmp_path / "run.json", ignore, Event())
    assert ended == ending, f"expected {ending}, got {ended}: {(tmp_path / 'log').read_text()}"
    asked = set((tmp_path / "asked").read_text().split())
    assert len(asked) == 1, f"expected one folder, by each of its names, got {asked}"
    assert asked != {str(shared)}, "a process has a temporary folder of its own"
    assert not list(shared.iterdir()), f"expected nothing that stays, got {list(shared.iterdir())}"


def run_suite(monkeypatch: pytest.MonkeyPatch, directory: Path, ending: str, *executions: Execution) -> StageResult:
    """A suite whose pytest ends so, and reports these executions before if there are any."""

    def report(command: list[str], log: Path, *_: object) -> str:
        assert log.parent == directory / "conformance", f"the log lies beside the report, got {log}"
        record_file = log.parent / "run.json"
        assert command[command.index("--hicache-report") + 1] == str(record_file), f"expected {record_file}: {command}"
        log.write_text("".join(f"line {number}\n" for number in range(100)))
        if executions:
            write_run(record(*executions), log.parent / "run.json")
        return ending

    monkeypatch.setattr(stage_module, "follow", report)
    return SuiteStage("conformance", Verification(FLAT_CACHE, True, directory, None), ()).run(ignore, Event())


def test_a_suite_ends_with_its_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run_suite(monkeypatch, tmp_path, ended(0), execution("KEY-1"))
    assert result.record == record(execution("KEY-1")), f"expected the record that pytest wrote, got {result.record}"
    assert not result.failed, f"everything passed, got {result}"


def test_failed_tests_explain_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run_suite(monkeypatch, tmp_path, ended(1), execution("KEY-1", outcome=Outcome.FAILED))
    assert (result.failed, result.problem) == (True, None), f"the failure says it all, got {result}"


def test_a_suite_that_asks_too_much_of_a_cache_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    skipped, of_the_suite = execution("KEY-1", outcome=Outcome.SKIPPED), execution(name="test_of_the_suite")
    result = run_suite(monkeypatch, tmp_path, ended(5), skipped, of_the_suite)
    assert not result.failed, f"everything was skipped for what the cache does not declare, got {result}"


@pytest.mark.parametrize("ending", [ended(1), ended(3), ended(-signal.SIGKILL), "wrote no output for 300 s"])
def test_an_ending_that_no_test_explains_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    result = run_suite(monkeypatch, tmp_path, ending, execution("KEY-1"))
    assert result.failed, f"{ending} is a failure"
    assert result.problem is not None, f"{ending} is a problem"
    assert f"the process {ending}" in result.problem, f"the ending is shown: {result.problem}"
    assert result.problem.endswith("line 98\nline 99"), f"with the end of the log: {result.problem}"
    assert "line 1\n" not in result.problem, f"and no more of it: {result.problem}"


def test_the_record_of_an_earlier_run_is_not_taken_for_this_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_suite(monkeypatch, tmp_path, ended(0), execution("KEY-1"))
    result = run_suite(monkeypatch, tmp_path, ended(4))
    assert result.failed, f"this run reported nothing, got {result}"
    assert result.record is not None, "that it did is in the record"
    told = [(one.outcome, one.causes) for one in result.record.executions]
    expected = "conformance: the process ended with code 4, and left no record"
    assert told == [(Outcome.FAILED, (expected,))], f"expected this alone, got {told}"


def test_a_record_that_was_not_written_to_its_end_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, written = tmp_path / "run.json", Path.write_text

    def killed(self: Path, text: str, encoding: str) -> int:
        written(self, text[:100], encoding=encoding)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        write_run(record(execution("KEY-1")), path)
    assert not path.exists(), f"half a record cannot be read: {path.read_text()}"


def test_suites_lie_beside_the_package_or_inside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hicache").mkdir()
    monkeypatch.setattr("hicache.__file__", str(tmp_path / "hicache/__init__.py"))
    assert suite_folder("properties") == tmp_path / "hicache/suites/properties", "as installed"
    (tmp_path / "pyproject.toml").touch()
    assert suite_folder("properties") == tmp_path / "properties", "as checked out"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> ReplayOutcome:
    (sample,) = samples(FlatCache)
    return replay_sample(FlatCache, sample, tmp_path_factory.mktemp("replay"), None)


def run_replay(monkeypatch: pytest.MonkeyPatch, ending: ReplayOutcome | Exception, *known: KnownFailure) -> Execution:
    """The replay stage, with a replay that ends so."""

    def replayed(*_: object) -> ReplayOutcome:
        if isinstance(ending, Exception):
            raise ending
        return ending

    monkeypatch.setattr("hicache.cli.replay_stage.replay_sample", replayed)
    record = Replays(FLAT_CACHE, FlatCache, Path("some where"), known).run(ignore)
    assert record.capabilities == ("NAMESPACES", "PAGED", "RESET", "VERBS"), f"got {record.capabilities}"
    return record.executions[0]


def test_a_replay_with_a_configuration_that_the_cache_refuses_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run_replay(monkeypatch, ConfigurationError("no host tier for SWA and MAMBA together"))
    expected = (Outcome.SKIPPED, "FlatCache refuses it: no host tier for SWA and MAMBA together", ())
    assert (told.outcome, told.reason, told.causes) == expected, f"expected {expected}, got {told}"


def test_a_replay_to_the_end_has_passed(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    told = run_replay(monkeypatch, outcome)
    assert (told.outcome, told.clauses) == (Outcome.PASSED, ("REQ-4",)), f"a cache that shows nothing: {told}"
    assert told.operations == sum(latency.calls for latency in outcome.latency.values()) > 0, f"got {told}"
    expected = f"hicache replay 'some where/trace.jsonl' --adapter {FLAT_CACHE} --components full --capacity 25%"
    assert told.replay.startswith(expected), f"expected {expected}, got {told.replay}"


def test_a_broken_law_fails_its_clause(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    told = run_replay(monkeypatch, replace(outcome, broken=BROKEN, causes=("POOL-1",)))
    assert (told.outcome, told.causes, told.reason) == (Outcome.FAILED, ("POOL-1",), BROKEN), f"got {told}"


def test_a_cache_that_raises_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run_replay(monkeypatch, IndexError("slot 7"))
    assert told.outcome is Outcome.FAILED, f"got {told}"
    assert told.reason.startswith("IndexError: slot 7\n"), f"a table shows the first line: {told.reason}"
    assert told.reason.endswith("IndexError: slot 7\n"), f"the traceback is in the reason: {told.reason}"
    assert told.causes == ("IndexError in the test",), f"expected the error as the cause, got {told.causes}"


def test_the_picture_of_an_earlier_replay_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some where").mkdir()
    pictures = [tmp_path / "some where" / name for name in ("replay.svg", "replay-host.svg")]
    for picture in pictures:
        picture.touch()
    monkeypatch.setattr("hicache.cli.replay_stage.run_process", lambda *_: None)
    ReplayStage(Verification(FLAT_CACHE, False, tmp_path / "some where", None)).run(ignore, Event())
    assert not any(picture.exists() for picture in pictures), "a replay that ended early has no picture"


def test_a_host_tier_is_replayed_as_well(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    host = HostOutcome({"full": 1024}, None, None, None, bytes_per_token=None)
    told = [replace(outcome, checks=12), replace(outcome, checks=12, host=host)]
    monkeypatch.setattr("hicache.cli.replay_stage.replay_sample", lambda _, sample, *__: told[sample.name != "replay"])
    seen: list[tuple[int, int]] = []
    replays = Replays(HOSTED, HostedCache, Path("reports"), ())
    record = replays.run(lambda done, total, failures=0: seen.append((done, total)))  # noqa: ARG005
    assert [one.node_id for one in record.executions] == [
        "replay::generated trace",
        "replay::generated trace, device and host",
    ], f"the device alone, and both tiers: {record.executions}"
    clauses = [set(one.clauses) for one in record.executions]
    assert clauses == [{"REQ-4", "POOL-1", "REQ-3"}, {"REQ-4", "POOL-1", "REQ-3", "FLOW-10", "FLOW-7"}], (
        f"loads are looked at where there is a host: {clauses}"
    )


def test_storage_is_replayed_as_well(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    host = HostOutcome({"full": 1024}, None, None, None, bytes_per_token=None)
    storage = StorageOutcome("memory", "wait_complete", 1024, True, None, 0.5, (), ())
    told = replace(outcome, checks=12, host=host, storage=storage)
    monkeypatch.setattr("hicache.cli.replay_stage.replay_sample", lambda *_: told)
    record = Replays(REFERENCE, ReferenceAdapter, Path("reports"), ()).run(ignore)
    titles = [one.node_id for one in record.executions]
    assert titles[2:] == ["replay::generated trace, three tiers and a restart"], f"the third of three: {titles}"
    clauses = set(record.executions[2].clauses)
    assert clauses == {"REQ-4", "POOL-1", "REQ-3", "FLOW-10", "FLOW-7", "FETCH-8", "FLOW-9"}, f"looked at: {clauses}"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_command_of_a_replay_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome, tmp_path: Path, number: int
) -> None:
    asked: list[ReplaySettings] = []

    def replayed(*arguments: ReplaySettings) -> ReplayOutcome:
        asked.append(arguments[-1])
        return outcome

    monkeypatch.setattr("hicache.cli.replay_stage.replay_sample", lambda *_: outcome)
    monkeypatch.setattr("hicache.cli.replay_view.replay_with_progress", replayed)
    (tmp_path / "trace.jsonl").touch()
    record = Replays(REFERENCE, ReferenceAdapter, tmp_path, ()).run(ignore)
    command = shlex.split(record.executions[number].replay)
    result = CliRunner().invoke(app, [*command[1:], "--report", str(tmp_path)])
    assert result.exit_code == 0, f"{command} ended with {result.exit_code}: {result.output}"
    expected = replace(samples(ReferenceAdapter)[number].settings, check_every=1)
    assert asked == [expected], f"{command} asks for {asked}"


def test_a_known_failure_of_a_clause_covers_the_replay(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    known = KnownFailure("known.toml: entry 1 (POOL-1)", "POOL-1", "bug", "frees twice", "", flaky=False)
    told = run_replay(monkeypatch, replace(outcome, broken=BROKEN, causes=("POOL-1",)), known)
    assert (told.outcome, told.reason) == (Outcome.KNOWN_FAILURE, "bug: frees twice"), f"got {told}"
    told = run_replay(monkeypatch, outcome, known)
    assert told.outcome is Outcome.PASSED, f"only a failure can be known, got {told}"


def test_a_cache_that_shows_no_tables_of_its_requests_is_not_replayed() -> None:
    cache = describe(f"{BlockCacheAdapter.__module__}:{BlockCacheAdapter.__name__}")
    assert "replay" not in left_out(cache, quick=True, device=""), "a cache of blocks is replayed by requests"
    told = left_out(replace(cache, capabilities=("REQUESTS",)), quick=True, device="")
    assert told.get("replay") == "BlockCacheAdapter does not declare TABLES", f"expected it to be said: {told}"
    assert "replay" not in left_out(describe(FLAT_CACHE), quick=True, device=""), "a cache of verbs is replayed"


@pytest.mark.skipif(not missing_device("cuda"), reason="this machine has a GPU")
def test_a_device_that_is_missing_is_a_wrong_use(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["verify", "--device", "cuda", "--report", str(tmp_path)])
    assert result.exit_code == 2, f"expected 2, got {result.exit_code}: {result.output}"
    assert "torch finds no CUDA" in result.output, f"expected the reason, got {result.output}"


def test_suites_that_choose_their_devices_are_not_run_on_one() -> None:
    told = left_out(describe(REFERENCE), quick=False, device="cuda")
    assert told.keys() == {"distributed_tests", "accuracy"}, f"got {told}"


def test_the_version_is_shown() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"hicache {__version__}\n"), f"got {result.output}"


def test_the_package_is_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "hicache", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hicache {__version__}\n", f"got {done.stdout}"


@pytest.mark.parametrize("module", ["raises", "exits", "hangs_not"])
def test_an_adapter_whose_import_fails_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    sources = {"raises": "raise RuntimeError('no GPU here')", "exits": "import os; os._exit(3)", "hangs_not": "x = 1"}
    told = {
        "raises": "RuntimeError: no GPU here",
        "exits": "ended with code 3",
        "hangs_not": "hangs_not_on_import has no Cache",
    }
    (tmp_path / f"{module}_on_import.py").write_text(sources[module])
    monkeypatch.chdir(tmp_path)
    ended, output = run_app("--adapter", f"{module}_on_import:Cache", "--report", str(tmp_path / "out"))
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert told[module] in output, f"expected {told[module]!r}, got {output}"
    assert "Traceback" not in output, f"expected no traceback, got {output}"
