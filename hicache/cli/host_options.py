"""The options of `hicache replay` for the host tier."""

from __future__ import annotations

from typing import Annotated

import typer

from hicache.config import ExecutorKind, Layout, WritePolicy

_PANEL = "Host tier"

HostCapacity = Annotated[
    str | None,
    typer.Option(
        help="Host capacity, in the same form as --capacity. Without it: no host tier.", rich_help_panel=_PANEL
    ),
]
HostWrites = Annotated[
    WritePolicy,
    typer.Option(
        help="When a node is backed up: write_through: on its first use; write_through_selective: on its second use; "
        "write_back: when it is evicted.",
        rich_help_panel=_PANEL,
    ),
]
HostLayout = Annotated[Layout, typer.Option(help="Memory layout of the host pools.", rich_help_panel=_PANEL)]
HostExecutor = Annotated[
    ExecutorKind,
    typer.Option(
        help="What runs the transfers: threaded: threads; stepped: one step per request, so that a run is repeatable; "
        "streams: CUDA streams, which need a GPU.",
        rich_help_panel=_PANEL,
    ),
]
