"""The console script `hicache`. It loads the commands only where the libraries of the kit are installed."""

from __future__ import annotations

import os
import sys

from hicache.testing.requirements import INSTALL_COMMAND, missing_libraries


def main() -> None:
    """Run the command line. Without the kit it prints how to install it, and exits with 2."""
    if missing_libraries():
        print(f"hicache: this command needs the kit: {INSTALL_COMMAND}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2)
    # Pools are read and written in small pieces: threads that share one wait for each other longer than they copy.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from hicache.cli.app import app

    app()
