"""`hicache verify-storage`: the suites of a storage backend, fault runs, kills and throughput, and one report."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.adapter_class import REFERENCE
from hicache.cli.stage import Stage, StageResult, Verification, shortcomings
from hicache.cli.storage_stages import SeededStage, StorageVerification, ThroughputStage, run_faults, run_kills
from hicache.cli.suite_stage import SuiteStage
from hicache.cli.verify import listed_failures
from hicache.errors import ConfigurationError
from hicache.testing.storage.shipped import SHIPPED, read_subject
from hicache.testing.storage.subject import BackendSubject

STAGES = ("conformance", "properties", "faults", "kills", "throughput")


def verify_storage_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    backend: Annotated[
        str | None,
        typer.Option(help="A registered name, an entry point or package.module:Class; else those that ship."),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="Its options: JSON, or @file in JSON, TOML or YAML. {directory} is a fresh folder."),
    ] = None,
    kills: Annotated[int, typer.Option(min=1, help="Writers to kill.")] = 20,
    fault_runs: Annotated[int, typer.Option(min=1, help="Sequences of verbs with faults.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Of the first kill and the first fault run.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help=f"Only this stage: {', '.join(STAGES)}.")] = None,
    folder: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Where backends keep their files while verified.")
    ] = None,
    report: Annotated[Path, typer.Option(file_okay=False, help="Where the report and the logs go.")] = Path("reports"),
    known_failures: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A TOML file of failures to expect of the suites.")
    ] = None,
) -> None:
    """Verify a storage backend: its contract, any order of verbs, faults, killed writers; and measure its throughput.

    Ends with 1 when anything fails or nothing was executed, and with 2 when there is no such backend.
    """
    asked = only or list(STAGES)
    if unknown := sorted(set(asked) - set(STAGES)):
        raise typer.BadParameter(
            f"{', '.join(unknown)} is no stage; there are {', '.join(STAGES)}", param_hint="--only"
        )
    listed_failures(known_failures)
    subjects = _subjects(backend, config)
    words = [("--backend", backend), ("--config", config)]
    options = tuple(word for name, value in words if value is not None for word in (name, value))
    title = ", ".join(subject.name for subject in subjects)
    verification = StorageVerification(subjects, title, options, seed, folder)
    suites = Verification(REFERENCE, quick=False, directory=report, known_failures=known_failures)
    stages = [
        stage for stage in _stages(verification, suites, fault_runs, kills) if stage.name.partition("/")[0] in asked
    ]
    if shortcomings(verify_storage(stages, title, report, Console())):
        raise typer.Exit(1)


def verify_storage(stages: Sequence[Stage], title: str, directory: Path, console: Console) -> list[StageResult]:
    """Run the stages one after the other, write one report of all, and show how it went."""
    from hicache.cli.verify_storage_view import show_storage
    from hicache.cli.verify_view import run_with_progress, show_results
    from hicache.testing.report import merge_runs, write_report
    from hicache.testing.storage.clauses import BACKEND_CLAUSES

    directory.mkdir(parents=True, exist_ok=True)
    # A backend is right to log the faults that are made here, and nobody has to read them.
    logging.getLogger().addHandler(logging.NullHandler())
    results = run_with_progress(stages, console)
    # The suites name the cache that they would test as well.
    records = [replace(one.record, implementation=title, capabilities=()) for one in results if one.record is not None]
    page = None
    if records:
        record = merge_runs(records)
        page = write_report(record, directory, BACKEND_CLAUSES)
        show_storage(record, console)
    show_results(results, page, console)
    return results


def _subjects(backend: str | None, config: str | None) -> tuple[BackendSubject, ...]:
    # As with an adapter: what lies in the current folder can be named.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if backend is None and config is not None:
        raise typer.BadParameter("options of no backend: name it with --backend", param_hint="--config")
    try:
        return SHIPPED if backend is None else (read_subject(backend, config),)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--backend, --config") from error


def _stages(verification: StorageVerification, suites: Verification, fault_runs: int, kills: int) -> list[Stage]:
    named = tuple("--backend-config" if word == "--config" else word for word in verification.options)
    faulty, killed = ("STORE-3", "STORE-4", "STORE-5", "STORE-7"), ("STORE-3", "STORE-4")
    return [
        SuiteStage("conformance/storage", suites, named),
        SuiteStage("properties/storage", suites, ("--hypothesis-profile", "quick", *named)),
        SeededStage("faults", "fault-runs", fault_runs, faulty, verification, run_faults),
        SeededStage("kills", "kills", kills, killed, verification, run_kills),
        ThroughputStage(verification),
    ]
