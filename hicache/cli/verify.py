"""`hicache verify`: run every suite on one cache, and write one report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.accuracy import missing_libraries
from hicache.cli.command import REFERENCE, known_names, nearest, number, option, say, writable_folder
from hicache.cli.described import Described, describe
from hicache.cli.stage import Stage, SuiteStage, Verification, failed_stages
from hicache.errors import ConfigurationError, MissingTorchError
from hicache.testing.adapter import Capability
from hicache.testing.devices import missing_device
from hicache.testing.engine_source import use_source
from hicache.testing.levels import NOTHING, Level
from hicache.testing.report.targets import FILES
from hicache.testing.requirements import unsupported_transformers

if TYPE_CHECKING:
    from hicache.testing.plugin.known_failures import Baseline, KnownFailure
    from hicache.testing.report.matrix import ReasonGroup
    from hicache.testing.report.run import Execution


Requirement = Enum("Requirement", {one.upper(): one for one in (*(level.value for level in Level), NOTHING)})  # type: ignore[misc]
"""The values of --require: a level, or nothing."""

DEVICE = [Requirement("device")]

_OF_CACHE = (Level.DEVICE, Level.HOST, Level.STORAGE)
LEVELS = {
    "replay": _OF_CACHE,
    "conformance": (*_OF_CACHE, Level.RANKS),
    "properties": _OF_CACHE,
    "distributed_tests": (Level.RANKS,),
    "accuracy": (Level.MODELS,),
}
"""The stages in the order of the report, the shortest first, and the levels that each verifies.

A stage that the cache cannot run, for what it does not declare, is not needed for its levels.
"""

STAGES = tuple(LEVELS)

AT_ONCE = 2
"""How many stages run at a time: what one of them waits for, at its end above all, is time for the other."""

FULL_HELP = "Run all configurations and more examples, and the accuracy suite."
KNOWN_HELP = "TOML file that lists expected failures."
BASELINE_HELP = "The run.json of an earlier run, or its report folder: its failures are reported, but do not count."
REQUIRE_HELP = "Level that must be verified as a whole, or nothing; may be given several times."
ONLY_HELP = f"Stage to run; may be given several times: {', '.join(STAGES)}."
KEYWORD_HELP = "Run the tests that match, as in pytest; the id of a clause selects its tests."
JOBS_HELP = "Processes for the tests of each stage; 1: one stage at a time. Default: one per core, for ranks half more."
SOURCE_HELP = "Source tree to import the engine from. Default: the engine that is installed."
DEVICE_HELP = "Torch device to open the cache on, such as cuda or cuda:1. Default: the device of each configuration."
TIMEOUT_HELP = "End a stage that takes longer, as a failure."


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What the user left out. `left_out`: stages. `stops`: end at the first failure."""

    left_out: tuple[str, ...] = ()
    stops: bool = False

    def levels(self, not_ended: Collection[str]) -> list[Level]:
        """The levels that were not run whole. `not_ended`: stages that never began, or that ended too early."""
        missing = {*self.left_out, *not_ended}
        return [level for level in Level if any(level in LEVELS.get(name, ()) for name in missing)]


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected to fail: entries of a list, and what failed in an earlier run."""

    known: tuple[KnownFailure, ...] = ()
    baseline: Baseline | None = None

    def remarks(self, executions: Sequence[Execution]) -> list[str]:
        """The remarks on a run."""
        from hicache.testing.plugin.known_failures import narrower, renamed

        told = [*renamed(self.known), *narrower(self.known, executions)]
        return told if self.baseline is None else [*told, *self.baseline.summary(executions)]


def used_source(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of --engine-source: the engine is imported from there until the command ends."""
    if path is not None:
        with option("--engine-source"):
            context.call_on_close(use_source(path))
    return path


