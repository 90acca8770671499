"""`hicache verify`: run every suite on one cache, and write one report."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.accuracy import missing_libraries
from hicache.cli.command import REFERENCE, say
from hicache.cli.described import Described, describe
from hicache.cli.stage import INTERRUPTED, Stage, SuiteStage, Verification, failed_stages
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.levels import NOTHING, Level
from hicache.testing.requirements import unsupported_transformers

if TYPE_CHECKING:
    from hicache.testing.plugin.known_failures import KnownFailure


Requirement = Enum("Requirement", {one.upper(): one for one in (*(level.value for level in Level), NOTHING)})  # type: ignore[misc]
"""The values of --require: a level, or nothing."""

DEVICE = [Requirement("device")]


def verify_command(
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run fewer configurations and fewer examples, and no accuracy suite.")
    ] = False,
    report: Annotated[Path, typer.Option(file_okay=False, help="Folder for report and logs.")] = Path("reports"),
    known_failures: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="TOML file that lists expected failures.")
    ] = None,
    require: Annotated[
        list[Requirement],
        typer.Option(help="Level that must be verified as a whole, or nothing; may be given several times."),
    ] = DEVICE,
) -> None:
    """Verify a cache: run every suite on it and write one report.

    Always runs the conformance suite (the contract, clause by clause) and the properties (random operations). With
    VERBS, also replays a generated trace. With RANKS, also runs the suite for several ranks, one process for each. With
    BYTES, also runs the accuracy suite (answers of language models), unless its libraries are not installed. Prints the
    suites that it does not run, with the reason.

    A level is verified if each of its clauses that applies to the cache was checked, and none was found broken.
    The report is report.html, report.md, junit.xml and run.json.

    Exit code:

    - 0: no test failed, and each required level is verified.
    - 1: a test or a suite failed.
    - 2: the adapter or the list of expected failures cannot be loaded.
    - 3: no test failed, but a required level was not checked as a whole.
    - 130: interrupted.
    """
    from hicache.cli.replay_stage import ReplayStage

    listed_failures(known_failures)
    cache = describe(adapter)
    verification = Verification(adapter, quick, report, known_failures)
    omitted, profile = left_out(cache, quick=quick), ("--hypothesis-profile", "hicache-quick")
    suites = {"conformance": (), "properties": profile, "distributed_tests": (), "accuracy": ()}
    stages: list[Stage] = [
        *(SuiteStage(name, verification, arguments) for name, arguments in suites.items() if name not in omitted),
        *([ReplayStage(verification)] if "replay" not in omitted else []),
    ]
    console = Console()
    for name, reason in omitted.items():
        say(console, f"not run: {name}: {reason}")
    levels = [Level(one.value) for one in require if one.value != NOTHING]
    if code := verify(stages, report, console, levels):
        raise typer.Exit(code)


def left_out(cache: Described, *, quick: bool) -> dict[str, str]:
    """The suites that are not run, each with the reason: a capability, a library, or the time that it takes."""
    reasons = {}
    if Capability.VERBS.name not in cache.capabilities:
        reasons["replay"] = f"{cache.name} does not declare VERBS"
    if Capability.RANKS.name not in cache.capabilities:
        reasons["distributed_tests"] = f"{cache.name} does not declare RANKS"
    if Capability.BYTES.name not in cache.capabilities:
        reasons["accuracy"] = f"{cache.name} does not declare BYTES"
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


def verify(stages: Sequence[Stage], directory: Path, console: Console, require: Sequence[Level]) -> int:
    """Run the stages one after the other, write one report of all of them, and show the results.

    Returns the exit code. `require`: the levels that must be verified.
    """
    from hicache.cli.verify_view import run_with_progress, show_results, show_verdict
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report import merge_runs, write_report
    from hicache.testing.report.coverage import coverage
    from hicache.testing.report.matrix import overview

    directory.mkdir(parents=True, exist_ok=True)
    results = run_with_progress(stages, console)
    records = [result.record for result in results if result.record is not None]
    show_results(results, console)
    failed, found = failed_stages(results), None
    if records:
        merged = merge_runs(records)
        found = coverage(overview(merged, CONTRACT))
        page = write_report(merged, directory)
    missed = [level for level in require if found is None or found.of(level) not in found.verified]
    show_verdict(failed, found, missed, console)
    if records:
        say(console, f"report: {page}")
    if any(result.problem == INTERRUPTED for result in results):
        return 130
    return 1 if failed else 3 if missed else 0
