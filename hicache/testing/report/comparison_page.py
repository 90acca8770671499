"""The HTML page of a comparison, in the style of the report."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.testing.contract import Clause
from hicache.testing.report.comparison import Comparison
from hicache.testing.report.matrix import Status
from hicache.testing.report.pages import SYMBOLS, templates
from hicache.testing.report.run import Outcome


def render_comparison(comparison: Comparison, clauses: Mapping[str, Clause]) -> str:
    """Render the page: clauses by implementations, the failures of each, and what each did not run and why."""
    records = [one.view.record for one in comparison.implementations]
    return (
        templates()
        .get_template("comparison.html")
        .render(
            comparison=comparison,
            clauses=clauses,
            status=Status,
            outcome=Outcome,
            symbols=SYMBOLS,
            headline=difference(comparison),
            numbers={one.name: number for number, one in enumerate(comparison.implementations, start=1)},
            environment=tuple(dict.fromkeys(name for record in records for name in record.environment)),
        )
    )


def difference(comparison: Comparison) -> str:
    """The number of clauses that differ, in one sentence."""
    differing = sum(one.differs for one in comparison.clauses)
    return f"Clauses that pass for one implementation and fail for another: {differing} of {len(comparison.clauses)}"
