"""`hicache report hits`: compare the hits of two replays, request by request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.errors import ConfigurationError

if TYPE_CHECKING:
    from hicache.testing.replay.outcome import HitComparison

_MAX_SHOWN = 20


def hits_command(
    first: Annotated[Path, typer.Argument(help="The replay.json of one cache, or its report folder.")],
    second: Annotated[Path, typer.Argument(help="The same for another cache, with the same trace and capacity.")],
) -> None:
    """Compare the hits of two replays of one trace, request by request and tier by tier.

    Exit code:
    - 0: every request has the same hits in both replays.
    - 1: the hits of a request differ on some tier.
    - 2: a file is not a replay, or the replays have different traces, capacities or numbers of running requests.
    """
    from hicache.testing.replay.outcome import compare_hits

    try:
        compared = compare_hits(*(path / "replay.json" if path.is_dir() else path for path in (first, second)))
    except ConfigurationError as error:
        _say(Console(stderr=True), str(error), style="red")
        raise typer.Exit(2) from error
    _show(compared, Console())
    if compared.differences:
        raise typer.Exit(1)


def _show(compared: HitComparison, console: Console) -> None:
    for name, tokens in zip(compared.adapters, compared.hit_tokens, strict=True):
        _say(console, f"{name}: {tokens:,} hit tokens")
    for one in compared.differences[:_MAX_SHOWN]:
        _say(console, f"request {one.request}: {_lengths(one.hits[0])} and {_lengths(one.hits[1])}", style="yellow")
    if len(compared.differences) > _MAX_SHOWN:
        _say(console, f"and {len(compared.differences) - _MAX_SHOWN:,} more requests")
    agreed = compared.requests - len(compared.differences)
    _say(console, f"{agreed:,} of {compared.requests:,} requests have equal hits", style="bold")


def _lengths(hits: Mapping[str, int]) -> str:
    return ", ".join(f"{tokens:,} tokens on {tier}" for tier, tokens in hits.items())


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
