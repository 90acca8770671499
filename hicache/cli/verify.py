"""`hicache verify`: every suite on one cache, and one report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.adapter_class import REFERENCE, adapter_class
from hicache.cli.stage import Stage, StageResult, Verification, shortcomings
from hicache.errors import ConfigurationError

if TYPE_CHECKING:
    from hicache.testing.plugin.known_failures import KnownFailure


def verify_command(
    adapter: Annotated[str, typer.Option(help="The cache to verify, as package.module:Class.")] = REFERENCE,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer configurations and fewer examples.")] = False,
    report: Annotated[Path, typer.Option(file_okay=False, help="Where the report and the logs go.")] = Path("reports"),
    known_failures: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A TOML file of failures to expect.")
    ] = None,
) -> None:
    """Verify a cache: the contract clause by clause, properties under random use, and a replay of generated traffic.

    A cache that declares ranks is verified on several processes, too; one whose bytes can be read and written, by the
    answers of models, where what these need is installed. What is not run is said.
    Ends with 1 when anything fails, and with 2 when there is no such adapter.
    """
    from hicache.cli.left_out import left_out
    from hicache.cli.replay_stage import ReplayStage
    from hicache.cli.suite_stage import SuiteStage

    known = listed_failures(known_failures)
    cache = adapter_class(adapter)
    verification = Verification(adapter, quick, report, known_failures)
    omitted, profile = left_out(cache, quick=quick), ("--hypothesis-profile", "quick")
    suites = {"conformance": (), "properties": profile, "distributed_tests": (), "accuracy": ()}
    stages: list[Stage] = [
        *(SuiteStage(name, verification, arguments) for name, arguments in suites.items() if name not in omitted),
        ReplayStage(verification, cache, known),
    ]
    failed, console = shortcomings(verify(stages, report, Console())), Console()
    for name, reason in omitted.items():
        console.print(f"not run: {name}: {reason}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def listed_failures(path: Path | None) -> tuple[KnownFailure, ...]:
    """The known failures of an option; a list that cannot be read is a usage error."""
    from hicache.testing.plugin.known_failures import read_known_failures

    try:
        return read_known_failures(path) if path else ()
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--known-failures") from error


def verify(stages: Sequence[Stage], directory: Path, console: Console) -> list[StageResult]:
    """Run the stages one after the other, write one report of all, and show how it went."""
    from hicache.cli.verify_view import run_with_progress, show_results
    from hicache.testing.report import merge_runs, write_report

    directory.mkdir(parents=True, exist_ok=True)
    results = run_with_progress(stages, console)
    records = [result.record for result in results if result.record is not None]
    page = write_report(merge_runs(records), directory) if records else None
    show_results(results, page, console)
    return results
