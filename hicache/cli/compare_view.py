"""What `hicache report compare` shows: the counts of each run, and the clauses that any implementation fails."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hicache.testing.report.comparison import Comparison, Contender
from hicache.testing.report.comparison_page import difference
from hicache.testing.report.matrix import Status
from hicache.testing.report.pages import SYMBOLS
from hicache.testing.report.run import Outcome
from hicache.testing.report.text import counted, first_line, legible

_STYLES = {
    Status.PASSED: "green",
    Status.PASSED_IN_PART: "green",
    Status.FAILED: "red",
    Status.KNOWN_FAILURE: "yellow",
}

_MOST_FINDINGS = 5

_BROKEN = (Status.FAILED, Status.KNOWN_FAILURE)


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print the counts, the clauses that do not hold everywhere, and the first findings with their commands."""
    console.print(_counts(comparison))
    broken = _broken(comparison)
    if broken.row_count:
        console.print(broken)
    for contender in comparison.contenders:
        _show_findings(contender, console)
    _say(console, difference(comparison), style="bold")


def _show_findings(contender: Contender, console: Console) -> None:
    shown = contender.findings[:_MOST_FINDINGS]
    if contender.findings:
        most = "" if shown == contender.findings else f"; the first {len(shown)}, and all of them in the page"
        _say(console, f"{contender.name} fails {counted(len(contender.findings), 'test')}{most}:")
    for finding in shown:
        _say(console, f"{SYMBOLS[finding.status]} {finding.test}", style=_STYLES[finding.status])
        _say(console, f"  {first_line(finding.shortest.reason)}")
        _say(console, f"  {finding.shortest.replay}\n", style="cyan")


def _counts(comparison: Comparison) -> Table:
    table = _table("", comparison)
    views = [contender.view for contender in comparison.contenders]
    for outcome in Outcome:
        counts = [view.outcomes[outcome] for view in views]
        table.add_row(f"tests {outcome.value.replace('_', ' ')}", *(f"{count:,}" for count in counts))
    table.add_section()
    for status in Status:
        table.add_row(f"clauses {status.value}", *(str(view.matrix.counts[status]) for view in views))
    return table


def _broken(comparison: Comparison) -> Table:
    table = _table("clause", comparison)
    for one in comparison.clauses:
        statuses = [standing.cell.status for standing in one.standings]
        if not set(_BROKEN).isdisjoint(statuses):
            cells = [f"[{_STYLES.get(status, 'white')}]{status.value}[/]" for status in statuses]
            table.add_row(one.clause.id, *cells)
    return table


def _table(heading: str, comparison: Comparison) -> Table:
    """A table with a column for each implementation."""
    return Table(heading, *(escape(legible(contender.name)) for contender in comparison.contenders))


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(legible(text), style=style, markup=False, highlight=False, soft_wrap=True)
