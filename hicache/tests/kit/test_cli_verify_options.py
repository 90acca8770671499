"""The options that narrow or bound `hicache verify`, and what a narrowed run may say."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from rich.console import Console

from hicache.cli import stage as stage_module
from hicache.cli.program import INTERRUPTIBLE
from hicache.cli.stage import SuiteStage, Verification, ended, follow
from hicache.cli.verify import LEVELS, STAGES, Narrowing, all_stages, verify
from hicache.testing.contract import CONTRACT
from hicache.testing.levels import Level
from hicache.testing.report import Outcome, leaving_out, read_run, write_run
from hicache.testing.report.coverage import Verdict, coverage
from hicache.testing.report.matrix import overview
from hicache.tests.kit.suite_runs import FLAT_CACHE, execution, record
from hicache.tests.kit.test_cli_verify import FAILED, OF_DEVICE, PASSED, FakeStage, ignore, python, run_app, run_command

PLAIN = Verification(FLAT_CACHE, quick=True, directory=Path("out"), known_failures=None)


def pytest_words(monkeypatch: pytest.MonkeyPatch, directory: Path, verification: Verification) -> list[str]:
    """The command of a suite."""
    commands: list[list[str]] = []

    def run(command: list[str], log: Path, *_: object) -> str:
        commands.append(command)
        log.touch()
        return ended(4)

    monkeypatch.setattr(stage_module, "follow", run)
    SuiteStage("conformance", replace(verification, directory=directory), ()).run(ignore, Event())
    return commands[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keyword": "LOCK-3"}, ("-k", "LOCK-3")),
        ({"stops": True}, ("-x",)),
        ({"jobs": 3}, ("-n", "3")),
        ({"quick": True}, ("--hicache-quick",)),
    ],
)
def test_pytest_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    plain = pytest_words(monkeypatch, tmp_path, replace(PLAIN, quick=False))
    told = pytest_words(monkeypatch, tmp_path, replace(PLAIN, **({"quick": False} | changes)))  # type: ignore[arg-type]
    joined, expected = " ".join(told), " ".join(words)
    assert expected in joined, f"expected {expected!r}, got {joined}"
    assert expected not in " ".join(plain), f"only on request, got {plain}"


@pytest.mark.parametrize(("quick", "profile"), [(True, "hicache-quick"), (False, "hicache-ci")])
def test_the_stages_and_their_examples(quick: bool, profile: str) -> None:
    stages = all_stages(replace(PLAIN, quick=quick))
    assert tuple(stage.name for stage in stages) == STAGES, f"expected the order of the report, got {stages}"
    machines = next(stage for stage in stages if stage.name == "properties")
    assert isinstance(machines, SuiteStage), f"the machines are a suite, got {machines}"
    assert machines.arguments == ("--hypothesis-profile", profile), f"expected {profile}, got {machines.arguments}"


def test_only_what_is_named_runs_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended, output = run_command(
        monkeypatch, tmp_path, FakeStage("conformance", (PASSED,), None), "--only", "conformance"
    )
    assert ended == 3, f"a level without its other stages is not verified: {output}"
    assert {one.suite for one in read_run(tmp_path / "run.json").executions} == {"conformance"}, "one stage ran"
    for name in ("replay", "properties"):
        assert f"not run: {name}: --only" in output, f"expected {name} to be shown: {output}"
    assert "device: not verified, a part of the run is missing" in output, f"expected it to be said: {output}"
    assert "verified: device" not in output.replace("not verified", ""), f"expected no claim: {output}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--only", "conformity"), "unknown stage conformity; known: replay, conformance"),
        (("-k", "LOCK-99 or KEY-1"), "the contract has no clause LOCK-99"),
        (("--jobs", "0"), "--jobs"),
        (("--timeout", "0"), "--timeout"),
    ],
)
def test_a_wrong_value_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr("hicache.cli.verify.describe", lambda _: pytest.fail("nothing is imported before"))
    ended, output = run_app("--report", str(tmp_path), *options)
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert told in output, f"expected {told!r}, got {output}"


def test_a_run_of_some_tests_leaves_the_replay_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, output = run_command(monkeypatch, tmp_path, FakeStage("conformance", (PASSED,), None), "-k", "KEY-1")
    assert "not run: replay: -k selects tests of the suites" in output, f"expected it to be said: {output}"
    assert "device: not verified" in output, f"expected no level to be verified: {output}"


@pytest.mark.parametrize(
    ("options", "begun"), [((), {"replay", "conformance", "properties"}), (("-x",), {"replay", "conformance"})]
)
def test_no_stage_begins_after_the_first_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], begun: set[str]
) -> None:
    conformance = FakeStage("conformance", (PASSED, FAILED), None)
    ended, output = run_command(monkeypatch, tmp_path, conformance, *options)
    assert ended == 1, f"expected 1, got {ended}: {output}"
    ran = {one.suite for one in read_run(tmp_path / "run.json").executions}
    assert ran == begun, f"expected {begun}, got {ran}"


@pytest.mark.parametrize("ends_early", [False, True], ids=["left-out", "ended-early"])
@pytest.mark.parametrize("missing", STAGES)
def test_a_level_is_verified_only_with_each_of_its_stages(tmp_path: Path, missing: str, ends_early: bool) -> None:
    stages = [FakeStage("properties" if missing == "conformance" else "conformance", (PASSED,), None)]
    stages += [FakeStage(missing, (), "took too long")] if ends_early else []
    verify(stages, tmp_path, Console(file=io.StringIO()), [], Narrowing(() if ends_early else (missing,)))
    device = coverage(overview(read_run(tmp_path / "run.json"), CONTRACT)).of(Level.DEVICE)
    is_needed = Level.DEVICE in LEVELS[missing]
    assert (device.verdict is Verdict.VERIFIED) is not is_needed, f"without {missing}: got {device}"


def test_a_failure_stays_one_in_a_narrowed_run() -> None:
    run = leaving_out(record(PASSED, execution("KEY-1", outcome=Outcome.FAILED)), Level)
    device = coverage(overview(run, CONTRACT)).of(Level.DEVICE)
    assert device.verdict is Verdict.FAILED, f"expected a failure, got {device}"


@pytest.mark.parametrize(
    ("ending", "changes", "outcomes", "is_problem"),
    [
        (ended(2), {"stops": True}, (Outcome.FAILED,), False),
        (ended(2), {"stops": True}, (Outcome.PASSED,), True),
        (ended(2), {}, (Outcome.FAILED,), True),
        (ended(5), {"keyword": "LOCK-3"}, (), False),
        (ended(5), {}, (), True),
        (ended(5), {}, (Outcome.SKIPPED,), False),
        (ended(1), {"keyword": "LOCK-3"}, (), True),
        (ended(1), {}, (Outcome.SKIPPED,), True),
        (ended(1), {}, (Outcome.PASSED,), True),
    ],
)
def test_what_explains_an_ending(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ending: str,
    changes: dict[str, object],
    outcomes: tuple[Outcome, ...],
    is_problem: bool,
) -> None:
    executions = [execution("KEY-1", outcome=one) for one in outcomes]

    def run(_: list[str], log: Path, *__: object) -> str:
        log.touch()
        write_run(record(*executions), log.parent / "run.json")
        return ending

    monkeypatch.setattr(stage_module, "follow", run)
    verification = replace(PLAIN, directory=tmp_path, **changes)  # type: ignore[arg-type]
    result = SuiteStage("conformance", verification, ()).run(ignore, Event())
    assert (result.problem is not None) is is_problem, f"{ending} with {changes} and {outcomes}: got {result.problem}"


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["handled", "ignored"])
def _sigint(request: pytest.FixtureRequest) -> Iterator[None]:
    """A shell lets its background jobs ignore SIGINT, and so all that they start."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint")
