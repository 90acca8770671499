"""`hicache verify`: run every suite on one cache, and write one report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.accuracy import missing_libraries
from hicache.cli.command import REFERENCE, adapter_class, say
from hicache.cli.stage import Stage, StageResult, SuiteStage, Verification, shortcomings
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.requirements import unsupported_transformers

if TYPE_CHECKING:
    from hicache.testing.plugin.known_failures import KnownFailure


def verify_command(
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run fewer configurations and fewer examples, and no accuracy suite.")
    ] = False,
    report: Annotated[Path, typer.Option(file_okay=False, help="Folder for report and logs.")] = Path("reports"),
    known_failures: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="TOML file that lists expected failures.")
    ] = None,
) -> None:
    """Verify a cache: run every suite on it and write one report.

    Always runs the conformance suite (the contract, clause by clause) and the properties (random operations against a
    model). If the adapter declares VERBS, also replays a generated trace. If it declares RANKS, also runs the suite
    for several ranks, with one process for each rank. If it declares BYTES, also runs the accuracy suite (answers of
    language models), unless its libraries are not installed. Prints the suites that it does not run, with the reason.

    The report is report.html, report.md, junit.xml and run.json.

    Exit code:

    - 0: no test failed, and at least one passed.
    - 1: a test or a suite failed, or no test passed.
    - 2: the adapter or the list of expected failures cannot be loaded.
    """
    from hicache.cli.replay_stage import ReplayStage

    known = listed_failures(known_failures)
    cache = adapter_class(adapter)
    verification = Verification(adapter, quick, report, known_failures)
    omitted, profile = left_out(cache, quick=quick), ("--hypothesis-profile", "quick")
    suites = {"conformance": (), "properties": profile, "distributed_tests": (), "accuracy": ()}
    stages: list[Stage] = [
        *(SuiteStage(name, verification, arguments) for name, arguments in suites.items() if name not in omitted),
        *([ReplayStage(verification, cache, known)] if "replay" not in omitted else []),
    ]
    failed, console = shortcomings(verify(stages, report, Console())), Console()
    for name, reason in omitted.items():
        say(console, f"not run: {name}: {reason}")
    if failed:
        raise typer.Exit(1)


def left_out(cache: type[CacheAdapter], *, quick: bool) -> dict[str, str]:
    """The suites that are not run, each with the reason: a capability, a library, or the time that it takes."""
    reasons = {}
    if Capability.VERBS not in cache.capabilities:
        reasons["replay"] = f"{cache.__name__} does not declare VERBS"
    if Capability.RANKS not in cache.capabilities:
        reasons["distributed_tests"] = f"{cache.__name__} does not declare RANKS"
    if Capability.BYTES not in cache.capabilities:
        reasons["accuracy"] = f"{cache.__name__} does not declare BYTES"
    elif quick:
        reasons["accuracy"] = "takes minutes and is not part of --quick"
    elif missing := missing_libraries():
        reasons["accuracy"] = (
            f"not installed: {', '.join(missing)}; run pip install 'hicache[accuracy]', or make .venv/models"
        )
    elif unsupported := unsupported_transformers():
        reasons["accuracy"] = unsupported
    return reasons


def listed_failures(path: Path | None) -> tuple[KnownFailure, ...]:
    """Read the known failures from the file of an option. Usage error if the file cannot be read."""
    from hicache.testing.plugin.known_failures import read_known_failures

    try:
        return read_known_failures(path) if path else ()
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--known-failures") from error


def verify(stages: Sequence[Stage], directory: Path, console: Console) -> list[StageResult]:
    """Run the stages one after the other, write one report of all of them, and show the results."""
    from hicache.cli.verify_view import run_with_progress, show_results
    from hicache.testing.report import merge_runs, write_report

    directory.mkdir(parents=True, exist_ok=True)
    results = run_with_progress(stages, console)
    records = [result.record for result in results if result.record is not None]
    page = write_report(merge_runs(records), directory) if records else None
    show_results(results, page, console)
    return results
