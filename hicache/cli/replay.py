"""`hicache replay`: run the requests of a trace on a cache, and report hits, evictions and latencies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from hicache.cli.command import (
    REFERENCE,
    adapter_class,
    end_with,
    known_names,
    number,
    option,
    say,
    writable_file,
    writable_folder,
)
from hicache.config import CacheConfig, EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.errors import ConfigurationError
from hicache.types import Component, Pool, StopPolicy

if TYPE_CHECKING:
    from hicache.testing.adapter import CacheAdapter
    from hicache.testing.replay import ReplayOutcome, ReplaySettings
    from hicache.testing.traces import Trace

COMPONENTS = (*(one.value for one in Component), Pool.INDEXER.value)

FILES = ("replay.html", "replay.json")
STATE_FILES = ("states.svg", "states.json", "agents.jsonl", "conversations.jsonl")

_HOST_PANEL = "Host tier"
_STORAGE_PANEL = "Storage tier"
_METRICS_PANEL = "Metrics"
_STATES_PANEL = "States of mamba"

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
        min=0,
        help="Steps that a request waits in the queue after its prefetch was started.",
        rich_help_panel=_STORAGE_PANEL,
    ),
]
RestartAt = Annotated[
    float,
    typer.Option(
        max=1,
        callback=number,
        help="Share of the requests, above 0 and at most 1, after which the cache is closed and a new one is opened on "
        "the same storage. 1: no restart.",
        rich_help_panel=_STORAGE_PANEL,
    ),
]


CompareStates = Annotated[
    bool,
    typer.Option(
        "--compare-states",
        help="Compare the policies of states, with states for 5, 10 and 25 % of the requests: on the trace, if given, "
        "and on generated conversations and agents. Writes states.json and states.svg.",
        rich_help_panel=_STATES_PANEL,
    ),
]

CheckEvery = Annotated[int, typer.Option(min=0, help="Check the whole cache every N requests. 0: at the end.")]

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


OPTIONS_OF = {
    "--host": ("write_policy", "host_layout", "executor"),
    "--storage": ("storage_config", "stop_policy", "queue_steps", "restart_at"),
    "swa in --components": ("window",),
}
"""The options that have an effect only beside another one."""

OF_A_COMPARISON = ("context", "trace", "adapter", "running", "limit", "skip_bad", "compare_states", "report")
"""The options that have an effect beside `--compare-states`."""


def replay_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    context: typer.Context,
    trace: TraceFile = None,
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    capacity: DeviceCapacity = "25%",
    page_size: Annotated[int, typer.Option(min=1, help="Page size in tokens.")] = 64,
    policy: Annotated[EvictionPolicy, typer.Option(help="Eviction order of device leaves.")] = EvictionPolicy.LRU,
    components: Annotated[str, typer.Option(help="Any of full, swa, mamba, indexer, separated by commas.")] = "full",
    window: Annotated[int, typer.Option(min=1, help="Sliding window in tokens, for swa.")] = 4096,
    host: HostCapacity = None,
    write_policy: HostWrites = WritePolicy.WRITE_THROUGH,
    host_layout: HostLayout = Layout.PAGE_FIRST,
    executor: HostExecutor = ExecutorKind.THREADED,
    storage: StorageBackendName = None,
    storage_config: StorageExtra = "{}",
    stop_policy: StorageStops = StopPolicy.WAIT_COMPLETE,
    queue_steps: QueueSteps = 4,
    restart_at: RestartAt = 0.5,
    compare_states: CompareStates = False,
    running: Annotated[int, typer.Option(min=1, help="Number of requests that run at the same time.")] = 8,
    check_every: CheckEvery = 2000,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first N requests.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip malformed lines and count them.")] = False,
    metrics_file: MetricsFile = None,
    metrics_port: MetricsPort = None,
    report: Annotated[Path, typer.Option(help="Folder for replay.html and its data.")] = Path("reports/replay"),
) -> None:
    """Replay a trace on a cache. Report evictions, latencies, and hits per tier, compared with LRU and the optimum.

    Exit code:
    - 0: the replay reached its end.
    - 1: the cache violated an invariant, which the message names, or raised when it was opened.
    - 2: an option cannot be used, the cache refuses its configuration, or the trace cannot be read.
    - 3: no request fits into the cache, so that nothing was replayed.
    """
    from hicache.testing.replay import HostSettings, ReplaySettings, StorageSettings
    from hicache.testing.traces import SHIPPED_TRACE, Trace

    console, requests = Console(emoji=False), Trace(trace or SHIPPED_TRACE, skip_bad=skip_bad, limit=limit)
    if compare_states:
        _compare_states(context, console, [requests] if trace else [], adapter_class(adapter), running, report)
    _check_tiers(context, capacity, host, storage, storage_config)
    with option("--restart-at"):
        tier = StorageSettings(storage or "", storage_config, stop_policy, queue_steps, restart_at)
    host_tier = None if host is None else HostSettings(host, write_policy, host_layout, executor)
    sizes = (page_size, capacity, _checked_components(components), policy, window, running, check_every)
    settings = ReplaySettings(*sizes, host=host_tier, storage=None if storage is None else tier)
    cache = adapter_class(adapter)
    writable_folder("--report", report, FILES)
    _report(console, _replayed(console, requests, cache, settings, metrics_file, metrics_port), report)


def _checked_components(components: str) -> tuple[str, ...]:
    """The names of components and sidecars. Usage error for unknown or repeated ones, and without FULL."""
    names = tuple(map(str.strip, components.split(",")))
    known_names("--components", "component", names, COMPONENTS)
    with option("--components"):
        if len(set(names)) != len(names):
            raise ConfigurationError(f"components {names} names one twice")
        kinds = tuple(name for name in names if name != Pool.INDEXER)
        CacheConfig(dict.fromkeys(kinds, 1), components=kinds, sliding_window_size=1, mamba_chunk_size=1)
    return names


def _compare_states(
    context: typer.Context,
    console: Console,
    traces: list[Trace],
    cache: type[CacheAdapter],
    running: int,
    report: Path,
) -> NoReturn:
    """Compare the policies of states, and show the table. Exits with 1 if an invariant was violated, else with 0."""
    from hicache.cli.replay_view import show_states
    from hicache.testing.replay import compare_states, generated_traces, write_state_comparison

    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in OF_A_COMPARISON and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter("has no effect with --compare-states", param_hint=f"--{name.replace('_', '-')}")
    writable_folder("--report", report, STATE_FILES)
    comparison = compare_states(
        [*traces, *generated_traces(report)],
        cache,
        running,
        lambda one: say(console, f"{one.trace}, {one.capacity}, {one.policy.name}: {one.hit_rate:.2%}"),
    )
    write_state_comparison(comparison, report)
    show_states(console, comparison)
    say(console, f"report: {report / 'states.svg'}")
    broken = [one.broken for one in comparison.replays if one.broken is not None]
    for reason in broken[:1]:
        say(console, f"invariant violated {reason}", style="red")
    raise typer.Exit(bool(broken))


def _require_effect(context: typer.Context, given: Mapping[str, object]) -> None:
    """Usage error for an option of a tier or a component that is absent. `given`: None for what is absent."""
    for needed, names in OPTIONS_OF.items():
        for name in names if given[needed] is None else ():
            source, value = context.get_parameter_source(name), context.params[name]
            if source is not None and source.name == "COMMANDLINE":
                text = value.value if isinstance(value, Enum) else value
                raise typer.BadParameter(
                    f"{text} has no effect: it needs {needed}", param_hint=f"--{name.replace('_', '-')}"
                )


def _check_tiers(
    context: typer.Context, capacity: str, host: str | None, storage: str | None, storage_config: str
) -> None:
    """Usage error for a capacity, an extra configuration or a backend that cannot be used, or storage without host."""
    from hicache.config import read_extra_config
    from hicache.storage.registry import backend_class, conceal_options, refuse_inline_secrets
    from hicache.testing.replay.configuration import default_options, parsed_capacity
    from hicache.testing.storage.subject import BackendSubject, require_opened

    for name, tokens in (("--capacity", capacity), ("--host", host)):
        with option(name):
            if tokens is not None:
                parsed_capacity(tokens)
    with option("--storage-config"):
        options = read_extra_config(storage_config).options
    with_window = "swa" in map(str.strip, context.params["components"].split(","))
    _require_effect(context, {"--host": host, "--storage": storage, "swa in --components": with_window or None})
    if storage is None:
        return
    with option("--storage"):
        backend_class(storage)
    if host is None:
        raise typer.BadParameter(f"{storage} needs a host tier: give --host too", param_hint="--storage")
    with option("--storage, --storage-config"):
        refuse_inline_secrets(storage, options, storage_config)
        given = {**default_options(storage, 1), **conceal_options(storage, options)}
        require_opened(BackendSubject(storage, given))


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
    from hicache.testing.replay.run import OpeningError

    writable_file("--metrics-file", metrics_file)
    try:
        with exposed(cache, metrics_file, metrics_port) as measured:
            return replay_with_progress(console, requests, measured, settings)
    except OpeningError as error:
        end_with(1, str(error))


def _report(console: Console, outcome: ReplayOutcome, report: Path) -> None:
    """Write the report and show it. Exits with 1 if an invariant was violated, and with 3 if no request fitted."""
    from hicache.cli.replay_view import show_outcome
    from hicache.testing.replay import write_report

    write_report(outcome, report)
    show_outcome(console, outcome)
    say(console, f"report: {report / 'replay.html'}")
    if outcome.broken is not None:
        say(console, f"invariant violated {outcome.broken}", style="red")
        raise typer.Exit(1)
    if outcome.too_large == outcome.requests:
        sizes = ", ".join(f"{name} {tokens:,}" for name, tokens in outcome.capacity_tokens.items())
        reason = f"none of {outcome.requests:,} requests fits into the capacity of {sizes} tokens: nothing was replayed"
        end_with(3, reason)
