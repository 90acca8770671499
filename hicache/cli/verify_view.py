"""The output of `hicache verify` and `hicache verify-storage`: progress bars, tables, failures, the report's path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partial
from threading import Event

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from hicache.cli.command import say
from hicache.cli.progress_lines import progress_lines
from hicache.cli.stage import INTERRUPTED, MOSTLY_WAITS, Stage, StageResult, terminable
from hicache.testing.contract import CONTRACT
from hicache.testing.levels import Level
from hicache.testing.report import Execution, Outcome
from hicache.testing.report.coverage import Coverage, Verdict
from hicache.testing.report.failure_text import failure_parts, frames_part
from hicache.testing.report.legible import legible
from hicache.testing.report.matrix import Cause, Overview, Status, causes_of, overview
from hicache.testing.report.run import RunRecord, counted, flaky_counts
from hicache.testing.storage.subject import BACKEND_CLAUSES

_MAX_CAUSES = 5

STYLES = {
    Status.PASSED: "green",
    Status.PASSED_IN_PART: "green",
    Status.FAILED: "red",
    Status.SKIPPED: "yellow",
}

VERDICT_STYLES = {Verdict.VERIFIED: "green", Verdict.FAILED: "red", Verdict.IN_PART: "yellow"}

FIGURES = ("faults of", "kills of", "throughput of")


def run_with_progress(
    stages: Sequence[Stage], console: Console, *, at_once: int = 1, stops: bool = False
) -> list[StageResult]:
    """Run each stage with its own progress bar, and print a line with its verdict as it ends.

    Without a terminal there is no bar, and a line every ten seconds says how far the stages are.

    `at_once`: how many run at a time; if several do, the one that mostly waits begins first. Ctrl-C ends the stages
    that run, and no other is started. `stops`: nor is one after a stage that failed.
    """
    failures = TextColumn("{task.fields[failures]}", style="red")
    columns = (
        *(TextColumn("{task.description:<17}"), BarColumn(), TaskProgressColumn(), failures),
        *(TextColumn("time left"), TimeRemainingColumn()),
    )
    interrupt, interrupted = Event(), False
    in_turn = sorted(stages, key=lambda stage: at_once > 1 and stage.name != MOSTLY_WAITS)
    # No thread is left when this ends: a stage ends soon after it was interrupted.
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as bars,
        nullcontext() if console.is_terminal else progress_lines(partial(_state, bars), console),
        terminable(),
        ThreadPoolExecutor(at_once) as threads,
    ):
        run = partial(_run_unless_ended, bars=bars, interrupt=interrupt, stops=stops)
        running = [threads.submit(run, stage) for stage in in_turn]
        try:
            wait(running)
        except KeyboardInterrupt:
            interrupted = True
            interrupt.set()
    results = [result for one in running if (result := one.result()) is not None]
    if interrupted and not is_interrupted(results):
        raise KeyboardInterrupt
    order = [stage.name for stage in stages]
    return sorted(results, key=lambda result: order.index(result.name))


def is_interrupted(results: Iterable[StageResult]) -> bool:
    """Whether Ctrl-C or SIGTERM ended a stage."""
    return any(result.problem == INTERRUPTED for result in results)


def _run_unless_ended(stage: Stage, bars: Progress, interrupt: Event, *, stops: bool) -> StageResult | None:
    """Run a stage, unless the run has ended. An interrupted stage ends the run, and with `stops` one that failed."""
    if interrupt.is_set():
        return None
    result = _run(stage, bars, interrupt)
    if result.problem == INTERRUPTED or (stops and result.failed):
        interrupt.set()
    return result


def _run(stage: Stage, bars: Progress, interrupt: Event) -> StageResult:
    bar = bars.add_task(stage.name, total=None, failures="")

    def update(done: int, total: int, failures: int = 0) -> None:
        bars.update(bar, completed=done, total=total, failures=f"{failures} failed" if failures else "")

    result = stage.run(update, interrupt)
    bars.remove_task(bar)
    style = "red" if result.failed else "yellow" if result.checked_nothing else None
    say(bars.console, _line(result), style=style)
    return result


def _state(bars: Progress) -> str:
    """How far each stage is that runs."""
    return "; ".join(
        f"{bar.description}: {'starting' if bar.total is None else f'{bar.percentage:.0f} %'}"
        + (f", {bar.fields['failures']}" if bar.fields["failures"] else "")
        for bar in bars.tasks
    )


def _line(result: StageResult) -> str:
    verdict = "failed" if result.failed else "no clause was executed" if result.checked_nothing else "ok"
    counts = ", ".join(f"{result.count(outcome):,} {outcome.value.replace('_', ' ')}" for outcome in Outcome)
    cost = f"{counted(result.verbs, 'verb')}, {counted(result.processes, 'process')}, in {result.duration_s:.1f} s"
    return f"{result.name}: {verdict}: {counts}, {cost}"


def show_results(results: Sequence[StageResult], console: Console) -> None:
    """Print the table, the stages that checked nothing, what is listed as flaky, and the causes of failures.

    Each cause is printed with its smallest example and the command that reruns it.
    """
    console.print(_table(results))
    if idle := [result.name for result in results if result.checked_nothing and not result.failed]:
        say(console, f"no clause was executed by: {', '.join(idle)}", style="yellow")
    for result in results:
        if result.problem is not None:
            say(console, f"{result.name}: {result.problem}\n", style="red")
    executions = [one for result in results for one in _executions(result)]
    if flaky := flaky_counts(executions):
        say(console, flaky)
    _show_causes(causes_of(executions, CONTRACT), console)


def show_verdict(
    failed: Sequence[str], found: Coverage | None, missed: Sequence[Level], console: Console, *, checked_nothing: bool
) -> None:
    """Print the result of each level, what to declare for more, and the verdict.

    `missed`: levels that are required. `checked_nothing`: no stage executed a clause.
    """
    if found is not None:
        for one in found.levels:
            say(console, str(one), style=VERDICT_STYLES.get(one.verdict))
        say(console, str(found))
        for step in found.next_steps(missed):
            # Where something failed, no further level is advised.
            if step.level in missed or not failed:
                say(console, str(step))
    if failed:
        say(console, f"failed: {', '.join(failed)}", style="bold red")
    elif missed:
        names = ", ".join(level.value for level in missed)
        say(console, f"not verified: {names}: no test failed, but not all was checked", style="bold yellow")
    elif checked_nothing:
        say(console, "failed: no clause was executed", style="bold red")
    elif found is not None and found.verified:
        names = ", ".join(one.level.value for one in found.verified)
        say(console, f"verified: {names}: no test failed", style="bold green")
    else:
        say(console, "no test failed, and no level is verified", style="bold yellow")


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
        say(console, f"{counted(group.executions, 'test')} skipped: {group.reason}")
    not_executed = [clause.id for clauses in view.not_executed.values() for clause in clauses]
    if not_executed:
        say(console, f"clauses not executed: {', '.join(not_executed)}")


def _table(results: Iterable[StageResult]) -> Table:
    # Without lines between its columns the table fits 80 characters, the width that rich assumes in a pipe.
    table = Table("suite", box=SIMPLE_HEAD, padding=0)
    for heading in ("executed", "passed", "failed", "known", "skipped", "verbs", "seconds"):
        table.add_column(heading, justify="right")
    for result in results:
        counts = {outcome: result.count(outcome) for outcome in Outcome}
        skipped = counts.pop(Outcome.SKIPPED)
        shown = (sum(counts.values()), *counts.values(), skipped, result.verbs)
        style = "red" if result.failed else None
        table.add_row(result.name, *(f"{count:,}" for count in shown), f"{result.duration_s:.1f}", style=style)
    return table


def _executions(result: StageResult) -> tuple[Execution, ...]:
    return result.record.executions if result.record else ()


def _show_causes(causes: Sequence[Cause], console: Console) -> None:
    if len(causes) > _MAX_CAUSES:
        say(console, f"{len(causes)} causes; these are the most frequent {_MAX_CAUSES}, and the report has all:")
    for cause in causes[:_MAX_CAUSES]:
        smallest = cause.failures[0]
        say(console, f"✗ {legible(cause.name)}, found by {cause.tests}", style="red")
        if cause.also:
            say(console, f"  may also explain: {legible(', '.join(cause.also))}")
        say(console, f"  {legible(smallest.node_id)}")
        for number, part in enumerate((*failure_parts(smallest, CONTRACT), *frames_part(smallest))):
            lines = part.lines if number == 0 else (f"{part.title}:", *part.lines)
            say(console, "\n".join(f"  {line}" for line in lines))
        say(console, "  to run it again:")
        say(console, f"  {legible(smallest.replay)}\n", style="cyan")


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
