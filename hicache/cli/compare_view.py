"""The output of `hicache report compare`: counts of each run, failed clauses, and the first failed tests."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hicache.cli.command import say
from hicache.testing.report.comparison import Comparison, Implementation, contract_difference, difference
from hicache.testing.report.legible import legible
from hicache.testing.report.matrix import SYMBOLS, Status
from hicache.testing.report.run import Outcome, counted, first_line

_STYLES = {
    Status.PASSED: "green",
    Status.PASSED_IN_PART: "green",
    Status.FAILED: "red",
    Status.KNOWN_FAILURE: "yellow",
}

_MAX_FINDINGS = 5

_NOT_MET = (Status.FAILED, Status.KNOWN_FAILURE)


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print the counts, the clauses that fail anywhere, and the first failed tests with commands that rerun them."""
    console.print(_counts(comparison))
    failed = _failed_clauses(comparison)
    if failed.row_count:
        console.print(failed)
    for implementation in comparison.implementations:
        _show_findings(implementation, console)
    if contracts := contract_difference(comparison):
        say(console, legible(contracts), style="yellow")
    say(console, difference(comparison), style="bold")


def _show_findings(implementation: Implementation, console: Console) -> None:
    shown = implementation.findings[:_MAX_FINDINGS]
    if implementation.findings:
        more = (
            "" if shown == implementation.findings else f"; these are the first {len(shown)}, and the HTML page has all"
        )
        say(console, legible(f"{implementation.name} fails {counted(len(implementation.findings), 'test')}{more}:"))
    for finding in shown:
        say(console, legible(f"{SYMBOLS[finding.status]} {finding.test}"), style=_STYLES[finding.status])
        say(console, legible(f"  {first_line(finding.shortest.reason)}"))
        say(console, legible(f"  {finding.shortest.replay}\n"), style="cyan")


def _counts(comparison: Comparison) -> Table:
    table = _table("", comparison)
    views = [implementation.view for implementation in comparison.implementations]
    for outcome in Outcome:
        counts = [view.outcomes[outcome] for view in views]
        table.add_row(f"tests {outcome.value.replace('_', ' ')}", *(f"{count:,}" for count in counts))
    table.add_section()
    for status in Status:
        table.add_row(f"clauses {status.value}", *(str(view.matrix.counts[status]) for view in views))
    return table


def _failed_clauses(comparison: Comparison) -> Table:
    table = _table("clause", comparison)
    for one in comparison.clauses:
        statuses = [result.cell.status for result in one.results]
        if not set(_NOT_MET).isdisjoint(statuses):
            cells = [f"[{_STYLES.get(status, 'white')}]{status.value}[/]" for status in statuses]
            table.add_row(one.clause.id, *cells)
    return table


def _table(heading: str, comparison: Comparison) -> Table:
    """A table with a column for each implementation."""
    return Table(heading, *(escape(legible(implementation.name)) for implementation in comparison.implementations))
