"""compare_hits: compares two replays of one trace, request by request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.errors import ConfigurationError
from hicache.testing.replay.outcome import Difference, compare_hits


def written(path: Path, **changed: Any) -> Path:
    """A replay of three requests."""
    table = {
        "trace": "conversation.jsonl",
        "footprint_tokens": 640,
        "capacity_tokens": {"full": 256},
        "running": 8,
        "adapter": "package.module:Mine",
        "hit_lengths": {"device": [0, 64, 128], "host": [0, 0, 64]},
    }
    path.write_text(json.dumps(table | changed), encoding="ascii")
    return path


def test_replays_that_agree_have_no_difference(tmp_path: Path) -> None:
    compared = compare_hits(written(tmp_path / "a.json"), written(tmp_path / "b.json", adapter="package.module:Theirs"))
    assert compared.adapters == ("package.module:Mine", "package.module:Theirs"), f"got {compared.adapters}"
    assert (compared.requests, compared.hit_tokens) == (3, (256, 256)), f"all hits of all requests: {compared}"
    assert compared.differences == [], f"no request differs, got {compared.differences}"


def test_a_request_that_hits_elsewhere_is_told(tmp_path: Path) -> None:
    other = {"device": [0, 64, 192], "host": [0, 0, 0]}
    compared = compare_hits(written(tmp_path / "a.json"), written(tmp_path / "b.json", hit_lengths=other))
    expected = [Difference(2, ({"device": 128, "host": 64}, {"device": 192, "host": 0}))]
    assert compared.differences == expected, f"the third request alone, by tier, got {compared.differences}"
    assert compared.hit_tokens == (256, 256), f"the totals agree all the same, got {compared.hit_tokens}"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"trace": "other.jsonl"}, "trace is 'other.jsonl', but 'conversation.jsonl'"),
        ({"capacity_tokens": {"full": 128}}, "capacity_tokens is {'full': 128}"),
        ({"hit_lengths": {"device": [0]}}, "1 requests were replayed, but 3"),
    ],
)
def test_replays_of_something_else_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        compare_hits(written(tmp_path / "a.json"), written(tmp_path / "b.json", **changed))
    assert said in str(raised.value), f"expected {said!r} in {raised.value}"
    assert str(raised.value).startswith(str(tmp_path / "b.json")), f"the file is named: {raised.value}"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trace": "t"}'])
def test_what_is_no_replay_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text, encoding="ascii")
    with pytest.raises(ConfigurationError, match=r"b\.json: (cannot be read as a|not a) replay"):
        compare_hits(written(tmp_path / "a.json"), tmp_path / "b.json")


def run_app(*files: Path) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", "hits", *map(str, files)])
    return result.exit_code, result.output


def test_the_command_ends_with_1_and_names_the_requests_that_differ(tmp_path: Path) -> None:
    mine = written(tmp_path / "replay.json")
    other = written(tmp_path / "b.json", hit_lengths={"device": [0, 64, 192], "host": [0, 0, 0]})
    code, output = run_app(tmp_path, other)
    assert code == 1, f"a request differs: expected 1, got {code}: {output}"
    assert "request 2: 128 tokens on device, 64 tokens on host and 192 tokens on device, 0 tokens" in output, output
    assert "2 of 3 requests have equal hits" in output, output
    code, output = run_app(mine, mine)
    assert (code, "3 of 3 requests have equal hits" in output) == (0, True), f"expected 0, got {code}: {output}"


def test_the_command_ends_with_2_where_there_is_no_replay(tmp_path: Path) -> None:
    code, output = run_app(written(tmp_path / "a.json"), tmp_path / "none.json")
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "none.json: cannot be read as a replay" in output, f"expected the file and the reason, got {output}"
