"""`hicache explain`: an example on a tiny cache, with a drawing of the cache after each step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding

from hicache.cli.command import REFERENCE, adapter_class, say, writable_file
from hicache.errors import ConfigurationError, InvariantError
from hicache.testing.adapter import Capability

WIDTH = 108
"""Columns of the text, at the most."""


def explain_command(
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    step: Annotated[
        int | None, typer.Option("--step", "--act", min=1, help="Show only the step with this number, from 1.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(dir_okay=False, help="Also write the output into this SVG file.")] = None,
) -> None:
    """Explain a cache on device, host and storage with an example, and draw the cache after each step.

    A drawing shows for each node which data is on which tier, locked, evicted or in transfer. The steps with storage
    are left out for a cache that lacks what they need.

    Exit code:
    - 0: the cache did what the example describes.
    - 1: the cache did something else.
    - 2: the cache lacks a capability that the example needs, or cannot be opened.
    """
    from hicache.testing.explain.drawing import LEGEND
    from hicache.testing.explain.example import HOST_PART, INTRODUCTION, STORAGE_PART, TITLE, parts_of, run_example

    subject = adapter_class(adapter)
    if missing := HOST_PART.lacks(subject):
        raise _end(2, f"the example needs capabilities that {adapter} does not declare: {_names(missing)}")
    count = sum(len(part.steps) for part in parts_of(subject))
    lacking = STORAGE_PART.lacks(subject)
    more = f"the steps with storage need capabilities that {adapter} does not declare: {_names(lacking)}"
    if step is not None and step > count:
        reason = f"there is no step {step}; the example has steps 1 to {count}"
        raise typer.BadParameter(f"{reason}; {more}" if lacking else reason, param_hint="--step")
    writable_file("--svg", svg)
    console = Console(emoji=False, highlight=False, record=svg is not None)
    _print(console, TITLE, INTRODUCTION, LEGEND)
    try:
        for number, one, drawing in islice(run_example(subject), step):
            if step in (None, number):
                _print(console, f"{number}  {one.title}   {' '.join(one.clauses)}", one.text)
                drawing.show(console)
    except ConfigurationError as error:
        raise _end(2, f"{type(error).__name__}: {error}") from error
    except InvariantError as error:
        raise _end(1, f"the cache does not do what the example describes: {error}") from error
    if svg is not None:
        # Without the fonts that rich would load from elsewhere.
        picture = re.sub(r"@font-face {.*?}", "", console.export_svg(title=TITLE, unique_id="explain"), flags=re.DOTALL)
        svg.write_text(picture, encoding="utf-8")
        say(console, f"page: {svg}")
    if lacking and step is None:
        say(console, more)


def _print(console: Console, title: str, *paragraphs: str) -> None:
    """Print a title and the texts below it, in lines that are not too long to read."""
    console.print(title, style="bold", markup=False)
    for text in paragraphs:
        console.print(Padding(text, (0, 0, 1, 3)), markup=False, width=min(console.width, WIDTH))


def _names(capabilities: Sequence[Capability]) -> str:
    return ", ".join(capability.name for capability in capabilities)


def _end(code: int, reason: str) -> typer.Exit:
    say(Console(stderr=True, emoji=False), reason, style="red")
    return typer.Exit(code)
