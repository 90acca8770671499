"""Reports of a run: `run.json`, an HTML page, Markdown and JUnit XML, written beside each other."""

from __future__ import annotations

from pathlib import Path

from hicache.testing.report.merge import merge_runs
from hicache.testing.report.run import SCHEMA_VERSION, Execution, Outcome, RunRecord, read_run, write_run

__all__ = ["SCHEMA_VERSION", "Execution", "Outcome", "RunRecord", "merge_runs", "read_run", "write_report", "write_run"]


def write_report(record: RunRecord, directory: Path) -> Path:
    """Write run.json, report.html, report.md and junit.xml, and return the path of the HTML page.

    Each `replay*.svg` that lies in the directory becomes part of the page.
    """
    # Whoever only reads or merges runs needs neither templates nor pictures.
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report.html import render_html
    from hicache.testing.report.junit import render_junit
    from hicache.testing.report.markdown import render_markdown
    from hicache.testing.report.overview import overview

    view = overview(record, CONTRACT)
    pictures = sorted(directory.glob("replay*.svg"), key=lambda picture: picture.stem)
    replay_svgs = [picture.read_bytes() for picture in pictures]
    directory.mkdir(parents=True, exist_ok=True)
    write_run(record, directory / "run.json")
    page = directory / "report.html"
    page.write_text(render_html(view, CONTRACT, replay_svgs), encoding="utf-8")
    (directory / "report.md").write_text(render_markdown(view, CONTRACT), encoding="utf-8")
    (directory / "junit.xml").write_text(render_junit(record), encoding="utf-8")
    return page
