"""The output of `hicache verify`: a progress bar for each stage, then a table, the failures and the report's path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from hicache.cli.stage import Stage, StageResult, shortcomings
from hicache.testing.report import Execution, Outcome
from hicache.testing.report.run import first_line
from hicache.testing.report.text import legible

_MAX_FAILURES = 5


def run_with_progress(stages: Sequence[Stage], console: Console) -> list[StageResult]:
    """Run each stage with its own progress bar."""
    columns = (TextColumn("{task.description:<12}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        return [_run(stage, bars) for stage in stages]


def _run(stage: Stage, bars: Progress) -> StageResult:
    bar = bars.add_task(stage.name, total=None)
    result = stage.run(lambda done, total: bars.update(bar, completed=done, total=total))
    bars.update(bar, completed=1, total=1)
    return result


def show_results(results: Sequence[StageResult], page: Path | None, console: Console) -> None:
    """Print the table, the last failures with the commands that rerun them, the verdict and the report's path."""
    console.print(_table(results))
    for result in results:
        if result.problem is not None:
            _say(console, f"{result.name}: {result.problem}\n", style="red")
    _show_failures([one for result in results for one in _failures(result)], console)
    failed = shortcomings(results)
    verdict, colour = (f"failed: {', '.join(failed)}", "red") if failed else ("verified: no test failed", "green")
    _say(console, verdict, style=f"bold {colour}")
    if page is not None:
        _say(console, f"report: {page}")


def _table(results: Iterable[StageResult]) -> Table:
    table = Table("suite")
    for heading in ("executed", "passed", "failed", "known", "skipped", "seconds"):
        table.add_column(heading, justify="right")
    for result in results:
        counts = {outcome: result.count(outcome) for outcome in Outcome}
        skipped = counts.pop(Outcome.SKIPPED)
        shown = (sum(counts.values()), *counts.values(), skipped)
        style = "red" if result.failed else None
        table.add_row(result.name, *(f"{count:,}" for count in shown), f"{result.duration_s:.1f}", style=style)
    return table


def _failures(result: StageResult) -> list[Execution]:
    executions = result.record.executions if result.record else ()
    return [execution for execution in executions if execution.outcome is Outcome.FAILED]


def _show_failures(failures: Sequence[Execution], console: Console) -> None:
    if len(failures) > _MAX_FAILURES:
        _say(console, f"{len(failures)} failures; these are the last {_MAX_FAILURES}, and the report has all:")
    for failure in failures[-_MAX_FAILURES:]:
        _say(console, f"✗ {legible(failure.node_id)}", style="red")
        _say(console, f"  {first_line(legible(failure.reason))}")
        _say(console, f"  {legible(failure.replay)}\n", style="cyan")


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print the text unchanged: no markup, no highlighting, no line break inside a command."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
