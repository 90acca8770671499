"""`hicache report`: compare the reports of earlier runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.report_hits import hits_command
from hicache.errors import ConfigurationError

report_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
report_app.command("hits")(hits_command)


@report_app.callback()
def _report() -> None:
    """Compare the reports of earlier runs."""


@report_app.command("compare")
def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="The run.json of each run, or its report folder.")],
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also write the comparison to this HTML file.")
    ] = None,
) -> None:
    """Compare runs of several caches side by side.

    Shows the counts of each run, the clauses that any cache fails, the failed tests of each cache, and the command
    that runs each of them again. The HTML page also shows all clauses, and what each cache did not run and why.

    Exit code:
    - 0: the comparison was written, also if there are failures.
    - 2: a report cannot be read.
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
