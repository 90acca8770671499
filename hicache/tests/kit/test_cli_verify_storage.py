"""`hicache verify-storage`: what it runs, what it shows, and how it ends."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.cli.stage import StageProgress, StageResult, SuiteStage
from hicache.testing.report import Outcome, read_run
from hicache.testing.storage import throughput
from hicache.tests.kit.suite_runs import execution, record

OPTIONS = '{"store": "{unique}", "capacity_bytes": "{capacity_bytes}"}'
BROKEN = "hicache.tests.kit.storage_backends:Overwrites"


def run_app(*arguments: str, columns: int = 400) -> tuple[int, str]:
    """The exit code and the output of `hicache verify-storage`, on a terminal of so many columns."""
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["verify-storage", *arguments])
    return result.exit_code, result.output


def test_counts_stand_in_the_report(tmp_path: Path) -> None:
    stages = ("--only", "faults", "--only", "kills", "--fault-runs", "30", "--kills", "2")
    ended, output = run_app("--backend", "file", "--report", str(tmp_path), *stages)
    assert ended == 0, f"nothing is wrong with files, got {ended}: {output}"
    run = read_run(tmp_path / "run.json")
    assert run.implementation == "file", f"the run is about it, got {run.implementation}"
    told = run.environment
    assert told["faults of file"].startswith("30 runs with seeds from 0"), f"how many there were: {told}"
    assert told["kills of file"].startswith("2 writers killed"), f"how many there were: {told}"
    assert [one.outcome for one in run.executions] == [Outcome.PASSED] * 2, f"got {run.executions}"
    assert "clauses not executed: KEY-2" in output, f"what was not executed is said: {output}"
    assert "LOCK-1" not in (tmp_path / "report.md").read_text(), "of a backend no clause of a cache is asked"


def test_a_narrow_terminal_cuts_the_sentences_and_nothing_else(tmp_path: Path) -> None:
    stages = ("--only", "faults", "--fault-runs", "5")
    _, output = run_app("--backend", "memory", "--report", str(tmp_path), *stages, columns=80)
    assert "│ STORE-3  │ passed       │ get and set" in output, f"clause and outcome can be read: {output}"


def test_a_backend_that_no_kill_can_reach_is_skipped_with_the_reason(tmp_path: Path) -> None:
    ended, output = run_app("--backend", "memory", "--only", "kills", "--kills", "2", "--report", str(tmp_path))
    assert ended == 1, f"nothing was executed, which verifies nothing, got {ended}"
    assert "the data of memory is visible only in its own process" in output, f"the reason is shown: {output}"
    assert "failed: no test passed" in output, f"the verdict says so: {output}"


def test_a_broken_backend_fails_with_the_command_that_runs_it_again(tmp_path: Path) -> None:
    named = ("--backend", BROKEN, "--config", OPTIONS)
    ended, output = run_app(*named, "--only", "faults", "--fault-runs", "50", "--seed", "7", "--report", str(tmp_path))
    assert ended == 1, f"it writes what is there again, got {ended}: {output}"
    (found,) = read_run(tmp_path / "run.json").executions
    assert "STORE-5" in found.reason, f"the clause is named: {found.reason}"
    seed = found.replay.split("--seed ")[1].split()[0]
    assert seed != "7", "expected the first seed to pass: this test cannot tell it from the one that fails"
    again, _ = run_app(*named, "--only", "faults", "--fault-runs", "1", "--seed", seed, "--report", str(tmp_path))
    assert again == 1, f"seed {seed} fails alone as well: {found.replay}"
    assert found.replay.endswith(f"--seed {seed} --fault-runs 1 --only faults"), f"got {found.replay}"


def test_the_reason_of_a_stage_that_raised_is_the_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("hicache.cli.verify_storage.run_faults", fail)
    run_app("--backend", "memory", "--only", "faults", "--report", str(tmp_path))
    (found,) = read_run(tmp_path / "run.json").executions
    assert found.reason == "OSError: the disk is gone", f"expected the message alone, got {found.reason}"


def test_a_fault_run_may_be_listed(tmp_path: Path) -> None:
    words = ("--backend", BROKEN, "--config", OPTIONS, "--only", "faults", "--fault-runs", "50")
    known = tmp_path / "known.toml"
    entry = '[[failure]]\nid = "storage::* faults[*]"\nkind = "bug"\nreason = "overwrites"\nlink = ""\n'
    known.write_text(entry, encoding="utf-8")
    run_app(*words, "--known-failures", str(known), "--report", str(tmp_path))
    (found,) = read_run(tmp_path / "run.json").executions
    assert (found.outcome, found.reason) == (Outcome.KNOWN_FAILURE, "bug: overwrites"), f"got {found}"


def test_speeds_stand_in_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(throughput, "_BATCH_BYTES", 1 << 18)
    ended, _ = run_app("--backend", "memory", "--only", "throughput", "--report", str(tmp_path))
    assert ended == 1, f"speed alone verifies nothing, got {ended}"
    told = read_run(tmp_path / "run.json").environment
    assert "of preadv" in told["throughput of memory, 64 KiB"], f"a share of what the disk gives: {told}"
    assert "of pwritev" in told["throughput of memory, 4096 KiB"], f"for each size of pages: {told}"


def test_the_suites_are_told_the_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, tuple[str, ...]] = {}

    def run(stage: SuiteStage, _: StageProgress, __: Event) -> StageResult:
        told[stage.name] = stage.arguments
        return StageResult(stage.name, record(execution("STORE-2", suite=stage.name)), None, 1.0)

    monkeypatch.setattr(SuiteStage, "run", run)
    suites = ("--only", "conformance", "--only", "properties")
    ended, output = run_app("--backend", "memory", "--config", OPTIONS, *suites, "--report", str(tmp_path))
    assert ended == 0, f"both passed, got {ended}: {output}"
    expected = ("--hicache-backend", "memory", "--hicache-backend-config", OPTIONS)
    assert told["conformance/storage"] == expected, f"expected {expected}, got {told}"
    assert told["properties/storage"][-4:] == expected, f"expected {expected}, got {told}"
    assert read_run(tmp_path / "run.json").implementation == "memory", "one report of both"


def test_a_file_of_options_is_no_file_of_words_for_pytest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[tuple[str, ...]] = []

    def run(stage: SuiteStage, _: StageProgress, __: Event) -> StageResult:
        told.append(stage.arguments)
        return StageResult(stage.name, record(execution("STORE-2", suite=stage.name)), None, 1.0)

    monkeypatch.setattr(SuiteStage, "run", run)
    (tmp_path / "options.json").write_text(OPTIONS, encoding="utf-8")
    config = f"@{tmp_path / 'options.json'}"
    words = ("--backend", "memory", "--config", config, "--only", "conformance", "--report", str(tmp_path))
    ended, output = run_app(*words)
    assert ended == 0, f"it passed, got {ended}: {output}"
    expected = [("--hicache-backend", "memory", f"--hicache-backend-config={config}")]
    assert told == expected, f"expected {expected}, got {told}"


def test_the_suites_are_told_what_is_known_to_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, Path | None] = {}

    def run(stage: SuiteStage, _: StageProgress, __: Event) -> StageResult:
        told[stage.name] = stage.verification.known_failures
        return StageResult(stage.name, record(execution("STORE-2", suite=stage.name)), None, 1.0)

    monkeypatch.setattr(SuiteStage, "run", run)
    known = tmp_path / "known.toml"
    known.write_text('[[failure]]\nid = "STORE-5"\nkind = "bug"\nreason = "overwrites"\nlink = ""\n', encoding="utf-8")
    suites = ("--only", "conformance", "--only", "properties", "--known-failures", str(known))
    ended, output = run_app("--backend", "memory", *suites, "--report", str(tmp_path / "report"))
    assert ended == 0, f"both passed, got {ended}: {output}"
    assert told == {"conformance/storage": known, "properties/storage": known}, f"each has the list, got {told}"


def test_known_failures_that_cannot_be_read_are_a_usage_error(tmp_path: Path) -> None:
    known = tmp_path / "known.toml"
    known.write_text("[[failure]]\nid = 3\n", encoding="utf-8")
    ended, output = run_app("--backend", "memory", "--known-failures", str(known), "--report", str(tmp_path / "report"))
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert "known.toml" in output, f"the file is named: {output}"
    assert not (tmp_path / "report").exists(), "nothing ran"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--backend", "no_such_module:Backend"), "no_such_module"),
        (("--backend", "memory", "--config", "@no_such.toml"), "no_such.toml"),
        (("--config", "{}"), "--config"),
        (("--only", "everything"), "everything"),
    ],
)
def test_what_cannot_be_had_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    ended, output = run_app(*arguments, "--report", str(tmp_path))
    assert ended == 2, f"expected 2, got {ended}: {output}"
    assert named in output, f"{named} is named: {output}"
    assert not list(tmp_path.iterdir()), "nothing ran"
