"""Runs an engine that evicts, and processes whose caches share it: `python -m hicache.tests.storage.engines.soak`."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from hicache.tests.storage.engines.__main__ import named
from hicache.tests.storage.engines.engines import ENGINES
from hicache.tests.storage.engines.soak.run import Soak, complaints, soaked, table

INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM."""


def main(
    engine: Annotated[str, typer.Option(help=f"The engine that the caches share: {', '.join(ENGINES)}.")] = "redis",
    processes: Annotated[int, typer.Option(min=1, max=100, help="Processes, each with a cache of its own.")] = 8,
    duration_s: Annotated[float, typer.Option(min=0, help="How long each process serves requests.")] = 300,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests of each process, however long.")] = None,
    capacity_mib: Annotated[int, typer.Option(min=16, help="The memory of the engine.")] = 64,
) -> None:
    """Serve requests in several processes over one engine, and compare each byte that comes back.

    Exit code 1: a byte is wrong, a process failed, no token came from storage, or an engine that can evict has not.
    """
    found = named([engine])[0]
    if found.missing:
        raise typer.BadParameter(found.missing)
    try:
        outcome = soaked(Soak(found, processes, requests, duration_s, capacity_mib << 20), typer.echo)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"\n{table(outcome)}")
    wrong = complaints(outcome)
    for line in wrong:
        typer.echo(line, err=True)
    raise typer.Exit(int(bool(wrong)))


if __name__ == "__main__":
    # SIGINT as well: a shell lets its background jobs ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    application = typer.Typer(pretty_exceptions_enable=False)
    application.command()(main)
    application()
