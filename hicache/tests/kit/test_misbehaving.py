"""An adapter that exits, crashes, hangs, prints or forks is a failure by name, in every stage, and a report remains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from hicache.cli import replay_stage
from hicache.cli import stage as stage_module
from hicache.cli.replay_stage import ReplayStage
from hicache.cli.stage import StageResult, SuiteStage, Verification
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.plugin.failures import FLAKY
from hicache.testing.replay import ReplayOutcome, Sample, replay_sample
from hicache.testing.report import Outcome, read_run
from hicache.tests.kit import misbehaving
from hicache.tests.kit.hosted_cache import FlatCache
from hicache.tests.kit.misbehaving import (
    Crashes,
    ExitsWith0,
    ExitsWith1,
    Floods,
    Forges,
    Forks,
    Hangs,
    LeavesAThread,
    Misbehaving,
    RaisesKeyboardInterrupt,
    RaisesSystemExit,
)
from hicache.tests.kit.suite_runs import write_suite

SUITE = "conformance"

ONE_WORKER = ("-n", "1")

TESTS = """
@clause("KEY-1")
def test_of_keys(driver):
    for _ in range(3):
        driver.match(driver.key([1, 2, 3]))
"""


@pytest.fixture(autouse=True)
def _small_suite(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    """A suite of one test, and little patience where an adapter never ends."""
    write_suite(pytester, TESTS)
    monkeypatch.setattr(stage_module, "suite_folder", lambda name: pytester.path / name)
    monkeypatch.setattr(stage_module, "_MAX_OUTPUT", 20_000_000)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch, adapter: type) -> None:
    """Seconds for what a user waits minutes for, with adapters that never end."""
    if adapter is Hangs:
        monkeypatch.setattr(stage_module, "TEST_LIMIT_S", {SUITE: 5.0})
    if adapter in (Forks, LeavesAThread):
        monkeypatch.setattr(stage_module, "_GRACE_S", 5.0)


def verification(adapter: type, directory: Path) -> Verification:
    """What to verify: one of the adapters."""
    return Verification(f"{misbehaving.__name__}:{adapter.__name__}", True, directory, None)


def run_suite(adapter: type, directory: Path) -> StageResult:
    """The suite with few tests, in a worker."""
    stage = SuiteStage(SUITE, verification(adapter, directory), ONE_WORKER)
    return stage.run(lambda *_: None, Event())


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("adapter", [ExitsWith0, ExitsWith1, Crashes, Hangs, RaisesSystemExit, Floods, Forges])
def test_a_suite_names_the_test_in_which_it_happened(adapter: type[Misbehaving], tmp_path: Path) -> None:
    result = run_suite(adapter, tmp_path)
    assert result.record is not None, f"expected a record of what ran: {result.problem}"
    failed = [one for one in result.record.executions if one.outcome.value == "failed"]
    assert failed, f"expected a failed test, got {result.problem}"
    told = {
        Hangs: "the test took too long, in Hangs.match",
        Floods: "more than 50,000,000 characters of output, in Floods.match",
        RaisesSystemExit: FLAKY,
        Forges: FLAKY,
    }.get(adapter, f"the process of the test ended, in {adapter.__name__}.match")
    assert {one.causes for one in failed} == {(told,)}, f"expected {told!r} of each failure, got {failed}"
    assert result.failed, "expected the stage to fail"


OF_NO_CLAUSE = """
from hicache.config import CacheConfig

def test_of_keys(adapter_type):
    adapter_type(CacheConfig(page_size=1, capacity_tokens={"full": 8}))
