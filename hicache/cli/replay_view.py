"""What `hicache replay` shows: a progress bar, and tables at the end."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay import ReplayOutcome, ReplaySettings, replay
from hicache.testing.traces import Trace


def replay_with_progress(
    console: Console, trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings
) -> ReplayOutcome:
    """Replay with a bar that advances by requests."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("requests", total=None)
        return replay(trace, adapter, settings, lambda done, total: bar.update(task, completed=done, total=total))


def show_outcome(console: Console, outcome: ReplayOutcome) -> None:
    """Print two tables: the totals beside their limits, and the latency of each verb."""
    console.print(_totals(outcome))
    console.print(_latencies(outcome))


def _totals(outcome: ReplayOutcome) -> Table:
    capacity = ", ".join(f"{name} {size:,}" for name, size in outcome.capacity_tokens.items())
    evicted = "not known" if outcome.evicted_tokens is None else f"{outcome.evicted_tokens:,} tokens"
    rows = {
        "capacity": f"{capacity} of a footprint of {outcome.footprint_tokens:,} tokens",
        "requests": f"{outcome.requests:,}, {outcome.too_large:,} of them too large",
        "skipped lines": f"{outcome.skipped_lines:,}",
        "input": f"{outcome.input_tokens:,} tokens",
        **{f"hits on {tier}": f"{tokens:,} tokens" for tier, tokens in outcome.hit_tokens.items()},
        "hit rate": f"{outcome.hit_rate:.2%}",
        "LRU by blocks": f"{outcome.lru_hit_rate:.2%}",
        "offline optimum": f"{outcome.optimal_hit_rate:.2%}",
        "evicted": evicted,
        "checks": _checks(outcome),
        "took": f"{outcome.seconds:.1f} s, at most {outcome.peak_rss_bytes / 2**30:.2f} GiB",
    }
    table = Table("", outcome.configuration, title=f"{outcome.trace} on {outcome.adapter}")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _checks(outcome: ReplayOutcome) -> str:
    if outcome.broken is not None:
        return "a law is broken"
    return f"{outcome.checks} of the whole cache, all laws hold" if outcome.checks else "none: it cannot be shown"


def _latencies(outcome: ReplayOutcome) -> Table:
    table = Table("verb", title="latency in µs")
    for heading in ("p50", "p90", "p99", "max", "calls"):
        table.add_column(heading, justify="right")
    for verb, latency in outcome.latency.items():
        figures = (latency.p50_us, latency.p90_us, latency.p99_us, latency.max_us)
        table.add_row(verb, *(f"{figure:,.1f}" for figure in figures), f"{latency.calls:,}")
    return table
