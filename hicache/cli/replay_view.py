"""The output of `hicache replay`: a progress bar, and tables at the end."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay import HostOutcome, ReplayOutcome, ReplaySettings, StorageOutcome, replay
from hicache.testing.traces import Trace


def replay_with_progress(
    console: Console, trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings
) -> ReplayOutcome:
    """Replay the trace with a progress bar that counts requests."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("requests", total=None)
        return replay(trace, adapter, settings, lambda done, total: bar.update(task, completed=done, total=total))


def show_outcome(console: Console, outcome: ReplayOutcome) -> None:
    """Print tables: totals with rates to compare with, both parts if there is storage, and latencies per verb."""
    console.print(_totals(outcome))
    if outcome.storage is not None:
        console.print(_parts(outcome.storage))
    console.print(_latencies(outcome))


def _totals(outcome: ReplayOutcome) -> Table:
    rows = {
        "device capacity": _listed(outcome.capacity_tokens),
        **({} if outcome.host is None else {"host capacity": _listed(outcome.host.capacity_tokens)}),
        "distinct pages": f"{outcome.footprint_tokens:,} tokens",
        "requests": f"{outcome.requests:,}, of which too large: {outcome.too_large:,}",
        "skipped lines": f"{outcome.skipped_lines:,}",
        "input": f"{outcome.input_tokens:,} tokens",
        **{
            f"hits on {tier}": f"{tokens:,} tokens, {outcome.hit_rates[tier]:.2%}"
            for tier, tokens in outcome.hit_tokens.items()
        },
        "hit rate": f"{outcome.hit_rate:.2%}",
        "block-level LRU": _lru(outcome),
        "offline optimum": f"{outcome.optimal_hit_rate:.2%}{_above(outcome)}",
        "evicted": _tokens(outcome.evicted_tokens),
        **({} if outcome.host is None else _moved(outcome.host)),
        **({} if outcome.storage is None else _stored(outcome.storage)),
        "checks": _checks(outcome),
        "time and memory": f"{outcome.seconds:.1f} s, peak {outcome.peak_rss_bytes / 2**30:.2f} GiB",
    }
    table = Table("", outcome.configuration, title=f"{outcome.trace} on {outcome.adapter}")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _listed(capacity_tokens: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in capacity_tokens.items())


def _tokens(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,} tokens"


def _lru(outcome: ReplayOutcome) -> str:
    device_alone = "" if outcome.host is None else f", {outcome.device_lru_hit_rate:.2%} on the device alone"
    return f"{outcome.lru_hit_rate:.2%}{_above(outcome)}{device_alone}"


def _above(outcome: ReplayOutcome) -> str:
    return "" if outcome.storage is None else " on device and host"


def _moved(host: HostOutcome) -> dict[str, str]:
    return {
        "backed up": _bytes(host.bytes_backed_up, host.bytes_per_token),
        "loaded back": _bytes(host.bytes_loaded, host.bytes_per_token),
        "backups refused": "unknown" if host.backups_refused is None else f"{host.backups_refused:,}",
    }


def _bytes(count: int | None, bytes_per_token: int | None) -> str:
    if count is None:
        return "unknown"
    in_tokens = f", equal to {count // bytes_per_token:,} tokens of full" if bytes_per_token else ""
    return f"{count:,} bytes{in_tokens}"


def _stored(storage: StorageOutcome) -> dict[str, str]:
    """Bytes to and from storage and the number of prefetches, as the cache counts them."""
    prefetched = _count(storage.total("bytes_prefetched")), _count(storage.total("fetched_tokens"))
    counts = {
        "stored": f"{_count(storage.total('bytes_stored'))} bytes",
        "prefetched": f"{prefetched[0]} bytes, {prefetched[1]} tokens",
        "prefetches": f"{_count(storage.total('prefetches'))}, refused {_count(storage.total('prefetches_refused'))}",
    }
    return {**counts, "unlimited cache": f"{storage.unbounded_hit_rate:.2%}"}


def _parts(storage: StorageOutcome) -> Table:
    """Hits per tier before and after the restart, or for both halves if there was none."""
    table = Table(
        "",
        title=f"{storage.backend}, {storage.stop_policy}, "
        + ("with a restart" if storage.restarted else "without a restart"),
    )
    for heading in ("requests", *storage.parts[0].hit_rates, "all tiers", "unlimited cache", "seconds"):
        table.add_column(heading, justify="right")
    for number, (part, limit) in enumerate(zip(storage.parts, storage.unbounded_hit_rates, strict=True), start=1):
        rates = [f"{rate:.2%}" for rate in (*part.hit_rates.values(), part.hit_rate, limit)]
        table.add_row(f"part {number}", f"{part.requests:,}", *rates, f"{part.seconds:.1f}")
    return table


def _count(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _checks(outcome: ReplayOutcome) -> str:
    if outcome.broken is not None:
        return "an invariant was violated"
    return f"{outcome.checks} of the whole cache, all passed" if outcome.checks else "none: the adapter has no snapshot"


def _latencies(outcome: ReplayOutcome) -> Table:
    table = Table("verb", title="latency in µs")
    for heading in ("p50", "p90", "p99", "max", "calls"):
        table.add_column(heading, justify="right")
    for verb, latency in outcome.latency.items():
        figures = (latency.p50_us, latency.p90_us, latency.p99_us, latency.max_us)
        table.add_row(verb, *(f"{figure:,.1f}" for figure in figures), f"{latency.calls:,}")
    return table
