"""The options of `hicache replay` that speak of the host tier."""

from __future__ import annotations

from typing import Annotated

import typer

from hicache.config import ExecutorKind, Layout, WritePolicy

_PANEL = "Host tier"

HostCapacity = Annotated[
    str | None, typer.Option(help="Room on the host, said as --capacity. Without it: no host.", rich_help_panel=_PANEL)
]
HostWrites = Annotated[WritePolicy, typer.Option(help="When a prefix is copied to the host.", rich_help_panel=_PANEL)]
HostLayout = Annotated[Layout, typer.Option(help="How the pools on the host are ordered.", rich_help_panel=_PANEL)]
HostExecutor = Annotated[
    ExecutorKind,
    typer.Option(
        help="What moves the bytes: threads; steps, one a request, so that a run can be repeated; CUDA streams.",
        rich_help_panel=_PANEL,
    ),
]
