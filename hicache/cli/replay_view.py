"""The output of `hicache replay`: a progress bar, and tables at the end."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hicache.cli.command import say_table
from hicache.cli.progress_lines import progress_lines
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay import ReplayOutcome, ReplaySettings, StateComparison, StorageOutcome, replay
from hicache.testing.replay.page import figures
from hicache.testing.traces import Trace
from hicache.types import Component


def replay_with_progress(
    console: Console, trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings
) -> ReplayOutcome:
    """Replay the trace with a bar that counts requests; without a terminal, with a line every ten seconds."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar,
        nullcontext() if console.is_terminal else progress_lines(partial(_state, bar), console),
    ):
        task = bar.add_task("requests", total=None)
        return replay(trace, adapter, settings, lambda done, total: bar.update(task, completed=done, total=total))


def _state(bar: Progress) -> str:
    """How far the replay is. Before and after the requests it reads the whole trace."""
    done, total = next(((task.completed, task.total) for task in bar.tasks), (0, None))
    if total is None:
        return "reading the trace"
    return f"{done:,.0f} of {total:,.0f} requests" + ("; computing what to compare with" if done == total else "")


def show_outcome(console: Console, outcome: ReplayOutcome) -> None:
    """Print tables: totals with rates to compare with, both parts if there is storage, and latencies per verb."""
    say_table(console, _totals(outcome))
    if outcome.storage is not None:
        say_table(console, _parts(outcome.storage))
    say_table(console, _latencies(outcome))


def show_states(console: Console, comparison: StateComparison) -> None:
    """Print a table of hit rates: a row for each policy, a column for each trace and capacity."""
    table = Table("states kept, recency", title=escape(f"hit rates of {comparison.adapter}"))
    for one in comparison.of(comparison.policies[0]):
        table.add_column(escape(f"{one.trace} {one.capacity}"), justify="right")
    for heading in ("worst loss", "locked at most, tokens", "states"):
        table.add_column(heading, justify="right")
    for policy in comparison.policies:
        rates = [f"{one.hit_rate:.2%}" for one in comparison.of(policy)]
        pinned = [f"{comparison.pinned(policy, name):,}" for name in (Component.FULL, Component.MAMBA)]
        table.add_row(policy.name, *rates, f"{comparison.worst_loss(policy):.2%}", *pinned)
    say_table(console, table)


def _totals(outcome: ReplayOutcome) -> Table:
    table = Table("", escape(outcome.configuration), title=escape(f"{outcome.trace} on {outcome.adapter}"))
    for figure in figures(outcome):
        table.add_row(figure.name, figure.value)
    return table


def _parts(storage: StorageOutcome) -> Table:
    """Hits per tier before and after the restart, or for both halves if there was none."""
    table = Table(
        "",
        title=escape(f"{storage.backend}, {storage.stop_policy}, ")
        + ("with a restart" if storage.restarted else "without a restart"),
    )
    for heading in ("requests", *storage.parts[0].hit_rates, "all tiers", "unlimited cache", "seconds"):
        table.add_column(heading, justify="right")
    for number, (part, limit) in enumerate(zip(storage.parts, storage.unbounded_hit_rates, strict=True), start=1):
        rates = [f"{rate:.2%}" for rate in (*part.hit_rates.values(), part.hit_rate, limit)]
        table.add_row(f"part {number}", f"{part.requests:,}", *rates, f"{part.seconds:.1f}")
    return table


def _latencies(outcome: ReplayOutcome) -> Table:
    table = Table("verb", title="latency in µs")
    for heading in ("p50", "p90", "p99", "max", "calls"):
        table.add_column(heading, justify="right")
    for verb, latency in outcome.latency.items():
        figures = (latency.p50_us, latency.p90_us, latency.p99_us, latency.max_us)
        table.add_row(verb, *(f"{figure:,.1f}" for figure in figures), f"{latency.calls:,}")
    return table
