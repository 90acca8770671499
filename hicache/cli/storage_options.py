"""The options of `hicache replay` that speak of the storage tier."""

from __future__ import annotations

from typing import Annotated

import typer

from hicache.types import StopPolicy

_PANEL = "Storage tier"

StorageBackendName = Annotated[
    str | None,
    typer.Option(help="memory, file, slotfile, or module:Class. Without it: no storage.", rich_help_panel=_PANEL),
]
StorageExtra = Annotated[
    str,
    typer.Option(
        help="Thresholds and the backend's options, in JSON or as @path. '{directory}' is a temporary folder.",
        rich_help_panel=_PANEL,
    ),
]
StorageStops = Annotated[StopPolicy, typer.Option(help="How long a prefetch is waited for.", rich_help_panel=_PANEL)]
QueueSteps = Annotated[
    int, typer.Option(help="Steps that a request waits in line while its prefix is fetched.", rich_help_panel=_PANEL)
]
RestartAt = Annotated[
    float,
    typer.Option(
        help="The share of the requests after which the cache is closed, and one opened on its storage; 1: never.",
        rich_help_panel=_PANEL,
    ),
]
