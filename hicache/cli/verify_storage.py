"""`hicache verify-storage`: the storage suites, fault runs, kill runs and throughput of a backend, in one report."""

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
from hicache.testing.storage.subject import SHIPPED, BackendSubject, read_subject

STAGES = ("conformance", "properties", "faults", "kills", "throughput")


_BackendName = Annotated[
    str | None,
    typer.Option(
        help="Registered name, entry point or package.module:Class. Without it: all backends of this package."
    ),
]
_BackendOptions = Annotated[
    str | None,
    typer.Option(
        help="Options of --backend: JSON, or @file (JSON, TOML, YAML). '{directory}' in a value is a new folder."
    ),
]
_Kills = Annotated[int, typer.Option(min=1, help="Writer processes to kill, for each backend.")]
_FaultRuns = Annotated[
    int, typer.Option(min=1, help="Random operation sequences with injected faults, for each backend.")
]
_Seed = Annotated[int, typer.Option(min=0, help="Seed of the first kill and of the first fault run.")]
_Only = Annotated[
    list[str] | None, typer.Option(help=f"Run only this stage; may be repeated. One of {', '.join(STAGES)}.")
]
_Folder = Annotated[
    Path | None,
    typer.Option(
        exists=True, file_okay=False, help="Folder for files. Default: /dev/shm for fault runs, else temporary."
    ),
]
_Report = Annotated[Path, typer.Option(file_okay=False, help="Folder for report and logs.")]
_KnownFailures = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="TOML file that lists expected failures of the suites."),
]


def verify_storage_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    backend: _BackendName = None,
    config: _BackendOptions = None,
    kills: _Kills = 20,
    fault_runs: _FaultRuns = 500,
    seed: _Seed = 0,
    only: _Only = None,
    folder: _Folder = None,
    report: _Report = Path("reports"),
    known_failures: _KnownFailures = None,
) -> None:
    """Verify a storage backend, and measure its throughput. No cache is needed.

    The stages are:

    - conformance: the clauses that apply to a backend.
    - properties: random operations, compared with a model.
    - faults: random operations with injected faults, such as failing reads and writes, and short or torn pages.
    - kills: writer processes that are killed at a random moment.
    - throughput: set and get of large pages, in GB/s and as a share of pwritev and preadv.

    Exit code:

    - 0: no test failed, and at least one passed.
    - 1: a test or a stage failed, or no test passed. The stage throughput contains no test.
    - 2: the backend, its options or the list of expected failures cannot be loaded, or a stage is unknown.
    """
    chosen = only or list(STAGES)
    if unknown := sorted(set(chosen) - set(STAGES)):
        raise typer.BadParameter(f"unknown stage {', '.join(unknown)}; known: {', '.join(STAGES)}", param_hint="--only")
    listed_failures(known_failures)
    subjects = _subjects(backend, config)
    words = [("--backend", backend), ("--config", config)]
    options = tuple(word for name, value in words if value is not None for word in (name, value))
    title = ", ".join(subject.name for subject in subjects)
    verification = StorageVerification(subjects, title, options, seed, folder)
    suites = Verification(REFERENCE, quick=False, directory=report, known_failures=known_failures)
    stages = [
        stage for stage in _stages(verification, suites, fault_runs, kills) if stage.name.partition("/")[0] in chosen
    ]
    if shortcomings(verify_storage(stages, title, report, Console())):
        raise typer.Exit(1)


def verify_storage(stages: Sequence[Stage], title: str, directory: Path, console: Console) -> list[StageResult]:
    """Run the stages one after the other, write one report of all of them, and show the results."""
    from hicache.cli.verify_storage_view import show_storage
    from hicache.cli.verify_view import run_with_progress, show_results
    from hicache.testing.report import merge_runs, write_report
    from hicache.testing.storage.subject import BACKEND_CLAUSES

    directory.mkdir(parents=True, exist_ok=True)
    # A backend logs the faults that are injected here. These lines are expected and are not shown.
    logging.getLogger().addHandler(logging.NullHandler())
    results = run_with_progress(stages, console)
    # The suites record the reference cache as the implementation, but the run is about the backend.
    records = [replace(one.record, implementation=title, capabilities=()) for one in results if one.record is not None]
    page = None
    if records:
        record = merge_runs(records)
        page = write_report(record, directory, BACKEND_CLAUSES)
        show_storage(record, console)
    show_results(results, page, console)
    return results


def _subjects(backend: str | None, config: str | None) -> tuple[BackendSubject, ...]:
    # As with --adapter, a module in the current folder can be named.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if backend is None and config is not None:
        raise typer.BadParameter("--config needs --backend: these are options of one backend", param_hint="--config")
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
