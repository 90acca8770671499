"""`hicache report hits`: which requests of a trace hit more in one cache than in another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.errors import ConfigurationError

if TYPE_CHECKING:
    from hicache.testing.replay.hits import HitComparison

_MOST_SHOWN = 20


def hits_command(
    first: Annotated[Path, typer.Argument(help="The replay.json of one cache, or the folder of its report.")],
    second: Annotated[Path, typer.Argument(help="That of another one, of the same trace and capacity.")],
) -> None:
    """Compare two replays request by request.

    Ends with 1 when any request hits another length, by tier, and with 2 when these are no replays of one trace.
    """
    from hicache.testing.replay.hits import compare_hits

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
        _say(console, f"{name}: {tokens:,} tokens hit")
    for one in compared.differences[:_MOST_SHOWN]:
        _say(console, f"request {one.request}: {_lengths(one.hits[0])} and {_lengths(one.hits[1])}", style="yellow")
    if len(compared.differences) > _MOST_SHOWN:
        _say(console, f"and {len(compared.differences) - _MOST_SHOWN:,} more")
    agreed = compared.requests - len(compared.differences)
    _say(console, f"{agreed:,} of {compared.requests:,} requests agree", style="bold")


def _lengths(hits: Mapping[str, int]) -> str:
    return ", ".join(f"{tokens:,} tokens on {tier}" for tier, tokens in hits.items())


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
