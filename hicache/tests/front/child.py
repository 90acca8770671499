"""A Python of its own for a program that a user would run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIMIT_S = 120
"""Until a program that hangs is ended: far beyond what any of them takes."""


def run_python(folder: Path, *arguments: str) -> str:
    """Run a Python of this environment in a folder; what it printed. Fails with the child's messages when it fails."""
    # Wide enough that no drawing is wrapped.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        check=False,
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
