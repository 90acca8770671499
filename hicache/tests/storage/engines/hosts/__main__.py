"""Runs an engine and caches on several hosts, cuts one off: `python -m hicache.tests.storage.engines.hosts`."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from hicache.tests.storage.engines.hosts.cluster import Cluster, Passes, complaints
from hicache.tests.storage.engines.hosts.engines import ON_HOSTS, Site
from hicache.tests.storage.engines.hosts.network import Network, isolated, refusal

NOT_PERMITTED = 4
"""Exit code where the system permits no such network or lacks the engine."""

EngineName = Enum("EngineName", {name: name for name in ON_HOSTS}, type=str)  # type: ignore[misc]
_DEFAULT = EngineName("redis")


def main(
    engine: Annotated[EngineName, typer.Option(help="The engine that the caches share.")] = _DEFAULT,
    hosts: Annotated[int, typer.Option(min=2, max=100, help="Hosts. The first has the engine.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts that each host serves in each pass.")] = 16,
    inside: Annotated[Path | None, typer.Option(hidden=True, help="A folder: this is the isolated process.")] = None,
) -> None:
    """Serve prompts on several hosts, and cut the last one off in the middle.

    Exit code 1: a byte is wrong, hits did not return, or a verb waited for the engine. 4: it cannot run here.
    """
    if inside is not None:
        raise typer.Exit(_run(engine.value, hosts, prompts, inside))
    if reason := ON_HOSTS[engine.value].missing() or refusal():
        typer.echo(f"not run: {reason}", err=True)
        raise typer.Exit(NOT_PERMITTED)
    with TemporaryDirectory(prefix="hicache-hosts-") as folder:
        options = ["--engine", engine.value, "--hosts", str(hosts), "--prompts", str(prompts), "--inside", folder]
        raise typer.Exit(isolated([sys.executable, "-m", "hicache.tests.storage.engines.hosts", *options]))


def _run(name: str, hosts: int, prompts: int, folder: Path) -> int:
    # The parent gets Ctrl-C as well, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = ON_HOSTS[name]
    with Network(hosts) as network:
        site = Site(folder, network.addresses, secrets.token_urlsafe(24))
        with Cluster(engine, site, network, prompts) as cluster:
            served = cluster.run(typer.echo)
    typer.echo(f"\n{name}, {hosts} hosts, {prompts} prompts\n\n{_table(served)}")
    wrong = complaints(served, prompts)
    for line in wrong:
        typer.echo(line, err=True)
    return int(bool(wrong))


def _table(hosts: Sequence[Passes]) -> str:
    rows = ["| host | requests | tokens from storage before | while cut off | after | longest verb | bytes checked |"]
    rows.append("|---|---|---|---|---|---|---|")
    for number, host in enumerate(hosts, start=1):
        name = f"{number}, cut off" if number == len(hosts) else str(number)
        came = [one.storage_tokens for one in (host.before, host.cut, host.after[-1])]
        longest_ms = max(one.longest_s for one in host.all) * 1_000
        cells = [name, sum(one.requests for one in host.all), *came, f"{longest_ms:.0f} ms"]
        cells.append(f"{sum(one.checked_bytes for one in host.all):,}")
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    application = typer.Typer(pretty_exceptions_enable=False)
    application.command()(main)
    application()
