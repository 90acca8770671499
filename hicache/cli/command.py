"""What every command has: the cache of its option `--adapter`, and lines that are printed unchanged."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from hicache.storage.secrets import redacted
from hicache.testing.adapter import CacheAdapter
from hicache.testing.load import load_adapter

REFERENCE = "hicache.testing.adapters.reference:ReferenceAdapter"


def adapter_class(path: str) -> type[CacheAdapter]:
    """Import the class `package.module:Class`, also from the current folder. Usage error if this fails."""
    include_this_folder()
    try:
        return load_adapter(path)
    except (ImportError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--adapter") from error


def include_this_folder() -> None:
    """Let modules be imported from the current folder, after all others: a file there must not hide a library."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print the text without secrets: no markup, no highlighting, no line break inside a path or a command."""
    console.print(redacted(text), style=style, markup=False, highlight=False, soft_wrap=True)


UNLIMITED = 1 << 16
"""Columns of a terminal that cuts nothing."""


def say_table(console: Console, table: Table) -> None:
    """Print a table with every cell whole. Its lines may be longer than those of a terminal, which then wraps them."""
    table.width = Measurement.get(console, console.options.update(max_width=UNLIMITED), table).maximum
    console.print(table, crop=False)
