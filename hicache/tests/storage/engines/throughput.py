"""The throughput of each engine through its backend: `python -m hicache.tests.storage.engines.throughput`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from hicache.storage.registry import open_backend
from hicache.testing.storage.throughput import Throughput, measure_backend, pages_of_batch
from hicache.tests.storage.engines.__main__ import named
from hicache.tests.storage.engines.engine import Engine, EngineProcess

SIZES = (64 << 10, 1 << 20)

ROUNDS = 3
"""How often backend and client are measured in turn. The best figure of each counts."""

HEAD = (
    *("engine", "page", "set", "get", "set, of `memcpy`", "get, of `memcpy`", "set, of `pwritev`", "get, of `preadv`"),
    *("client SET", "client GET", "set, of the client", "get, of the client"),
)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Engines. All, if none is named.", metavar="ENGINE")] = None,
    options: Annotated[str, typer.Option(help="Further options of the backends, as JSON.")] = "{}",
) -> None:
    """Print a table: GB/s, and shares of what the machine and the engine's own client do in the same run."""
    typer.echo(line(HEAD) + "\n" + line(["---"] * len(HEAD)))
    for engine in named(names):
        if engine.missing:
            typer.echo(f"{engine.name}: skipped, {engine.missing}", err=True)
            continue
        for page_bytes in SIZES:
            with TemporaryDirectory(prefix="hicache-engine-") as folder:
                row = _row(engine, Path(folder), page_bytes, options)
                typer.echo(line([engine.name, f"{page_bytes >> 10} KiB", *row]))


def _row(engine: Engine, folder: Path, page_bytes: int, options: str) -> list[str]:
    """The figures of one engine, in an engine that is started for them."""
    found: list[Throughput] = []
    client: list[tuple[float, float]] = []
    with closing(EngineProcess(engine, folder)) as process:
        for turn in range(ROUNDS):
            with closing(open_backend(engine.backend, f"turn{turn}", process.options | json.loads(options))) as backend:
                found.append(measure_backend(backend, folder / f"{turn}.raw", page_bytes))
                backend.clear()
            if engine.benchmark is not None:
                client.append(engine.benchmark(process.settings, page_bytes, pages_of_batch(page_bytes)))
    wrote, read = max(one.set_rate for one in found), max(one.get_rate for one in found)
    memcpy = max(one.memcpy_rate for one in found)
    bases = [memcpy, memcpy, max(one.pwritev_rate for one in found), max(one.preadv_rate for one in found)]
    shares = [rate / base for rate, base in zip((wrote, read) * 2, bases, strict=True)]
    own = [max(rates) for rates in zip(*client, strict=True)] or [float("nan")] * 2
    own_shares = [wrote / own[0], read / own[1]]
    return [f"{one:.2f}" for one in (wrote / 1e9, read / 1e9, *shares, *(one / 1e9 for one in own), *own_shares)]


def line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    typer.run(main)
