"""Waiting: without a terminal each command prints a line every ten seconds, and make says what it installs."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hicache.cli import accuracy, progress_lines, replay_view
from hicache.cli.progress_lines import print_until
from hicache.cli.stage import StageProgress, StageResult
from hicache.cli.verify import verify_command
from hicache.cli.verify_view import run_with_progress
from hicache.clock import VirtualClock
from hicache.errors import ConfigurationError
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.replay import samples
from hicache.testing.traces import SHIPPED_TRACE, Trace

ROOT = Path(__file__).parents[3]

HANGS_S = 60.0
"""How long a command waits for its line before the test fails."""


class Output(io.StringIO):
    """What a command prints. `line`: set when this text was printed behind the seconds."""

    def __init__(self, expected: str) -> None:
        super().__init__()
        self.line = Event()
        self._expected = f" s: {expected}"

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._expected in text:
            self.line.set()
        return written


class WaitingStage:
    """Reports its progress, and ends when a line was printed."""

    name = "conformance"

    def __init__(self, progress: tuple[int, ...], line: Event) -> None:
        self._progress = progress
        self._line = line

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """See Stage."""
        if self._progress:
            progress(*self._progress)
        return StageResult(self.name, None, None if self._line.wait(HANGS_S) else "no line was printed", 1.0)


Command = Callable[[Output, pytest.MonkeyPatch], None]


def a_stage(*progress: int) -> Command:
    """A verification whose stage has made this progress."""
    return lambda output, _: ended_well(run_with_progress([WaitingStage(progress, output.line)], Console(file=output)))


def ended_well(results: list[StageResult]) -> None:
    assert [one.problem for one in results] == [None], f"got {results}"


def a_replay(*progress: int) -> Command:
    """A replay that has made this progress."""

    def run(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        def replay(*arguments: Any) -> None:
            show = arguments[-1]
            if progress:
                show(*progress)
            assert output.line.wait(HANGS_S), "no line was printed"

        monkeypatch.setattr(replay_view, "replay", replay)
        (sample, *_), trace = samples(ReferenceAdapter), Trace(SHIPPED_TRACE, skip_bad=False, limit=None)
        replay_view.replay_with_progress(Console(file=output), trace, ReferenceAdapter, sample.settings)

    return run


def the_passes_of_a_model(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of `hicache accuracy`, of which one has ended."""

    def measure(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(name="first", seconds=1.0)
        assert output.line.wait(HANGS_S), "no line was printed"

    suite = SimpleNamespace(measure=measure, RefusedFamily=ConfigurationError)
    monkeypatch.setattr(accuracy, "_suite", lambda _: suite)
    monkeypatch.setattr(accuracy, "Console", lambda **_: Console(file=output))
    accuracy._measure("module:Class", {})


@pytest.mark.parametrize(
    ("command", "line"),
    [
        pytest.param(a_stage(), "conformance: starting", id="stage-starting"),
        pytest.param(a_stage(50, 100, 2), "conformance: 50 %, 2 failed", id="stage"),
        pytest.param(a_replay(), "reading the trace", id="replay-starting"),
        pytest.param(a_replay(3, 10), "3 of 10 requests", id="replay"),
        pytest.param(a_replay(10, 10), "10 of 10 requests; computing what to compare with", id="replay-ending"),
        pytest.param(the_passes_of_a_model, "1 pass of the model ended", id="accuracy"),
    ],
)
def test_a_command_says_in_a_pipe_what_it_does(command: Command, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(line)
    monkeypatch.setattr(progress_lines, "PERIOD_S", 0.0)
    command(output, monkeypatch)
    assert output.line.is_set(), f"expected {line!r} in {output.getvalue()[:1000]!r}"


def test_a_line_comes_every_ten_seconds() -> None:
    output, clock = io.StringIO(), VirtualClock()

    def is_over(seconds: float) -> bool:
        clock.advance(seconds)
        return clock.now() >= 40.0

    print_until(is_over, lambda: "conformance: 50 %", Console(file=output), clock)
    expected = [f"{seconds} s: conformance: 50 %" for seconds in (10, 20, 30)]
    assert output.getvalue().splitlines() == expected, f"expected {expected}, got {output.getvalue()!r}"


def test_a_terminal_shows_bars_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output("")
    monkeypatch.setattr(progress_lines, "PERIOD_S", 0.0)
    shown = Event()
    shown.set()
    run_with_progress([WaitingStage((50, 100), shown)], Console(file=output, force_terminal=True))
    assert not output.line.is_set(), f"expected no line, got {output.getvalue()!r}"


def test_help_says_cpu_seconds_with_the_machine() -> None:
    text = " ".join((verify_command.__doc__ or "").split())
    assert re.search(r"\d+ CPU seconds on an? \w+", text), f"expected CPU seconds and the machine in {text!r}"
    assert "minute" not in text, f"minutes depend on the machine; got {text!r}"


@pytest.mark.parametrize("target", [".venv/bin/tox", ".venv/kit", ".venv/dev", ".venv/models"])
def test_make_says_what_it_installs(target: str) -> None:
    command = ["make", "--dry-run", "--always-make", target]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    (number,) = [number for number, line in enumerate(lines) if " pip install " in line]
    assert lines[number - 1].startswith('echo "Installing '), f"expected a line before {lines[number]}: {lines}"
    assert "--quiet" not in lines[number], f"pip says what it downloads; got {lines[number]}"
