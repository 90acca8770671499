"""`hicache explain`: a short story on a tiny cache, drawn act by act."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.adapter_class import REFERENCE, adapter_class
from hicache.errors import ConfigurationError, InvariantError


def explain_command(
    adapter: Annotated[str, typer.Option(help="The cache to show, as package.module:Class.")] = REFERENCE,
    act: Annotated[int | None, typer.Option(min=1, help="Show this act alone.")] = None,
    svg: Annotated[Path | None, typer.Option(dir_okay=False, help="Draw the story into this file, too.")] = None,
) -> None:
    """Show how a cache on two tiers works: what is where, locked, lost or on its way, after each act of a story.

    Ends with 1 when the cache does something else than the story tells, and with 2 when it cannot play it.
    """
    from hicache.testing.story.page import render_page
    from hicache.testing.story.script import ACTS
    from hicache.testing.story.telling import Scene, missing, tell
    from hicache.testing.story.terminal import show_legend, show_scene

    subject = adapter_class(adapter)
    if lacking := missing(subject):
        names = ", ".join(capability.name for capability in lacking)
        raise _end(2, f"the story cannot be played on {adapter}, which does not declare {names}")
    if act is not None and act > len(ACTS):
        raise typer.BadParameter(f"the story has {len(ACTS)} acts, there is none numbered {act}", param_hint="--act")
    console = Console()
    show_legend(console)
    shown: list[Scene] = []
    try:
        for scene in islice(tell(subject), act):
            if act in (None, scene.number):
                show_scene(console, scene)
                shown.append(scene)
    except ConfigurationError as error:
        raise _end(2, f"{type(error).__name__}: {error}") from error
    except InvariantError as error:
        raise _end(1, f"the cache does something else than the story tells: {error}") from error
    if svg is not None:
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(render_page(shown), encoding="utf-8")
        console.print(f"\npage: {svg}", highlight=False, soft_wrap=True)


def _end(code: int, reason: str) -> typer.Exit:
    Console(stderr=True).print(reason, style="red", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(code)
