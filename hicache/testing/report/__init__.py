"""Reports of a run: `run.json`, an HTML page, Markdown and JUnit XML in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hicache.testing.report.redaction import without_secrets
from hicache.testing.report.run import (
    NO_EVIDENCE,
    NO_PROFILE,
    SCHEMA_VERSION,
    Execution,
    Outcome,
    RunRecord,
    Versions,
    leaving_out,
    merge_runs,
    read_run,
    write_run,
)

if TYPE_CHECKING:
    # To import the contract takes longer than to import a record.
    from hicache.testing.contract import Clause
    from hicache.testing.report.comparison import Comparison

__all__ = [
    "NO_EVIDENCE",
    "NO_PROFILE",
    "SCHEMA_VERSION",
    "Execution",
    "Outcome",
    "RunRecord",
    "Versions",
    "leaving_out",
    "merge_runs",
    "read_run",
    "without_secrets",
    "write_comparison",
    "write_report",
    "write_run",
]


def write_report(record: RunRecord, directory: Path, clauses: Mapping[str, Clause] | None = None) -> Path:
    """Write run.json, report.html, report.md and junit.xml without secrets, and return the path of the HTML page.

    `clauses`: those that the pages show, by default all of the contract. The page includes each `replay*.svg` in the
    directory.
    """
    # To read or merge runs, neither templates nor matplotlib are needed.
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report.matrix import overview
    from hicache.testing.report.pages import render_html
    from hicache.testing.report.text import render_junit, render_markdown

    shown = CONTRACT if clauses is None else clauses
    record = without_secrets(record)
    view = overview(record, shown)
    pictures = sorted(directory.glob("replay*.svg"), key=lambda picture: picture.stem)
    replays = {picture.stem: picture.read_bytes() for picture in pictures}
    directory.mkdir(parents=True, exist_ok=True)
    write_run(record, directory / "run.json")
    page = directory / "report.html"
    page.write_text(render_html(view, shown, replays), encoding="utf-8")
    (directory / "report.md").write_text(render_markdown(view), encoding="utf-8")
    (directory / "junit.xml").write_text(render_junit(record), encoding="utf-8")
    return page


def write_comparison(comparison: Comparison, page: Path) -> None:
    """Write the HTML page of a comparison, and make its folder."""
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report.pages import render_comparison

    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render_comparison(comparison, CONTRACT), encoding="utf-8")
