"""The `hicache` command. Each subcommand is one file, which imports heavy modules only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from hicache import __version__
from hicache.cli.accuracy import accuracy_command
from hicache.cli.bisect import bisect_command
from hicache.cli.command import OneLineGroup
from hicache.cli.explain import explain_command
from hicache.cli.init_adapter import init_adapter_command
from hicache.cli.known_failures import known_failures_command
from hicache.cli.replay import replay_command
from hicache.cli.report import report_app
from hicache.cli.serve_metadata import serve_metadata_command
from hicache.cli.verify import verify_command
from hicache.cli.verify_storage import verify_storage_command

app = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode="markdown",
)
app.command("init-adapter")(init_adapter_command)
app.command("verify")(verify_command)
app.command("verify-storage")(verify_storage_command)
app.command("accuracy")(accuracy_command)
app.command("bisect")(bisect_command)
app.command("replay")(replay_command)
app.command("explain")(explain_command)
app.command("known-failures")(known_failures_command)
app.add_typer(report_app, name="report")
app.command("serve-metadata")(serve_metadata_command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hicache {__version__}")
        raise typer.Exit


@app.callback()
def _hicache(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Verify, replay and compare hierarchical prefix caches for language models, and storage backends.

    A command with the option --adapter uses the reference cache of this package if no adapter is named.
    """
