"""The options of `hicache replay` for the storage tier."""

from __future__ import annotations

from typing import Annotated

import typer

from hicache.types import StopPolicy

_PANEL = "Storage tier"

StorageBackendName = Annotated[
    str | None,
    typer.Option(
        help="Backend: memory, file, slotfile, hf3fs or module:Class. Needs --host. Without it: no storage tier.",
        rich_help_panel=_PANEL,
    ),
]
StorageExtra = Annotated[
    str,
    typer.Option(
        help="Extra configuration: thresholds and backend options, as JSON or @file. '{directory}' in a value is a "
        "temporary folder, which is also where the backends of this package store pages by default.",
        rich_help_panel=_PANEL,
    ),
]
StorageStops = Annotated[
    StopPolicy,
    typer.Option(
        help="How long a request waits for its prefetch: best_effort: not at all; wait_complete: until it has ended; "
        "timeout: until a deadline.",
        rich_help_panel=_PANEL,
    ),
]
QueueSteps = Annotated[
    int,
    typer.Option(
        help="Steps that a request waits in the queue after its prefetch was started.", rich_help_panel=_PANEL
    ),
]
RestartAt = Annotated[
    float,
    typer.Option(
        help="Share of the requests, above 0 and at most 1, after which the cache is closed and a new one is opened on "
        "the same storage. 1: no restart.",
        rich_help_panel=_PANEL,
    ),
]
