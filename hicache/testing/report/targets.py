"""Checks that a report can be written, before the run that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from hicache.errors import ConfigurationError

FILES = ("report.html", "report.md", "junit.xml", "run.json")
"""The files of a report."""


def require_folder(folder: Path, files: Sequence[str] = FILES) -> None:
    """Make a folder. Raises ConfigurationError if it cannot be written to, or has a folder in the place of a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"nothing can be written to {folder}: {error}") from error
    for place in (folder / file for file in files):
        if place.is_dir():
            raise ConfigurationError(f"{place} is a folder, and is to be a file")


def require_file(file: Path) -> None:
    """Make the folder of a file. Raises ConfigurationError if the file cannot be written; its content stays."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not file.exists()
        with file.open("a"):
            pass
        if is_new:
            file.unlink()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error}") from error
