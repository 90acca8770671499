"""Runs the suites on caches and storage of other projects: `python -m hicache.engines`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from hicache.engines.runs import Run, Table, execute, install, read_runs

RUN = """Run the suites of an environment, one after another, up to the first that fails. Further arguments are those of
pytest, such as -k LOCK-3; the suites of several ranks and most of storage run as a whole."""


def main(words: Sequence[str] | None = None) -> int:
    """List the runs, install an environment, or run its suites. Returns the exit code."""
    table = read_runs()
    parser = argparse.ArgumentParser(prog="python -m hicache.engines", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the runs of each environment")
    installing = commands.add_parser("install", help="install an environment into this one")
    installing.add_argument("name", choices=table.environments)
    running = commands.add_parser("run", help="run the suites of an environment", description=RUN, allow_abbrev=False)
    running.add_argument("name", choices=table.names())
    running.add_argument("--only", metavar="CLASS", help="the run on this adapter or backend; arguments apply to it")
    options, arguments = parser.parse_known_args(words)
    if arguments and options.command != "run":
        parser.error(f"unknown: {' '.join(arguments)}")
    if options.command == "list":
        sys.stdout.write(listing(table))
        return 0
    if options.command == "install":
        return install(table.environments[options.name])
    runs = [run for run in table.runs if run.environment == options.name]
    if options.only is not None:
        known = {run.class_name: run for run in runs if run.path}
        if options.only not in known:
            running.error(f"--only {options.only}: {options.name} has {', '.join(known)}")
        runs = [replace(known[options.only], is_whole=False)]
    found = table.environments.get(options.name)
    return execute(runs, arguments, {} if found is None else found.variables)


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
