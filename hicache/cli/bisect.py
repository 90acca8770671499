"""`hicache bisect`: find the commit of an engine that broke a clause."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.command import known_names, option, say, writable_folder
from hicache.cli.described import describe
from hicache.cli.stage import INTERRUPTED, StageResult, SuiteStage, Verification
from hicache.cli.verify import FULL_HELP, KNOWN_HELP, listed_failures
from hicache.errors import ConfigurationError
from hicache.testing.engine_source import use_source
from hicache.testing.report.run import Outcome

SUITES = ("conformance", "properties", "distributed_tests")

WORDS = {0: "good", 1: "bad", 125: "skip"}
"""The exit codes of one commit, and git's words for them."""

SOURCE_HELP = "Source tree of the engine; with --good a git repository."
GOOD_HELP = (
    "Commit that keeps the clause. Without it, the present state of the source tree is tested, for git bisect run."
)
BAD_HELP = "Commit that breaks the clause, with --good. Default: HEAD."
CLAUSE_HELP = "Id of a clause: only its failures count. Default: every failure that is not expected."
ONLY_HELP = f"Suite to run: {', '.join(SUITES)}."


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of each commit. `clause`: empty for every failure that is not expected. `report`: for the logs."""

    adapter: str
    clause: str
    suite: str
    quick: bool
    known_failures: Path | None
    jobs: int | None
    report: Path


def bisect_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")],
    engine_source: Annotated[Path, typer.Option(exists=True, file_okay=False, metavar="PATH", help=SOURCE_HELP)],
    good: Annotated[str | None, typer.Option(metavar="COMMIT", help=GOOD_HELP)] = None,
    bad: Annotated[str | None, typer.Option(metavar="COMMIT", help=BAD_HELP)] = None,
    clause: Annotated[str, typer.Option(metavar="ID", help=CLAUSE_HELP)] = "",
    only: Annotated[str, typer.Option(help=ONLY_HELP)] = "conformance",
    known_failures: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=KNOWN_HELP)] = None,
    full: Annotated[bool, typer.Option("--full", help=FULL_HELP.partition(",")[0] + ".")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes for the tests. Default: one per core.")] = None,
    report: Annotated[Path, typer.Option(file_okay=False, help="Folder for a log of each commit.")] = Path("bisect"),
) -> None:
    """Find the first commit of an engine that breaks a clause.

    With --good, git bisect chooses the commits, in a temporary worktree: the source tree itself is not changed. The two
    ends are tested first. Without --good the source tree is tested once, as one step of git bisect run.

    Exit code with --good:

    - 0: the commit was found.
    - 1: only commits that cannot be tested are left.
    - 2: wrong use; --good breaks the clause, or --bad does not.

    Exit code without --good:

    - 0: the clause is kept.
    - 1: the clause is broken.
    - 125: the source cannot be tested: its interface is unknown, or no test of the clause ran to its end.
    - 2: wrong use, which git bisect run would take for a broken clause: try the command once by hand.
    """
    from hicache.testing.contract import CONTRACT

    if ":" not in adapter:
        raise typer.BadParameter(f"{adapter} is not of the form package.module:Class", param_hint="--adapter")
    known_names("--clause", "clause", [clause] if clause else [], CONTRACT)
    known_names("--only", "suite", [only], SUITES)
    listed_failures(known_failures)
    writable_folder("--report", report)
    question, console = Question(adapter, clause, only, not full, known_failures, jobs, report), Console(emoji=False)
    if good is None:
        if bad is not None:
            raise typer.BadParameter(f"{bad} needs --good", param_hint="--bad")
        raise typer.Exit(judge(question, engine_source, "source", console))
    ends = {"--good": good, "--bad": bad or "HEAD"}
    for name, commit in ends.items():
        with option(name):
            ends[name] = git(engine_source, "rev-parse", "--verify", f"{commit}^{{commit}}")
    with worktree(engine_source, ends["--bad"]) as tree:
        raise typer.Exit(search(question, tree, ends, console))


def search(question: Question, tree: Path, ends: Mapping[str, str], console: Console) -> int:
    """Find the first bad commit in a worktree. Returns the exit code; usage error for an end that is not as it says."""
    seen: Counter[str] = Counter()

    def test_head() -> str:
        commit = git(tree, "rev-parse", "--short", "HEAD")
        word = WORDS[judge(question, tree, commit, console)]
        seen[word] += 1
        return word

    for name, commit in ends.items():
        git(tree, "checkout", "--quiet", "--detach", commit)
        if (found := test_head()) != name.removeprefix("--"):
            raise typer.BadParameter(f"{commit[:10]}: the test of this commit says: {found}", param_hint=name)
    answer = git(tree, "bisect", "start", ends["--bad"], ends["--good"])
    while "first bad commit" not in answer:
        answer = git(tree, "bisect", test_head())
    counts = f"tested {seen.total()} commits, {seen['skip']} of them cannot be tested"
    if "could be any of" in answer:
        say(console, f"{answer}\n{counts}", style="yellow")
        return 1
    say(console, f"first bad commit: {git(tree, 'log', '-1', '--format=%h %s', 'refs/bisect/bad')}\n{counts}")
    return 0


def judge(question: Question, source: Path, name: str, console: Console) -> int:
    """Run the suite on a source tree: 0 if it keeps the clause, 1 if it breaks it, 125 if that cannot be said.

    `name`: of the commit, for the log. Ends the command with 130, which ends git bisect run, if it was interrupted.
    """
    try:
        undo = use_source(source)
    except ConfigurationError as error:
        say(console, f"{name}: cannot be tested: {error}")
        return 125
    try:
        cache = describe(question.adapter)
        verification = Verification(
            question.adapter,
            question.quick,
            question.report / name,
            question.known_failures,
            question.clause,
            jobs=question.jobs,
            engine_source=source.resolve(),
            profile=cache.profile,
            capabilities=cache.capabilities,
        )
        result = SuiteStage(question.suite, verification, ()).run(lambda *_, **__: None, Event())
    except typer.BadParameter as error:
        say(console, f"{name}: cannot be tested: {error.message}")
        return 125
    finally:
        undo()
    code, reason = verdict(result, question.clause)
    say(console, f"{name}: {reason}")
    return code


def verdict(result: StageResult, clause: str) -> tuple[int, str]:
    """The exit code of a run, and the reason in words. `clause`: empty for every failure that is not expected."""
    from hicache.testing.plugin.failures import FLAKY, STALE

    if result.problem == INTERRUPTED:
        raise typer.Exit(130)
    executions = [] if result.record is None else result.record.executions
    failed = [one for one in executions if one.outcome is Outcome.FAILED]
    broken = [one for one in failed if (clause in one.causes if clause else not {STALE, FLAKY} & {*one.causes})]
    passed = [one for one in executions if one.outcome is Outcome.PASSED or STALE in one.causes]
    kept = [one for one in passed if clause in one.clauses or not clause]
    if broken:
        return 1, f"bad: {clause or 'the suite'} fails in {len(broken)} tests, such as {broken[0].node_id}"
    if kept:
        return 0, f"good: {len(kept)} tests passed"
    # pytest ends with the lines of its settings, which are indented.
    lines = [line for line in (result.problem or (failed[0].reason if failed else "")).splitlines() if line[:1].strip()]
    said = f": {lines[-1] if result.problem else lines[0]}" if lines else ""
    return 125, f"cannot be tested: no test of {clause or 'the suite'} passed{said}"


@contextmanager
def worktree(source: Path, commit: str) -> Iterator[Path]:
    """A temporary worktree of a repository at a commit. Raises ConfigurationError if git cannot make it."""
    with TemporaryDirectory(prefix="hicache-") as folder:
        tree = Path(folder).resolve() / "source"
        git(source, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git(source, "worktree", "remove", "--force", str(tree))


def git(folder: Path, *words: str) -> str:
    """The output of a git command. Raises ConfigurationError, with what git said, if it fails."""
    command = ["git", "-C", str(folder), *words]
    done = subprocess.run(  # noqa: S603 - the words are commits that the user names
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    # A search that has only skipped commits left ends with 2, and says so on its output.
    if done.returncode and "first bad commit" not in done.stdout:
        raise ConfigurationError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()
