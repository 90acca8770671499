"""commit: the commit of hicache that runs, where it runs from a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def commit() -> str:
    """The commit in 40 digits, with `-dirty` if files differ from it; empty outside of a checkout or without git."""
    if not (ROOT / ".git").exists():
        return ""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True)  # noqa: S603 - no word is given from outside
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
