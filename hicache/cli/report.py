"""`hicache report`: what to do with the reports of runs that have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.report_hits import hits_command
from hicache.errors import ConfigurationError

report_app = typer.Typer(no_args_is_help=True, help="Read the reports of earlier runs.")
report_app.command("hits")(hits_command)


@report_app.callback()
def _report() -> None:
    """Read the reports of earlier runs."""


@report_app.command("compare")
def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="The run.json of each run, or the folder of its report.")],
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the comparison into this page, too.")] = None,
) -> None:
    """Lay runs of several caches side by side: each clause with each, what each fails, what each did not run and why.

    Ends with 2 when a report cannot be read.
    """
    from hicache.cli.compare_view import show_comparison
    from hicache.testing.contract import CONTRACT
    from hicache.testing.report import read_run, write_comparison
    from hicache.testing.report.comparison import compare

    files = [run / "run.json" if run.is_dir() else run for run in runs]
    try:
        comparison = compare({str(file): read_run(file) for file in files}, CONTRACT)
    except ConfigurationError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    console = Console()
    show_comparison(comparison, console)
    if html is not None:
        write_comparison(comparison, html)
        console.print(f"page: {html}", markup=False, highlight=False, soft_wrap=True)