def verify_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    engine_source: Annotated[Path | None, typer.Option(callback=used_source, metavar="PATH", help=SOURCE_HELP)] = None,
    full: Annotated[bool, typer.Option("--full", help=FULL_HELP)] = False,
    report: Annotated[Path, typer.Option(file_okay=False, help="Folder for report and logs.")] = Path("reports"),
    known_failures: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=KNOWN_HELP)] = None,
    baseline: Annotated[Path | None, typer.Option(exists=True, help=BASELINE_HELP)] = None,
    require: Annotated[list[Requirement], typer.Option(help=REQUIRE_HELP)] = DEVICE,
    only: Annotated[list[str] | None, typer.Option(help=ONLY_HELP)] = None,
    keyword: Annotated[str, typer.Option("-k", metavar="EXPR", help=KEYWORD_HELP)] = "",
    stops: Annotated[bool, typer.Option("-x", help="Stop at the first failure.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help=JOBS_HELP)] = None,
    timeout: Annotated[float | None, typer.Option(min=1, callback=number, metavar="SECONDS", help=TIMEOUT_HELP)] = None,
    device: Annotated[str | None, typer.Option(help=DEVICE_HELP)] = None,
) -> None:
    """Verify a cache: run the suites on it, two at a time, and write one report.

    Runs few configurations and few examples; with --full, everything. The reference takes about 300 CPU seconds on an
    Intel Xeon at 2.1 GHz, shared by the cores; without a terminal, a line every ten seconds says how far it is.

    With VERBS, replays a generated trace. Always runs the conformance suite (the contract, clause by clause) and the
    properties (random operations). With RANKS, also runs the suite for several ranks, one process for each. With BYTES
    and --full, also runs the accuracy suite (answers of language models), unless its libraries are not installed.
    Prints the suites that it does not run, with the reason.

    A level is verified if each of its clauses that applies to the cache was checked, and none was found broken. A run
    that --only, -k or -x narrows verifies no level of which it left something out.
    The report is report.html, report.md, junit.xml and run.json.

    Exit code:

    - 0: no test failed, and each required level is verified.
    - 1: a test or a suite failed, or no clause was executed.
    - 2: the adapter, the list of expected failures or the baseline cannot be used, or a stage or a clause is unknown.
    - 3: no test failed, but a required level was not checked as a whole.
    - 130: interrupted.
    """
    known, levels = listed_failures(known_failures), _levels(require)
    _check_selection(only or (), keyword)
    adapter += _on_device(device)
    cache, console, limit_s = describe(adapter), Console(emoji=False), inf if timeout is None else timeout
    before, warning = _baseline(baseline, adapter, cache)
    chosen = (adapter, not full, _checked(report), known_failures, keyword, stops, jobs, limit_s, baseline)
    verification = Verification(*chosen, engine_source, cache.profile, cache.capabilities)
    if warning:
        say(console, warning, style="yellow")
    stages, narrowed = _chosen(verification, cache, only, console)
    at_once = 1 if stops or jobs == 1 else AT_ONCE
    if code := verify(stages, report, console, levels, Narrowing(narrowed, stops), Expected(known, before), at_once):
        raise typer.Exit(code)


def _on_device(device: str | None) -> str:
    """The end of the path of an adapter that is opened on a device. Usage error for one that this machine lacks."""
    if device and (missing := missing_device(device)):
        raise typer.BadParameter(f"{device}: {missing}", param_hint="--device")
    return f"@{device}" if device else ""


def _levels(require: Sequence[Requirement]) -> list[Level]:
    """The required levels. Usage error for a level beside `nothing`."""
    levels = [Level(one.value) for one in require if one.value != NOTHING]
    if levels and len(levels) < len(require):
        raise typer.BadParameter(f"{NOTHING} and {levels[0].value} contradict each other", param_hint="--require")
    return levels


def _chosen(
    verification: Verification, cache: Described, only: Sequence[str] | None, console: Console
) -> tuple[list[Stage], tuple[str, ...]]:
    """The stages to run, and the names of those that the user leaves out. Says why each other one is not run."""
    omitted = left_out(cache, quick=verification.quick, device=verification.adapter.partition("@")[2])
    narrowed = _narrowed(set(STAGES) - omitted.keys(), only, verification.keyword)
    for name, reason in (omitted | narrowed).items():
        say(console, f"not run: {name}: {reason}")
    return [stage for stage in all_stages(verification) if stage.name not in omitted | narrowed], tuple(narrowed)


def _checked(report: Path) -> Path:
    """The folder of a report. Usage error if nothing can be written there."""
    writable_folder("--report", report, FILES)
    return report


def _baseline(path: Path | None, adapter: str, cache: Described) -> tuple[Baseline | None, str]:
    """The baseline of an option, and a warning. Usage error if this run cannot be compared with it."""
    from hicache.testing.plugin.known_failures import read_baseline

    try:
        return (None, "") if path is None else read_baseline(path, adapter, cache.profile)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--baseline") from error


def _narrowed(runnable: AbstractSet[str], only: Sequence[str] | None, keyword: str) -> dict[str, str]:
    """The stages that the user leaves out, each with the reason."""
    reasons = {name: "--only" for name in STAGES if name in runnable and only and name not in only}
    if keyword and "replay" in runnable - reasons.keys():
        reasons["replay"] = "-k selects tests of the suites"
    return reasons


def _check_selection(only: Sequence[str], keyword: str) -> None:
    """Usage error for a stage that does not exist, and for a clause that the contract does not have."""
    from hicache.testing.contract import CONTRACT
    from hicache.testing.plugin.tags import CLAUSE_ID, keyword_problem

    known_names("--only", "stage", only, STAGES)
    if unknown := sorted(set(CLAUSE_ID.findall(keyword)) - CONTRACT.keys()):
        reason = f"{keyword!r}: the contract has no clause {', '.join(unknown)}{nearest(unknown[0], CONTRACT)}"
        raise typer.BadParameter(reason, param_hint="-k")
    if problem := keyword_problem(keyword):
        raise typer.BadParameter(problem, param_hint="-k")


def all_stages(verification: Verification) -> list[Stage]:
    """A stage for each of STAGES, the shortest first."""
    from hicache.cli.replay_stage import ReplayStage

    profile = "hicache-quick" if verification.quick else "hicache-ci"
    arguments = {"properties": ("--hypothesis-profile", profile)}
    suites = [SuiteStage(name, verification, arguments.get(name, ())) for name in STAGES if name != "replay"]
    return [ReplayStage(verification), *suites]


def left_out(cache: Described, *, quick: bool, device: str) -> dict[str, str]:
    """The suites that are not run, each with the reason: a capability, a library, or the time that it takes.

    `device`: that the caches are opened on; empty for the one of each configuration.
    """
    from hicache.testing.replay.configuration import lacks_for_replay

    reasons = {}
    if lacking := lacks_for_replay(cache.profile, {Capability[name] for name in cache.capabilities}):
        reasons["replay"] = f"{cache.name} does not declare {' and '.join(one.name for one in lacking)}"
    if Capability.RANKS.name not in cache.capabilities:
        reasons["distributed_tests"] = f"{cache.name} does not declare RANKS"
    elif find_spec("torch") is None:
        reasons["distributed_tests"] = str(MissingTorchError.of("RANKS"))
    if Capability.BYTES.name not in cache.capabilities:
        reasons["accuracy"] = f"{cache.name} does not declare BYTES"
    elif quick:
        reasons["accuracy"] = "takes minutes; run with --full"
    elif missing := missing_libraries():
        reasons["accuracy"] = (
            f"not installed: {', '.join(missing)}; run pip install 'hicache[accuracy]', or make .venv/models"
        )
    elif unsupported := unsupported_transformers():
        reasons["accuracy"] = unsupported
    for name in ("distributed_tests", "accuracy"):
        if device:
            reasons.setdefault(name, f"chooses its devices itself, also {device}; run without --device")
    return reasons


def listed_failures(path: Path | None) -> tuple[KnownFailure, ...]:
    """Read the known failures from the file of an option. Usage error if the file cannot be read."""
    from hicache.testing.plugin.known_failures import read_known_failures

    try:
        return read_known_failures(path) if path else ()
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--known-failures") from error


def skipped_without_torch(skips: Iterable[ReasonGroup]) -> Iterator[str]:
    """A line for each reason of skipped tests that names the extra `torch`."""
    for group in skips:
        if MissingTorchError.INSTALL in group.reason:
            yield f"skipped {group.executions} times: {group.reason}"


def verify(
    stages: Sequence[Stage],
    directory: Path,
    console: Console,
    require: Sequence[Level],
    narrowing: Narrowing = Narrowing(),
    expected: Expected = Expected(),
    at_once: int = AT_ONCE,
) -> int:
    """Run the stages, write one report of all of them, and show the results.

    Returns the exit code. `require`: the levels that must be verified. `at_once`: how many stages run at a time.
    """
    from hicache.cli.verify_view import is_interrupted, run_with_progress, show_results, show_verdict
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report import leaving_out, merge_runs, write_report
    from hicache.testing.report.coverage import coverage, untried
    from hicache.testing.report.gpu import untried_on_gpu
    from hicache.testing.report.matrix import overview
    from hicache.testing.report.run import witnesses

    directory.mkdir(parents=True, exist_ok=True)
    results = run_with_progress(stages, console, at_once=at_once, stops=narrowing.stops)
    records = [result.record for result in results if result.record is not None]
    show_results(results, console)
    failed, found = failed_stages(results), None
    if records:
        not_ended = {stage.name for stage in stages} - {one.name for one in results if one.problem is None}
        merged = leaving_out(merge_runs(records), narrowing.levels(not_ended))
        view = overview(merged, CONTRACT)
        found = coverage(view)
        if seen := witnesses(merged):
            say(console, seen)
        if missing := untried(view):
            say(console, f"not verified: {missing}", style="bold yellow")
        for remark in (*expected.remarks(merged.executions), *skipped_without_torch(view.skips)):
            say(console, remark)
        if on_gpu := untried_on_gpu(merged, CONTRACT):
            say(console, on_gpu, style="yellow")
        page = write_report(merged, directory)
    missed = [level for level in require if found is None or found.of(level) not in found.verified]
    checked_nothing = all(result.checked_nothing for result in results)
    show_verdict(failed, found, missed, console, checked_nothing=checked_nothing)
    if records:
        say(console, f"report: {page}")
    if is_interrupted(results):
        return 130
    return 1 if failed else 3 if missed else int(checked_nothing)
