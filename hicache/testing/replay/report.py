"""The two files of a replay's report: `replay.json` and `replay.svg`."""

from __future__ import annotations

from pathlib import Path

from hicache.testing.replay.outcome import ReplayOutcome, write_outcome
from hicache.testing.replay.plot import draw_replay


def write_report(outcome: ReplayOutcome, directory: Path) -> None:
    """Write both files into a directory, which is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    write_outcome(outcome, directory / "replay.json")
    draw_replay(outcome, directory / "replay.svg")
