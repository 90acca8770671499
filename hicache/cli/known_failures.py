"""`hicache known-failures`: write a list of known failures from a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hicache.cli.command import option, say, writable_file

if TYPE_CHECKING:
    from hicache.testing.report.run import Execution


def known_failures_command(
    run: Annotated[Path, typer.Argument(help="The run.json of a run, or its report folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="File to write.")] = Path("known.toml"),
) -> None:
    """Write a list of known failures from a run, an entry for each cause.

    An entry names a clause if each test of the clause failed, and tests otherwise. It lists no failure that is known
    already or flaky, that ended its process, or that belongs to no test, such as the process of a stage. Write a reason
    into each entry: a list with an empty reason is refused.

    Exit code:

    - 0: the list was written.
    - 2: the run cannot be read, has nothing to list, or the file exists or cannot be written.
    """
    from hicache.testing.report import read_run

    with option("RUN"):
        executions = read_run(run / "run.json" if run.is_dir() else run).executions
    if output.exists():
        raise typer.BadParameter(f"{output} exists", param_hint="--output")
    lines = list(entries(executions))
    if not lines:
        raise typer.BadParameter(f"{run}: no test failed that can be listed", param_hint="RUN")
    writable_file("--output", output)
    output.write_text("\n".join(["format = 1", *lines]) + "\n", encoding="utf-8")
    console = Console(emoji=False)
    say(console, f"wrote {output}: write the reason into each entry")


def entries(executions: Sequence[Execution]) -> Iterator[str]:
    """The lines of the entries of what failed in a run and can be listed, the most frequent cause first."""
    from hicache.testing.plugin.causes import CRASHED, FLAKY, OUTDATED
    from hicache.testing.plugin.known_failures import suite_in, test_ids
    from hicache.testing.report.run import Outcome

    executed = [one for one in executions if one.outcome is not Outcome.SKIPPED]
    failed = [one for one in executed if one.outcome is Outcome.FAILED]
    failed = [one for one in failed if not {FLAKY, OUTDATED, CRASHED}.intersection(one.causes)]
    failed = [one for one in failed if "::" in one.node_id and suite_in(one.node_id) is not None]
    clauses = _broken_everywhere(executed, failed)
    for clause, failures in _by_cause(failed):
        if clause in clauses:
            yield from _entry(clause, failures)
    left = [one for one in failed if clauses.isdisjoint(one.clauses) and not clauses.issuperset(one.causes)]
    listed: set[str] = set()
    for _, failures in _by_cause(left):
        for test in test_ids(failures, executed):
            if test not in listed:
                yield from _entry(test, failures)
            listed.add(test)


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


def _entry(name: str, failures: Sequence[Execution]) -> Iterator[str]:
    from hicache.testing.plugin.known_failures import quoted
    from hicache.testing.report.legible import legible
    from hicache.testing.report.run import first_line

    smallest = failures[0]
    yield ""
    yield f"# {legible(', '.join(smallest.causes))}: {first_line(legible(smallest.reason))}".replace("\n", " ")
    yield "[[failure]]"
    yield f"id = {quoted(name)}"
    yield 'kind = "bug"    # or "unsupported", "future"'
    yield 'reason = ""     # write why it fails'
    yield 'link = ""'
