"""What all pages share: the templates, a symbol for each status, and counts in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hicache.testing.report.matrix import Cell, Status
from hicache.testing.report.run import Outcome
from hicache.testing.report.text import counted, first_line, legible

SYMBOLS: Mapping[Status, str] = {
    Status.PASSED: "✓",
    Status.PASSED_IN_PART: "◐",
    Status.FAILED: "✗",
    Status.KNOWN_FAILURE: "!",
    Status.SKIPPED: "-",
    Status.NOT_EXECUTED: "·",
}

_WORST_FIRST = (Outcome.FAILED, Outcome.KNOWN_FAILURE, Outcome.PASSED, Outcome.SKIPPED)


def templates() -> Environment:
    """The template environment. It escapes all text and raises for an undefined variable."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(legible=legible, first_line=first_line, tally=_tally, counted=counted)
    return environment


def _tally(cell: Cell) -> str:
    counts = [(outcome, cell.executions.get(outcome.value, 0)) for outcome in _WORST_FIRST]
    return ", ".join(f"{count} {outcome.value.replace('_', ' ')}" for outcome, count in counts if count)
