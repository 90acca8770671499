"""The settings of a replay with storage, and `hicache replay --storage`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.errors import ConfigurationError
from hicache.testing.traces import generate_trace, write_trace
from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.stored_replays import SMALL, STORAGE, TWICE, replayed, settings


def test_a_tier_that_is_not_declared_is_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not declare STORAGE"):
        replayed(tmp_path, TWICE, settings(STORAGE), HostedCache)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_restart_is_within_the_trace_or_never(share: float) -> None:
    with pytest.raises(ConfigurationError, match="restart_at must be above 0"):
        replace(STORAGE, restart_at=share)


def test_a_request_waits_no_negative_steps() -> None:
    with pytest.raises(ConfigurationError, match="queue_steps must be 0 or more"):
        replace(STORAGE, queue_steps=-1)


ARGUMENTS = ["--capacity", "20%", "--host", "30%", "--executor", "stepped", "--storage", "memory"]


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "generated.jsonl"
    write_trace(path, generate_trace(SMALL, 7))
    return path


def test_the_command_tells_of_both_parts(path: Path, tmp_path: Path) -> None:
    arguments = ["replay", str(path), *ARGUMENTS, "--report", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, f"exit code {result.exit_code}: {result.output}"
    table = json.loads((tmp_path / "replay.json").read_text(encoding="ascii"))
    storage = table["storage"]
    assert (storage["backend"], storage["stop_policy"], storage["restarted"]) == ("memory", "wait_complete", True)
    assert [part["requests"] for part in storage["parts"]] == [20, 20], f"a restart in the middle: {storage}"
    assert storage["parts"][1]["hit_tokens"]["storage"] > 0, f"the second half hits storage: {storage['parts'][1]}"
    second = storage["parts"][1]["hit_rates"]["storage"]
    for expected in ("hits on storage", "part 2", "unlimited cache", "with a restart", "stored", f"{second:.2%}"):
        assert expected in result.output, f"{expected!r} is missing from: {result.output}"
    picture = (tmp_path / "replay.svg").read_text(encoding="utf-8")
    assert "<!-- restart -->" in picture, "the restart is not in the picture"
    assert "<!-- and in storage" in picture, "the hits of storage are not in the picture"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--storage", "memory"], "needs a host tier"),
        ([*ARGUMENTS, "--storage", "nowhere"], "nowhere"),
        ([*ARGUMENTS, "--storage-config", '{"prefetch_threshold": "many"}'], "prefetch_threshold"),
        ([*ARGUMENTS, "--storage-config", '{"room": 1}'], "room"),
        ([*ARGUMENTS, "--storage-config", "@nowhere.json"], "nowhere.json"),
        ([*ARGUMENTS, "--restart-at", "2"], "restart_at"),
        ([*ARGUMENTS, "--stop-policy", "soon"], "soon"),
    ],
)
def test_what_cannot_be_opened_ends_with_2(path: Path, tmp_path: Path, arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["replay", str(path), "--report", str(tmp_path), *arguments])
    assert result.exit_code == 2, f"exit code {result.exit_code}: {result.output}"
    assert expected in result.output, f"{expected!r} is missing from: {result.output}"
