"""The page that compares caches of other projects, clause by clause."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hicache.errors import ConfigurationError
from hicache.testing.contract import CONTRACT
from hicache.testing.report import read_run, write_comparison
from hicache.testing.report.comparison import compare

REPORTS = Path("reports/engines")
"""Where the reports of the runs are, unless they are named."""


def write_page(runs: Sequence[Path], page: Path) -> None:
    """Write the HTML page. `runs`: a run.json or a report folder each; none: all in REPORTS.

    Raises ConfigurationError where there is no run, and for a file that is not a record.
    """
    files = [run / "run.json" if run.is_dir() else run for run in runs] or sorted(REPORTS.glob("*/run.json"))
    if not files:
        raise ConfigurationError(
            f"{REPORTS} has no reports: write them with python -m hicache.engines run NAME --report {REPORTS}"
        )
    write_comparison(compare({str(file): read_run(file) for file in files}, CONTRACT), page)
