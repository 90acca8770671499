"""The files of a replay: its outcome, its plot and its page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from hicache.testing.replay.outcome import ReplayOutcome
from hicache.testing.replay.states import StateComparison
from hicache.testing.report.redaction import without_secrets


def write_report(outcome: ReplayOutcome, directory: Path, name: str = "replay") -> None:
    """Write the outcome, its plot and its page, without secrets, to a directory, which is created if needed.

    The outcome is JSON in ASCII, so that any message can be written. The plot is SVG, and the page is HTML.
    """
    # Only a report needs matplotlib and templates.
    from hicache.testing.replay.page import render_replay
    from hicache.testing.replay.plot import draw_replay

    outcome = without_secrets(outcome)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="ascii")
    picture = directory / f"{name}.svg"
    draw_replay(outcome, picture)
    page = render_replay(outcome, picture.read_bytes(), f"{name}.json")
    (directory / f"{name}.html").write_text(page, encoding="utf-8")


def write_state_comparison(comparison: StateComparison, directory: Path) -> None:
    """Write `states.json` and `states.svg`."""
    from hicache.testing.replay.states_plot import draw_states

    text = json.dumps(asdict(without_secrets(comparison)), indent=1, default=str)
    (directory / "states.json").write_text(text + "\n", encoding="ascii")
    draw_states(comparison, directory / "states.svg")
