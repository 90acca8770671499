"""`hicache known-failures`: write a list of known failures from a run, or an older list anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.command import option, say, writable_file
from hicache.testing.report.run import counted

if TYPE_CHECKING:
    from hicache.testing.report.run import Execution

MIGRATE_HELP = (
    "A list to write anew in the present format, with the new ids of renamed tests. Reasons and comments stay."
)


def known_failures_command(
    run: Annotated[Path | None, typer.Argument(help="The run.json of a run, or its report folder.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="File to write.")] = Path("known.toml"),
    migrate: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=MIGRATE_HELP)] = None,
) -> None:
    """Write a list of known failures from a run, an entry for each cause. With --migrate, write an older list anew.

    An entry names a clause if each test of the clause failed, and tests otherwise. It lists no failure that is known
    already or flaky, that ended its process, or that belongs to no test, such as the process of a stage. Write a reason
    into each entry: a list with an empty reason is refused.

    Exit code:

    - 0: the list was written.
    - 2: the run or the list cannot be read, the run has nothing to list, or the file exists or cannot be written.
    """
    if (run is None) is (migrate is None):
        raise typer.BadParameter("expected either RUN or --migrate FILE", param_hint="RUN")
    if migrate is not None:
        _migrate(migrate)
    if run is not None:
        _write(run, output)


def _migrate(file: Path) -> None:
    from hicache.cli.known_failures_list import rewrite
    from hicache.testing.plugin.known_failures import read_known_failures

    with option("--migrate"):
        before = read_known_failures(file)
    writable_file("--migrate", file)
    with option("--migrate"):
        rewrite(file)
    console = Console(emoji=False)
    renamed = [one for one in before if one.present_id != one.id]
    for one in renamed:
        say(console, f"renamed {one.id}: {one.present_id}")
    say(console, f"wrote {file}: {counted(len(before), 'id')}, {len(renamed)} renamed")


def _write(run: Path, output: Path) -> None:
    from hicache.testing.plugin.known_failures import KNOWN_FAILURES_FORMAT
    from hicache.testing.report import read_run

    with option("RUN"):
        executions = read_run(run / "run.json" if run.is_dir() else run).executions
    if output.exists():
        raise typer.BadParameter(f"{output} exists", param_hint="--output")
    lines = list(entries(executions))
    if not lines:
        raise typer.BadParameter(f"{run}: no test failed that can be listed", param_hint="RUN")
    writable_file("--output", output)
    output.write_text("\n".join([f"format = {KNOWN_FAILURES_FORMAT}", *lines]) + "\n", encoding="utf-8")
    console = Console(emoji=False)
    say(console, f"wrote {output}: write the reason into each entry")


def entries(executions: Sequence[Execution]) -> Iterator[str]:
    """The lines of the entries of what failed in a run and can be listed, the most frequent cause first."""
    from hicache.testing.plugin.failures import CRASHED, FLAKY, STALE
    from hicache.testing.plugin.known_failures import suite_in, test_ids
    from hicache.testing.report.run import Outcome

    executed = [one for one in executions if one.outcome is not Outcome.SKIPPED]
    failed = [one for one in executed if one.outcome is Outcome.FAILED]
    failed = [one for one in failed if not {FLAKY, STALE, CRASHED}.intersection(one.causes)]
    failed = [one for one in failed if "::" in one.node_id and suite_in(one.node_id) is not None]
    clauses = _broken_everywhere(executed, failed)
    for clause, failures in _by_cause(failed):
        if clause in clauses:
            yield from _entry([clause], failures)
    left = [one for one in failed if clauses.isdisjoint(one.clauses) and not clauses.issuperset(one.causes)]
    listed: set[str] = set()
    for _, failures in _by_cause(left):
        tests = [test for test in test_ids(failures, executed) if test not in listed]
        if tests:
            yield from _entry(tests, failures)
        listed.update(tests)


def _by_cause(failures: Sequence[Execution]) -> list[tuple[str, list[Execution]]]:
    found: dict[str, list[Execution]] = {}
    for one in failures:
        for cause in one.causes:
            found.setdefault(cause, []).append(one)
    return sorted(found.items(), key=lambda group: -len(group[1]))


def _broken_everywhere(executed: Sequence[Execution], failed: Sequence[Execution]) -> set[str]:
    """The clauses that were found broken and of which no test passed. An entry of a clause expects all to fail."""
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report.run import Outcome

    found = {cause for one in failed for cause in one.causes if cause in CONTRACT}
    return found - {clause for one in executed if one.outcome is Outcome.PASSED for clause in one.clauses}


def _entry(names: Sequence[str], failures: Sequence[Execution]) -> Iterator[str]:
    from hicache.cli.known_failures_list import Listed, entry_lines
    from hicache.testing.report.legible import legible
    from hicache.testing.report.run import first_line

    smallest = failures[0]
    yield ""
    yield f"# {legible(', '.join(smallest.causes))}: {first_line(legible(smallest.reason))}".replace("\n", " ")
    yield from entry_lines(
        kind='"bug"    # or "unsupported", "beyond", "future"',
        reason='""     # write why it fails',
        link='""',
        ids=[Listed(name, ()) for name in names],
    )
