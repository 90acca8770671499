"""The commands of `hicache`. Each is a file, and imports what is heavy when it runs."""

from __future__ import annotations

import typer

from hicache.cli.accuracy import accuracy_command
from hicache.cli.explain import explain_command
from hicache.cli.replay import replay_command
from hicache.cli.report import report_app
from hicache.cli.serve_metadata import serve_metadata_command
from hicache.cli.verify import verify_command
from hicache.cli.verify_storage import verify_storage_command

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command("verify")(verify_command)
app.command("verify-storage")(verify_storage_command)
app.command("accuracy")(accuracy_command)
app.command("replay")(replay_command)
app.command("explain")(explain_command)
app.add_typer(report_app, name="report")
app.command("serve-metadata")(serve_metadata_command)


@app.callback()
def _hicache() -> None:
    """A reference prefix cache for language models, and the harness that verifies any such cache."""
