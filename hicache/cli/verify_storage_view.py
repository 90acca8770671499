"""The output of `hicache verify-storage` besides its stages: clauses, counts, figures and skipped tests."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from hicache.testing.report.matrix import Status
from hicache.testing.report.overview import Overview, overview
from hicache.testing.report.run import RunRecord
from hicache.testing.report.text import counted
from hicache.testing.storage.subject import BACKEND_CLAUSES

STYLES = {
    Status.PASSED: "green",
    Status.PASSED_IN_PART: "green",
    Status.FAILED: "red",
    Status.SKIPPED: "yellow",
}

FIGURES = ("faults of", "kills of", "throughput of")


def show_storage(record: RunRecord, console: Console) -> None:
    """Print the status of each clause with each backend, counts and figures, and skipped tests with the reason."""
    view = overview(record, BACKEND_CLAUSES)
    console.print(_clauses(view))
    figures = Table("figure", "value")
    for name, value in record.environment.items():
        if name.startswith(FIGURES):
            figures.add_row(name, value)
    if figures.row_count:
        console.print(figures)
    for group in view.skips:
        _say(console, f"{counted(group.executions, 'test')} skipped: {group.reason}")
    not_executed = [clause.id for clauses in view.not_executed.values() for clause in clauses]
    if not_executed:
        _say(console, f"clauses not executed: {', '.join(not_executed)}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _clauses(view: Overview) -> Table:
    matrix = view.matrix
    table = Table(expand=True)
    for heading in ("clause", *(name.partition("/")[2] or name for name in matrix.configurations)):
        table.add_column(heading, no_wrap=True, min_width=len(Status.FAILED.value))
    # On a narrow terminal only the sentence is cut: the clause and its status must stay readable.
    table.add_column("sentence", no_wrap=True, ratio=1)
    for section in matrix.sections:
        for row in section.rows:
            cells = [f"[{STYLES.get(cell.status, 'white')}]{cell.status.value}[/]" for cell in row.cells]
            table.add_row(row.clause.id, *cells, row.clause.sentence)
    return table
