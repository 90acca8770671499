"""Verifies the backend of each storage engine that is installed: `python -m hicache.tests.storage.engines`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from hicache.tests.storage.engines.engine import Engine, EngineProcess
from hicache.tests.storage.engines.engines import ENGINES

CAPACITY_BYTES = 2 << 30


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Engines. All, if none is named.", metavar="ENGINE")] = None,
    fault_runs: Annotated[int, typer.Option(help="Fault runs of `hicache verify-storage`.")] = 1_000,
    kills: Annotated[int, typer.Option(help="Writers that it kills.")] = 50,
    report: Annotated[Path, typer.Option(help="A folder with a report for each engine.")] = Path("reports"),
) -> None:
    """Run `hicache verify-storage` on a process of each engine. Exit code 1: a test failed, or none is installed."""
    failed, verified = False, False
    for engine in named(names):
        if engine.missing:
            typer.echo(f"{engine.name}: skipped, {engine.missing}")
            continue
        typer.echo(f"{engine.name}: {engine.version(engine.path or engine.program)}")
        options = ["--fault-runs", str(fault_runs), "--kills", str(kills), "--report", str(report / engine.name)]
        if engine.known_failures:
            options += ["--known-failures", str(engine.known_failures)]
        failed = _verified(engine, options) != 0 or failed
        verified = True
    raise typer.Exit(int(failed or not verified))


def named(names: list[str] | None) -> list[Engine]:
    """The engines with these names, or all. Usage error for an unknown name."""
    if unknown := [name for name in names or () if name not in ENGINES]:
        raise typer.BadParameter(f"{unknown[0]} is not an engine; known: {' '.join(ENGINES)}")
    return [ENGINES[name] for name in names or ENGINES]


def _verified(engine: Engine, options: list[str]) -> int:
    """The exit code of the command."""
    with TemporaryDirectory(prefix="hicache-engine-") as folder:
        config = Path(folder) / "options.json"
        with closing(EngineProcess(engine, Path(folder), capacity_bytes=CAPACITY_BYTES)) as process:
            config.write_text(json.dumps(process.options), encoding="utf-8")
            command = [sys.executable, "-m", "hicache", "verify-storage", "--backend", engine.backend]
            return subprocess.run([*command, "--config", f"@{config}", *options], check=False).returncode


if __name__ == "__main__":
    typer.run(main)