"""

LEFT = "a worker process was ended with threads that a test left running: "


@pytest.mark.parametrize("tests", [TESTS, OF_NO_CLAUSE], ids=["clause", "no-clause"])
def test_a_suite_names_a_thread_that_was_left(pytester: pytest.Pytester, tests: str, tmp_path: Path) -> None:
    write_suite(pytester, tests, "accuracy")
    narrowed = replace(verification(LeavesAThread, tmp_path), keyword="test_of_keys")
    result = SuiteStage("accuracy", narrowed, ONE_WORKER).run(lambda *_: None, Event())
    assert result.record is not None, f"expected a record of what ran: {result.problem}"
    causes = [cause for one in result.record.executions for cause in one.causes]
    assert [cause.startswith(LEFT) for cause in causes] == [True], f"expected {LEFT!r}, got {causes}, {result.problem}"
    assert result.failed, "expected the stage to fail"


def test_a_narrowed_suite_that_cannot_be_collected_fails(pytester: pytest.Pytester, tmp_path: Path) -> None:
    write_suite(pytester, "import no_such_module", "accuracy")
    narrowed = replace(verification(FlatCache, tmp_path), keyword="test_of_keys")
    result = SuiteStage("accuracy", narrowed, ONE_WORKER).run(lambda *_: None, Event())
    assert "no_such_module" in str(result.problem), f"expected the module to be named, got {result}"
    assert result.failed, "expected the stage to fail"


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("adapter", [Forks, RaisesKeyboardInterrupt])
def test_a_suite_ends_whatever_happens(adapter: type[Misbehaving], tmp_path: Path) -> None:
    result = run_suite(adapter, tmp_path)
    assert result.failed, f"expected {adapter.__name__} to fail, got {result}"
    assert result.record is not None, f"expected a record of what there is: {result.problem}"
    assert any(one.outcome is Outcome.FAILED for one in result.record.executions), f"got {result.record.executions}"
    told = {
        Forks: "left a fork behind, which went on with the run",
        RaisesKeyboardInterrupt: "keyboard-interrupt",
    }[adapter]
    assert re.search(told, str(result.problem)), f"expected {told!r}, got {result.problem}"


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (ExitsWith0, "ended with code 0, and left no record"),
        (ExitsWith1, "ended with code 1, and left no record"),
        (RaisesSystemExit, "ended with code 0, and left no record"),
        (RaisesKeyboardInterrupt, "left no record"),
        (Crashes, "was killed by SIGSEGV, and left no record"),
        (Hangs, "wrote no output for 10 s, and left no record"),
        (Floods, "wrote more than 20,000,000 characters of output, and left no record"),
        (LeavesAThread, "left a thread or a process running"),
        (Forks, "left a fork behind, which went on with the run"),
    ],
)
def test_a_replay_names_its_end(monkeypatch: pytest.MonkeyPatch, adapter: type, told: str, tmp_path: Path) -> None:
    if adapter is Hangs:
        monkeypatch.setattr(stage_module, "_MAX_SILENCE_S", 10.0)
    result = ReplayStage(verification(adapter, tmp_path)).run(lambda *_: None, Event())
    assert result.problem is not None, f"expected a problem, got {result}"
    assert told in result.problem, f"expected {told!r}, got {result.problem}"
    assert result.failed, "expected the stage to fail"


def test_what_an_adapter_prints_cannot_reach_the_terminal(tmp_path: Path) -> None:
    result = ReplayStage(verification(Forges, tmp_path)).run(lambda *_: None, Event())
    assert result.record is not None, f"an exception is a finding of the replay: {result.problem}"
    assert result.failed, "the forged line says verified, but the replay failed"
    assert "\x1b" not in (result.problem or ""), f"escape codes must not reach the terminal: {result.problem!r}"


def test_an_interrupted_replay_keeps_what_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replays: list[str] = []

    def interrupted(_: object, sample: Sample, *_rest: object) -> ReplayOutcome:
        replays.append(sample.name)
        if len(replays) == 2:
            raise KeyboardInterrupt
        return replay_sample(ReferenceAdapter, sample, tmp_path, lambda *_: None)

    monkeypatch.setattr(replay_stage, "replay_sample", interrupted)
    (tmp_path / "replay").mkdir()
    with pytest.raises(KeyboardInterrupt):
        replay_stage.main(f"{ReferenceAdapter.__module__}:{ReferenceAdapter.__name__}", str(tmp_path))
    kept = read_run(tmp_path / "replay" / "run.json").executions
    assert len(kept) == 1, f"expected the first of {replays}, got {kept}"
