"""`hicache report`: compare the reports of earlier runs, and the hits of two replays request by request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.command import option, say, writable_file

if TYPE_CHECKING:
    from hicache.testing.replay.outcome import HitComparison

_MAX_SHOWN = 20

report_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@report_app.callback()
def _report() -> None:
    """Compare the reports of earlier runs."""


@report_app.command("hits")
def hits_command(
    first: Annotated[Path, typer.Argument(help="The replay.json of one cache, or its report folder.")],
    second: Annotated[Path, typer.Argument(help="The same for another cache, with the same trace and capacity.")],
) -> None:
    """Compare the hits of two replays of one trace, request by request and tier by tier.

    A replay has no hits on a tier that it lacks, such as the host: it counts as 0 tokens.

    Exit code:
    - 0: every request has the same hits in both replays.
    - 1: the hits of a request differ on some tier.
    - 2: a file is not a replay, or the replays have different traces, capacities or numbers of running requests.
    """
    from hicache.testing.replay.outcome import compare_hits

    with option("FIRST, SECOND"):
        compared = compare_hits(*(path / "replay.json" if path.is_dir() else path for path in (first, second)))
    _show(compared, Console(emoji=False))
    if compared.differences:
        raise typer.Exit(1)


@report_app.command("compare")
def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="The run.json of each run, or its report folder.")],
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the comparison to this HTML file.")
    ] = None,
) -> None:
    """Compare runs of several caches side by side.

    Shows the counts of each run, the clauses that any cache fails, the failed tests of each cache, and the command
    that runs each of them again. The HTML page also shows all clauses, and what each cache did not run and why.

    Exit code:
    - 0: the comparison was written, also if there are failures.
    - 2: a report cannot be read, or the page cannot be written.
    """
    from hicache.cli.compare_view import show_comparison
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report import read_run, write_comparison
    from hicache.testing.report.comparison import compare

    files = [run / "run.json" if run.is_dir() else run for run in runs]
    with option("RUNS"):
        comparison = compare({str(file): read_run(file) for file in files}, CONTRACT)
    writable_file("--html", html)
    console = Console(emoji=False)
    show_comparison(comparison, console)
    if html is not None:
        write_comparison(comparison, html)
        say(console, f"page: {html}")


def _show(compared: HitComparison, console: Console) -> None:
    for name, tokens in zip(compared.adapters, compared.hit_tokens, strict=True):
        say(console, f"{name}: {tokens:,} hit tokens")
    for one in compared.differences[:_MAX_SHOWN]:
        say(console, f"request {one.request}: {_lengths(one.hits[0])} and {_lengths(one.hits[1])}", style="yellow")
    if len(compared.differences) > _MAX_SHOWN:
        say(console, f"and {len(compared.differences) - _MAX_SHOWN:,} more requests")
    agreed = compared.requests - len(compared.differences)
    say(console, f"{agreed:,} of {compared.requests:,} requests have equal hits", style="bold")


def _lengths(hits: Mapping[str, int]) -> str:
    return ", ".join(f"{tokens:,} tokens on {tier}" for tier, tokens in hits.items())
