"""The two files of a replay's report, such as `replay.json` and `replay.svg`."""

from __future__ import annotations

from pathlib import Path

from hicache.testing.replay.outcome import ReplayOutcome, write_outcome
from hicache.testing.replay.plot import draw_replay


def write_report(outcome: ReplayOutcome, directory: Path, name: str = "replay") -> None:
    """Write both files, with this name, to a directory, which is created if needed."""
    directory.mkdir(parents=True, exist_ok=True)
    write_outcome(outcome, directory / f"{name}.json")
    draw_replay(outcome, directory / f"{name}.svg")