def test_a_stage_that_takes_too_long_ends_with_what_it_has(tmp_path: Path) -> None:
    run_file = tmp_path / "run.json"
    program = f"""
try:
    import itertools, pathlib, time
    for number in itertools.count():
        print(number, flush=True)
        time.sleep(0.1)
except KeyboardInterrupt:
    open({str(run_file)!r}, "w").write("what there is")
"""
    # Far more than a busy machine needs to start the program.
    ending = follow(python(f"{INTERRUPTIBLE}\n{program}"), tmp_path / "log", run_file, ignore, Event(), 5.0)
    assert ending == "took longer than 5 s, the limit of --timeout", f"expected the limit, got {ending}"
    assert run_file.read_text() == "what there is", "the process was asked to end"


def test_what_is_left_out_of_the_suites_is_in_the_record() -> None:
    assert OF_DEVICE, "the level has clauses"
    first, second = leaving_out(record(PASSED), [Level.HOST]), leaving_out(record(PASSED), [Level.DEVICE])
    merged = leaving_out(first, [Level.DEVICE])
    assert merged.environment["levels not run whole"] == "device, host", f"expected both, got {merged.environment}"
    assert second.environment["levels not run whole"] == "device", f"expected one, got {second.environment}"
    assert record(PASSED) == leaving_out(record(PASSED), []), "a whole run says nothing"
