"""`hicache replay`: run the requests of a trace on a cache, and report hits, evictions and latencies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.command import REFERENCE, adapter_class, say
from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.errors import ConfigurationError, TraceError
from hicache.types import StopPolicy

if TYPE_CHECKING:
    from hicache.testing.adapter import CacheAdapter
    from hicache.testing.replay import ReplayOutcome, ReplaySettings
    from hicache.testing.traces import Trace

_HOST_PANEL = "Host tier"
_STORAGE_PANEL = "Storage tier"
_METRICS_PANEL = "Metrics"

TraceFile = Annotated[
    Path | None,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="Trace file in Mooncake's JSONL format. Default: 200 generated requests, which ship with the kit.",
    ),
]
DeviceCapacity = Annotated[
    str,
    typer.Option(help="Device capacity: tokens, a share of the tokens in all distinct pages, or 'unlimited'."),
]
HostCapacity = Annotated[
    str | None,
    typer.Option(
        help="Host capacity, in the same form as --capacity. Without it: no host tier.", rich_help_panel=_HOST_PANEL
    ),
]
HostWrites = Annotated[
    WritePolicy,
    typer.Option(
        help="When a node is backed up: write_through: on its first use; write_through_selective: on its second use; "
        "write_back: when it is evicted.",
        rich_help_panel=_HOST_PANEL,
    ),
]
HostLayout = Annotated[Layout, typer.Option(help="Memory layout of the host pools.", rich_help_panel=_HOST_PANEL)]
HostExecutor = Annotated[
    ExecutorKind,
    typer.Option(
        help="What runs the transfers: threaded: threads; stepped: one step per request, so that a run is repeatable; "
        "streams: CUDA streams, which need a GPU.",
        rich_help_panel=_HOST_PANEL,
    ),
]


StorageBackendName = Annotated[
    str | None,
    typer.Option(
        help="Backend: memory, file, slotfile, hf3fs, redis, objects, nixl, mooncake or module:Class. Needs --host.",
        rich_help_panel=_STORAGE_PANEL,
    ),
]
StorageExtra = Annotated[
    str,
    typer.Option(
        help="Extra configuration: thresholds and backend options, as JSON or @file. '{directory}' in a value is a "
        "temporary folder, which is also where the backends of this package store pages by default.",
        rich_help_panel=_STORAGE_PANEL,
    ),
]
StorageStops = Annotated[
    StopPolicy,
    typer.Option(
        help="How long a request waits for its prefetch: best_effort: not at all; wait_complete: until it has ended; "
        "timeout: until a deadline.",
        rich_help_panel=_STORAGE_PANEL,
    ),
]
QueueSteps = Annotated[
    int,
    typer.Option(
        help="Steps that a request waits in the queue after its prefetch was started.", rich_help_panel=_STORAGE_PANEL
    ),
]
RestartAt = Annotated[
    float,
    typer.Option(
        help="Share of the requests, above 0 and at most 1, after which the cache is closed and a new one is opened on "
        "the same storage. 1: no restart.",
        rich_help_panel=_STORAGE_PANEL,
    ),
]


MetricsFile = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="File for the metrics at the end, in Prometheus's text format. Needs hicache\\[metrics].",
        rich_help_panel=_METRICS_PANEL,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port on 127.0.0.1 that serves the metrics during the replay. 0: any free one.",
        rich_help_panel=_METRICS_PANEL,
    ),
]


def replay_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    trace: TraceFile = None,
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    capacity: DeviceCapacity = "25%",
    page_size: Annotated[int, typer.Option(help="Page size in tokens.")] = 64,
    policy: Annotated[EvictionPolicy, typer.Option(help="Eviction order of device leaves.")] = EvictionPolicy.LRU,
    components: Annotated[str, typer.Option(help="Any of full, swa, mamba, indexer, separated by commas.")] = "full",
    window: Annotated[int, typer.Option(help="Sliding window in tokens, for swa.")] = 4096,
    host: HostCapacity = None,
    write_policy: HostWrites = WritePolicy.WRITE_THROUGH,
    host_layout: HostLayout = Layout.PAGE_FIRST,
    executor: HostExecutor = ExecutorKind.THREADED,
    storage: StorageBackendName = None,
    storage_config: StorageExtra = "{}",
    stop_policy: StorageStops = StopPolicy.WAIT_COMPLETE,
    queue_steps: QueueSteps = 4,
    restart_at: RestartAt = 0.5,
    running: Annotated[int, typer.Option(help="Number of requests that run at the same time.")] = 8,
    check_every: Annotated[int, typer.Option(help="Check the whole cache every N requests. 0: at the end.")] = 2000,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N requests.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip malformed lines and count them.")] = False,
    metrics_file: MetricsFile = None,
    metrics_port: MetricsPort = None,
    report: Annotated[Path, typer.Option(help="Folder for replay.html and its data.")] = Path("reports/replay"),
) -> None:
    """Replay a trace on a cache. Report evictions, latencies, and hits per tier, compared with LRU and the optimum.

    Exit code:
    - 0: the replay reached its end.
    - 1: the cache violated an invariant, which the message names.
    - 2: the cache cannot be opened, or the trace cannot be read.
    """
    from hicache.testing.replay import HostSettings, ReplaySettings, StorageSettings
    from hicache.testing.traces import SHIPPED_TRACE, Trace

    console, requests = Console(), Trace(trace or SHIPPED_TRACE, skip_bad=skip_bad, limit=limit)
    with _configuration_errors():
        settings = ReplaySettings(
            page_size=page_size,
            capacity=capacity,
            components=tuple(map(str.strip, components.split(","))),
            policy=policy,
            sliding_window_size=window,
            running=running,
            check_every=check_every,
            host=None if host is None else HostSettings(host, write_policy, host_layout, executor),
            storage=StorageSettings(storage, storage_config, stop_policy, queue_steps, restart_at) if storage else None,
        )
        outcome = _replayed(console, requests, _prepared(adapter, report), settings, metrics_file, metrics_port)
    _report(console, outcome, report)


def _prepared(adapter: str, report: Path) -> type[CacheAdapter]:
    """The adapter class. Makes the folder of the report now, so that a replay does not fail at its end."""
    cache = adapter_class(adapter)
    try:
        report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"no report can be written to {report}: {error}") from error
    return cache


def _replayed(
    console: Console,
    requests: Trace,
    cache: type[CacheAdapter],
    settings: ReplaySettings,
    metrics_file: Path | None,
    metrics_port: int | None,
) -> ReplayOutcome:
    """Replay the trace. The metrics of its caches are exposed if there is a file or a port."""
    from hicache.cli.exposition import exposed
    from hicache.cli.replay_view import replay_with_progress

    with exposed(cache, metrics_file, metrics_port) as measured:
        return replay_with_progress(console, requests, measured, settings)


@contextmanager
def _configuration_errors() -> Iterator[None]:
    """Print an error in the configuration or the trace, and exit with 2."""
    try:
        yield
    except (TraceError, ConfigurationError) as error:
        say(Console(stderr=True), f"{type(error).__name__}: {error}", style="red")
        raise typer.Exit(2) from error


def _report(console: Console, outcome: ReplayOutcome, report: Path) -> None:
    """Write the report and show it. Exits with 1 if an invariant was violated."""
    from hicache.cli.replay_view import show_outcome
    from hicache.testing.replay import write_report

    write_report(outcome, report)
    show_outcome(console, outcome)
    say(console, f"report: {report / 'replay.html'}")
    if outcome.broken is not None:
        say(console, f"invariant violated {outcome.broken}", style="red")
        raise typer.Exit(1)
