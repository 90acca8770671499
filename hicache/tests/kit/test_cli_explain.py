"""`hicache explain`: what it shows, what it writes, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.story.script import ACTS, INTRODUCTION

HERE = "hicache.tests.kit.test_cli_explain"


class Unopened(ReferenceAdapter):
    """Cannot be opened."""

    def __init__(self, config: CacheConfig) -> None:
        raise ConfigurationError("mamba_chunk_size 4 is not a power of ten")


def run_app(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of `hicache explain`, with single spaces."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["explain", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_the_story_is_told_from_the_first_act_to_the_last() -> None:
    code, output = run_app()
    assert code == 0, f"expected 0, got {code}: {output}"
    places = [output.find(text) for text in (INTRODUCTION, *(act.text for act in ACTS))]
    assert places == sorted(places), f"told in this order: {places}"
    assert min(places) >= 0, f"something is not told: {places}"


def test_one_act_is_told_alone(tmp_path: Path) -> None:
    code, output = run_app("--act", "3", "--svg", str(tmp_path / "act.svg"))
    assert code == 0, f"expected 0, got {code}: {output}"
    told = [act.title for act in ACTS if act.text in output]
    assert told == [ACTS[2].title], f"told: {told}"
    drawn = (tmp_path / "act.svg").read_text(encoding="utf-8")
    titles = [act.title for act in ACTS if f"</tspan> {act.title}<" in drawn]
    assert titles == [ACTS[2].title], f"drawn: {titles}"


def test_the_page_goes_where_it_is_told_to(tmp_path: Path) -> None:
    page = tmp_path / "a folder" / "story.svg"
    code, output = run_app("--svg", str(page))
    assert code == 0, f"expected 0, got {code}: {output}"
    assert f"page: {page}" in output, f"the last line names the page: {output[-200:]}"
    ET.fromstring(page.read_text(encoding="utf-8"))  # noqa: S314 - our own page


def test_an_act_that_there_is_not_is_a_usage_error() -> None:
    for number in (0, len(ACTS) + 1):
        code, output = run_app("--act", str(number))
        assert code == 2, f"act {number}: expected 2, got {code}: {output}"
        assert "--act" in output, f"the option is named: {output}"


def test_an_adapter_that_lacks_something_is_told_what() -> None:
    code, output = run_app("--adapter", "hicache.tests.kit.flat_cache:FlatCache")
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "FlatCache does not declare: SWA, MAMBA, SNAPSHOT, HOST, STEPPED" in output, f"what it lacks: {output}"


def test_a_cache_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    code, output = run_app("--adapter", f"{HERE}:Unopened", "--svg", str(tmp_path / "story.svg"))
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "mamba_chunk_size 4 is not a power of ten" in output, f"the reason is told: {output}"
    assert not list(tmp_path.iterdir()), "no page is written"


def test_a_cache_that_does_something_else_fails_with_the_act_and_the_clause(tmp_path: Path) -> None:
    adapter = "hicache.tests.kit.test_story:NoLoads"
    code, output = run_app("--adapter", adapter, "--svg", str(tmp_path / "story.svg"))
    assert code == 1, f"expected 1, got {code}: {output}"
    assert ACTS[4].text in output, "the acts before it are told"
    assert f"act 6, '{ACTS[5].title}': HOST-4" in output, f"act and clause are named: {output[-300:]}"
    assert not list(tmp_path.iterdir()), "no page is written"


def test_the_command_works_as_a_process_of_its_own() -> None:
    program = "from hicache.cli.main import main; main()"
    command = [sys.executable, "-c", program, "explain", "--act", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    assert ACTS[0].title in done.stdout, f"the act is told: {done.stdout}"
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"
    assert not done.stderr, f"nothing goes wrong: {done.stderr}"
