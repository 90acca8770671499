"""`hicache replay`: drive a cache with a trace of real traffic, and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.adapter_class import REFERENCE, adapter_class
from hicache.cli.host_options import HostCapacity, HostExecutor, HostLayout, HostWrites
from hicache.cli.storage_options import QueueSteps, RestartAt, StorageBackendName, StorageExtra, StorageStops
from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.errors import ConfigurationError, TraceError
from hicache.types import StopPolicy

if TYPE_CHECKING:
    from hicache.testing.replay import ReplayOutcome


def replay_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    trace: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A trace in Mooncake's format.")],
    adapter: Annotated[str, typer.Option(help="The cache to drive, as package.module:Class.")] = REFERENCE,
    capacity: Annotated[str, typer.Option(help="Tokens, a share of the footprint ('25%'), or 'unlimited'.")] = "25%",
    page_size: Annotated[int, typer.Option(help="Tokens per page.")] = 64,
    policy: Annotated[EvictionPolicy, typer.Option(help="In which order leaves are evicted.")] = EvictionPolicy.LRU,
    components: Annotated[str, typer.Option(help="Of full, swa, mamba, indexer; separated by commas.")] = "full",
    window: Annotated[int, typer.Option(help="Tokens of the sliding window, with swa.")] = 4096,
    host: HostCapacity = None,
    write_policy: HostWrites = WritePolicy.WRITE_THROUGH,
    host_layout: HostLayout = Layout.PAGE_FIRST,
    executor: HostExecutor = ExecutorKind.THREADED,
    storage: StorageBackendName = None,
    storage_config: StorageExtra = "{}",
    stop_policy: StorageStops = StopPolicy.WAIT_COMPLETE,
    queue_steps: QueueSteps = 4,
    restart_at: RestartAt = 0.5,
    running: Annotated[int, typer.Option(help="Requests that run at the same time.")] = 8,
    check_every: Annotated[int, typer.Option(help="Check the whole cache at each N-th request; 0: at the end.")] = 2000,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N requests.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count malformed lines and pass over them.")] = False,
    report: Annotated[Path, typer.Option(help="Where replay.json and replay.svg go.")] = Path("reports/replay"),
) -> None:
    """Drive a cache with a trace; report hits per tier, evictions and latencies beside the offline optimum.

    Ends with 1 when the cache breaks a law, and with 2 when it cannot be opened or the trace cannot be read.
    """
    from hicache.cli.replay_view import replay_with_progress
    from hicache.testing.replay import HostSettings, ReplaySettings, StorageSettings
    from hicache.testing.traces import Trace

    console, told = Console(), (storage_config, stop_policy, queue_steps, restart_at)
    try:
        settings = ReplaySettings(
            page_size=page_size,
            capacity=capacity,
            components=tuple(map(str.strip, components.split(","))),
            policy=policy,
            sliding_window_size=window,
            running=running,
            check_every=check_every,
            host=None if host is None else HostSettings(host, write_policy, host_layout, executor),
            storage=None if storage is None else StorageSettings(storage, *told),
        )
        requests = Trace(trace, skip_bad=skip_bad, limit=limit)
        outcome = replay_with_progress(console, requests, adapter_class(adapter), settings)
    except (TraceError, ConfigurationError) as error:
        _say(Console(stderr=True), f"{type(error).__name__}: {error}", style="red")
        raise typer.Exit(2) from error
    _tell(console, outcome, report)


def _tell(console: Console, outcome: ReplayOutcome, report: Path) -> None:
    """Write the report and show it. Ends with 1 when a law is broken."""
    from hicache.cli.replay_view import show_outcome
    from hicache.testing.replay import write_report

    write_report(outcome, report)
    show_outcome(console, outcome)
    _say(console, f"report: {report / 'replay.json'} and {report / 'replay.svg'}", style=None)
    if outcome.broken is not None:
        _say(console, f"a law is broken {outcome.broken}", style="red")
        raise typer.Exit(1)


def _say(console: Console, text: str, style: str | None) -> None:
    """Print as it is: no markup, and no line broken where a path or a command would break."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
