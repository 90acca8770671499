"""Runs the suites on caches and storage of other projects: `python -m hicache.engines`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hicache.engines.page import REPORTS, write_page
from hicache.engines.runs import Run, Table, execute, install, missing, read_runs
from hicache.errors import ConfigurationError

RUN = """Run the suites of an environment, one after another, up to the first that fails. Further arguments are those of
pytest, such as -k LOCK-3; the suites of several ranks and most of storage run as a whole."""


def main(words: Sequence[str] | None = None) -> int:
    """List the runs, install an environment, run its suites, or compare the runs. Returns the exit code."""
    table = read_runs()
    parser, running = _parsers(table)
    options, arguments = parser.parse_known_args(words)
    if arguments and options.command != "run":
        parser.error(f"unknown: {' '.join(arguments)}")
    if options.command == "list":
        sys.stdout.write(listing(table))
        return 0
    if options.command == "page":
        try:
            write_page(options.runs, options.html)
        except (ConfigurationError, OSError) as error:
            parser.error(str(error))
        sys.stdout.write(f"page: {options.html}\n")
        return 0
    if options.command == "install":
        return install(table.environments[options.name])
    runs = [run for run in table.runs if run.environment == options.name]
    if options.only is not None:
        known = {run.class_name: run for run in runs if run.path}
        if options.only not in known:
            running.error(f"--only {options.only}: {options.name} has {', '.join(known)}")
        runs = [replace(known[options.only], is_whole=False)]
    if absent := missing(options.name, table):
        sys.stderr.write(f"{running.prog}: {options.name} {absent}\n")
        return 2
    if options.report is not None:
        runs = [run.reporting(options.report) for run in runs]
    found = table.environments.get(options.name)
    return execute(runs, arguments, {} if found is None else found.variables)


def _parsers(table: Table) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of the command, and that of `run`."""
    parser = argparse.ArgumentParser(prog="python -m hicache.engines", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the runs of each environment")
    installing = commands.add_parser("install", help="install an environment into this one")
    installing.add_argument("name", choices=table.environments)
    running = commands.add_parser("run", help="run the suites of an environment", description=RUN, allow_abbrev=False)
    running.add_argument("name", choices=table.names())
    running.add_argument("--only", metavar="CLASS", help="the run on this adapter or backend; arguments apply to it")
    running.add_argument("--report", metavar="FOLDER", type=Path, help="write the report of each run to FOLDER/CLASS")
    paging = commands.add_parser("page", help="write a page that compares runs, clause by clause")
    paging.add_argument("runs", nargs="*", type=Path, help=f"run.json or report folder of each; default: {REPORTS}/*")
    paging.add_argument("--html", metavar="FILE", type=Path, default=REPORTS / "page.html", help="default: %(default)s")
    return parser, running


def listing(table: Table) -> str:
    """Each environment with its runs: the suites, the adapter or the backend, and the list of known failures."""
    lines = []
    for name in table.names():
        lines.append(name if name in table.environments else f"{name} (not installed by tox)")
        lines += [f"  {_line(run)}" for run in table.runs if run.environment == name]
    return "\n".join(lines) + "\n"


def _line(run: Run) -> str:
    known = "" if run.known is None else run.known.name
    return f"{run.suites:<19} {run.path:<56} {known}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
