"""Replays on the reference cache, and the files and the exit codes that they end with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.config import EvictionPolicy
from hicache.testing.adapter import load_adapter
from hicache.testing.replay import ReplayOutcome, ReplaySettings, replay, replay_sample, write_report
from hicache.testing.traces import SHORT_TRACE, Trace, generate_trace, write_trace

SMALL = replace(SHORT_TRACE, requests=40, system_length_median=300, message_length_median=200, longest_input=2048)
REFERENCE = "hicache.testing.adapters.reference:ReferenceAdapter"
BROKEN = "hicache.tests.kit.test_replay_session:SwapsPages"


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "generated.jsonl"
    write_trace(path, generate_trace(SMALL, 7))
    return path


def replayed(path: Path, components: tuple[str, ...], capacity: str, policy: EvictionPolicy) -> ReplayOutcome:
    settings = ReplaySettings(
        page_size=64,
        capacity=capacity,
        components=components,
        policy=policy,
        sliding_window_size=256,
        running=4,
        check_every=10,
    )
    return replay(Trace(path, skip_bad=False, limit=None), load_adapter(REFERENCE), settings, None)


@pytest.mark.parametrize("capacity", ["unlimited", "40%", "20%"])
@pytest.mark.parametrize(
    "components", [("full",), ("full", "indexer"), ("full", "swa"), ("full", "mamba"), ("full", "swa", "mamba")]
)
def test_the_reference_keeps_the_laws(path: Path, components: tuple[str, ...], capacity: str) -> None:
    outcome = replayed(path, components, capacity, EvictionPolicy.LRU)
    assert outcome.broken is None, f"{components} with {capacity}: {outcome.broken}"
    assert outcome.checks == 4 + 2, f"40 requests, every tenth checked, and twice at the end: {outcome.checks} checks"
    assert 0 < outcome.hit_rate <= outcome.optimal_hit_rate, f"{components} with {capacity}: {outcome.hit_rate}"


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_every_policy_can_be_compared(path: Path, policy: EvictionPolicy) -> None:
    outcome = replayed(path, ("full",), "30%", policy)
    assert outcome.broken is None, f"{policy.value}: {outcome.broken}"
    assert outcome.hit_rate <= outcome.optimal_hit_rate, f"{policy.value} hits {outcome.hit_rate}, above the optimum"


def test_full_without_limit_and_with_lru_matches_the_counts(path: Path) -> None:
    unlimited = replayed(path, ("full",), "unlimited", EvictionPolicy.LRU)
    assert unlimited.hit_rate == unlimited.lru_hit_rate == unlimited.optimal_hit_rate, f"no eviction: {unlimited}"
    small = replayed(path, ("full",), "40%", EvictionPolicy.LRU)
    assert abs(small.hit_rate - small.lru_hit_rate) < 0.01, f"LRU {small.lru_hit_rate:.2%}, cache {small.hit_rate:.2%}"


def test_a_sample_leaves_its_report(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    outcome = replay_sample(
        load_adapter(REFERENCE), tmp_path / "report", lambda done, total: seen.append((done, total))
    )
    assert outcome.broken is None, f"the sample breaks a law: {outcome.broken}"
    total = SHORT_TRACE.requests
    assert seen == [(done, total) for done in range(1, total + 1)], f"progress is told as {seen[:5]}"
    table = json.loads((tmp_path / "report" / "replay.json").read_text(encoding="ascii"))
    assert table["schema_version"] == 1, f"replay.json has schema {table['schema_version']}"
    assert table["hit_rate"] == outcome.hit_rate, "replay.json does not hold the outcome"
    assert len(table["timeline"]) == len(outcome.timeline), "replay.json does not hold the timeline"
    picture = (tmp_path / "report" / "replay.svg").read_text(encoding="utf-8")
    assert "<svg" in picture, f"replay.svg begins with {picture[:80]}"


def test_equal_outcomes_are_drawn_alike(path: Path, tmp_path: Path) -> None:
    outcome = replayed(path, ("full",), "30%", EvictionPolicy.LRU)
    for directory in ("one", "other"):
        write_report(outcome, tmp_path / directory)
    one, other = ((tmp_path / directory / "replay.svg").read_bytes() for directory in ("one", "other"))
    assert one == other, "the same outcome was drawn in two ways"


def test_the_command_reports_and_ends_with_0(path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(path), "--limit", "20", "--report", str(tmp_path)])
    assert result.exit_code == 0, f"exit code {result.exit_code}: {result.output}"
    for expected in ("hit rate", "offline optimum", "p99", "replay.json"):
        assert expected in result.output, f"{expected!r} is missing from: {result.output}"
    assert json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))["requests"] == 20, (
        "--limit 20 was not kept"
    )


def test_a_broken_law_ends_with_1_and_a_report(path: Path, tmp_path: Path) -> None:
    arguments = ["replay", str(path), "--adapter", BROKEN, "--check-every", "1", "--report", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, f"exit code {result.exit_code}: {result.output}"
    assert "REQ-3" in result.output, f"the law is not named in: {result.output}"
    assert "REQ-3" in json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))["broken"], "nor in replay.json"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--adapter", "nowhere:Cache"], "nowhere"),
        (["--adapter", "nowhere"], "package.module:Class"),
        (["--capacity", "much"], "much"),
        (["--page-size", "0"], "page_size"),
        (["--components", "swa"], "full"),
    ],
)
def test_what_cannot_be_opened_ends_with_2(path: Path, tmp_path: Path, arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["replay", str(path), "--report", str(tmp_path), *arguments])
    assert result.exit_code == 2, f"exit code {result.exit_code}: {result.output}"
    assert expected in result.output, f"{expected!r} is missing from: {result.output}"


def test_malformed_lines_end_with_2_or_are_counted(path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    arguments = ["replay", str(bad), "--limit", "5", "--report", str(tmp_path)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2, f"exit code {refused.exit_code}: {refused.output}"
    assert "line 1" in refused.output, f"the line is not named in: {refused.output}"
    skipped = CliRunner().invoke(app, [*arguments, "--skip-bad"])
    assert skipped.exit_code == 0, f"exit code {skipped.exit_code}: {skipped.output}"
    table = json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))
    assert table["skipped_lines"] == 1, f"one line is malformed, {table['skipped_lines']} were counted"
