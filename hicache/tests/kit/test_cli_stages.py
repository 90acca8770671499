"""The stages of `hicache verify`: pytest in a process of its own, and the replay of a generated trace."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli import suite_stage
from hicache.cli.app import app
from hicache.cli.replay_stage import ReplayStage
from hicache.cli.stage import StageResult, Verification
from hicache.cli.suite_stage import SuiteStage, follow, suite_folder
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.plugin.known_failures import KnownFailure
from hicache.testing.replay import HostOutcome, ReplayOutcome, ReplaySettings, StorageOutcome, replay_sample, samples
from hicache.testing.report import Execution, Outcome, write_run
from hicache.tests.kit.flat_cache import FlatCache
from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.suite_runs import execution, record

FLAT = "hicache.tests.kit.flat_cache:FlatCache"
HOSTED = "hicache.tests.kit.hosted_cache:HostedCache"
REFERENCE = "hicache.testing.adapters.reference:ReferenceAdapter"
BROKEN = "after 3 requests: POOL-1: slot 7: expected one owner, got two"


def ignore(done: int, total: int) -> None:
    """Progress that nobody looks at."""


def python(program: str) -> list[str]:
    """The command that runs a program in a process of its own."""
    return [sys.executable, "-c", program]


def test_a_process_is_followed_and_logged(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    program = "print('[gw0] [  5%] PASSED a'); print('no share'); print('test_b PASSED [100%]')"
    ending = follow(python(program), tmp_path / "log", lambda done, total: seen.append((done, total)))
    assert ending == "code 0", f"the process ended well, got {ending}"
    assert seen == [(5, 100), (100, 100)], f"expected 5 % and 100 %, got {seen}"
    assert len((tmp_path / "log").read_text().splitlines()) == 3, "all lines are in the log"


def test_what_a_process_says_of_its_errors_is_logged(tmp_path: Path) -> None:
    ending = follow(python("import sys; print('a line'); sys.exit('the cause')"), tmp_path / "log", ignore)
    assert ending == "code 1", f"expected code 1, got {ending}"
    assert set((tmp_path / "log").read_text().splitlines()) == {"a line", "the cause"}, "both streams are in the log"


def test_a_process_that_falls_silent_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite_stage, "_MAX_SILENCE_S", 0.5)
    program = "import threading; print('begun', flush=True); threading.Event().wait()"
    ending = follow(python(program), tmp_path / "log", ignore)
    assert ending == "no output for 0.5 s", f"a process that never ends has to be ended, got {ending}"


def run_suite(monkeypatch: pytest.MonkeyPatch, directory: Path, ending: str, *executions: Execution) -> StageResult:
    """A suite whose pytest ends so, and reports these executions before if there are any."""

    def report(command: list[str], log: Path, _: object) -> str:
        assert log.parent == directory / "conformance", f"the log lies beside the report, got {log}"
        assert command[command.index("--report") + 1] == str(log.parent), f"told where to report: {command}"
        log.write_text("".join(f"line {number}\n" for number in range(100)))
        if executions:
            write_run(record(*executions), log.parent / "run.json")
        return ending

    monkeypatch.setattr(suite_stage, "follow", report)
    return SuiteStage("conformance", Verification(FLAT, True, directory, None), ()).run(ignore)


def test_a_suite_ends_with_its_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run_suite(monkeypatch, tmp_path, "code 0", execution("KEY-1"))
    assert result.record == record(execution("KEY-1")), f"expected the record that pytest wrote, got {result.record}"
    assert not result.failed, f"everything passed, got {result}"


def test_failed_tests_explain_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run_suite(monkeypatch, tmp_path, "code 1", execution("KEY-1", outcome=Outcome.FAILED))
    assert (result.failed, result.problem) == (True, None), f"the failure says it all, got {result}"


def test_a_suite_that_asks_too_much_of_a_cache_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    skipped, of_the_suite = execution("KEY-1", outcome=Outcome.SKIPPED), execution(name="test_of_the_suite")
    result = run_suite(monkeypatch, tmp_path, "code 1", skipped, of_the_suite)
    assert not result.failed, f"everything was skipped for what the cache does not declare, got {result}"


@pytest.mark.parametrize("ending", ["code 1", "code 3", "code -9", "no output for 300 s"])
def test_an_ending_that_no_test_explains_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    result = run_suite(monkeypatch, tmp_path, ending, execution("KEY-1"))
    assert result.failed, f"{ending} is no good end"
    assert result.problem is not None, f"{ending} is a problem"
    assert f"ended with {ending}" in result.problem, f"the ending is told: {result.problem}"
    assert result.problem.endswith("line 98\nline 99"), f"with the end of the log: {result.problem}"
    assert "line 1\n" not in result.problem, f"and no more of it: {result.problem}"


def test_the_record_of_an_earlier_run_is_not_taken_for_this_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_suite(monkeypatch, tmp_path, "code 0", execution("KEY-1"))
    result = run_suite(monkeypatch, tmp_path, "code 4")
    assert (result.failed, result.record) == (True, None), f"this run reported nothing, got {result}"


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
    result = ReplayStage(Verification(FLAT, False, Path("some where"), None), FlatCache, known).run(ignore)
    assert result.record is not None, "the replay is told as a run"
    assert result.record.capabilities == ("NAMESPACES", "PAGED"), f"got {result.record.capabilities}"
    return result.record.executions[0]


def test_a_replay_to_the_end_has_passed(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    told = run_replay(monkeypatch, outcome)
    assert (told.outcome, told.clauses) == (Outcome.PASSED, ("REQ-4",)), f"a cache that shows nothing: {told}"
    assert told.operations == sum(latency.calls for latency in outcome.latency.values()) > 0, f"got {told}"
    expected = f"hicache replay 'some where/trace.jsonl' --adapter {FLAT} --components full --capacity 25%"
    assert told.replay.startswith(expected), f"expected {expected}, got {told.replay}"


def test_a_broken_law_fails_its_clause(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    told = run_replay(monkeypatch, replace(outcome, broken=BROKEN))
    assert (told.outcome, told.clauses, told.reason) == (Outcome.FAILED, ("POOL-1",), BROKEN), f"got {told}"


def test_a_cache_that_raises_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run_replay(monkeypatch, IndexError("slot 7"))
    assert told.outcome is Outcome.FAILED, f"got {told}"
    assert told.reason.endswith("IndexError: slot 7\n"), f"the traceback is the reason: {told.reason}"


def test_the_picture_of_an_earlier_replay_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some where").mkdir()
    pictures = [tmp_path / "some where" / name for name in ("replay.svg", "replay-host.svg")]
    for picture in pictures:
        picture.touch()
    monkeypatch.chdir(tmp_path)
    run_replay(monkeypatch, IndexError("slot 7"))
    assert not any(picture.exists() for picture in pictures), "a replay that ended early has no picture"


def test_a_host_tier_is_replayed_as_well(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    host = HostOutcome({"full": 1024}, None, None, None, bytes_per_token=None)
    told = [replace(outcome, checks=12), replace(outcome, checks=12, host=host)]
    monkeypatch.setattr("hicache.cli.replay_stage.replay_sample", lambda _, sample, *__: told[sample.name != "replay"])
    seen: list[tuple[int, int]] = []
    stage = ReplayStage(Verification(HOSTED, False, Path("reports"), None), HostedCache, ())
    record = stage.run(lambda done, total: seen.append((done, total))).record
    assert record is not None, "the replays are told as a run"
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
    record = ReplayStage(Verification(REFERENCE, False, Path("reports"), None), ReferenceAdapter, ()).run(ignore).record
    assert record is not None, "the replays are told as a run"
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
    record = ReplayStage(Verification(REFERENCE, False, tmp_path, None), ReferenceAdapter, ()).run(ignore).record
    assert record is not None, "the replays are told as a run"
    command = shlex.split(record.executions[number].replay)
    result = CliRunner().invoke(app, [*command[1:], "--report", str(tmp_path)])
    assert result.exit_code == 0, f"{command} ended with {result.exit_code}: {result.output}"
    expected = replace(samples(ReferenceAdapter)[number].settings, check_every=1)
    assert asked == [expected], f"{command} asks for {asked}"


def test_a_known_failure_of_a_clause_covers_the_replay(monkeypatch: pytest.MonkeyPatch, outcome: ReplayOutcome) -> None:
    known = KnownFailure("known.toml: entry 1 (POOL-1)", "POOL-1", "bug", "frees twice", "")
    told = run_replay(monkeypatch, replace(outcome, broken=BROKEN), known)
    assert (told.outcome, told.reason) == (Outcome.KNOWN_FAILURE, "bug: frees twice"), f"got {told}"
    told = run_replay(monkeypatch, outcome, known)
    assert told.outcome is Outcome.PASSED, f"only a failure can be known, got {told}"
