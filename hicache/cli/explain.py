"""`hicache explain`: a short story on a tiny cache, with a drawing after each act."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.command import REFERENCE, adapter_class, say
from hicache.errors import ConfigurationError, InvariantError


def explain_command(
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    act: Annotated[int | None, typer.Option(min=1, help="Show only the act with this number, from 1.")] = None,
    svg: Annotated[Path | None, typer.Option(dir_okay=False, help="Also draw the story into this SVG file.")] = None,
) -> None:
    """Explain a cache on device and host with a short story, and draw the tree after each act.

    A drawing shows for each node which data is on which tier, locked, evicted or in transfer.

    Exit code:
    - 0: the cache did what the story describes.
    - 1: the cache did something else.
    - 2: the cache lacks a capability that the story needs, or cannot be opened.
    """
    from hicache.testing.story.page import render_page
    from hicache.testing.story.script import ACTS, Scene, missing_capabilities, run_story
    from hicache.testing.story.terminal import show_legend, show_scene

    subject = adapter_class(adapter)
    if missing := missing_capabilities(subject):
        names = ", ".join(capability.name for capability in missing)
        raise _end(2, f"the story needs capabilities that {adapter} does not declare: {names}")
    if act is not None and act > len(ACTS):
        raise typer.BadParameter(f"there is no act {act}; the story has acts 1 to {len(ACTS)}", param_hint="--act")
    console = Console()
    show_legend(console)
    shown: list[Scene] = []
    try:
        for scene in islice(run_story(subject), act):
            if act in (None, scene.number):
                show_scene(console, scene)
                shown.append(scene)
    except ConfigurationError as error:
        raise _end(2, f"{type(error).__name__}: {error}") from error
    except InvariantError as error:
        raise _end(1, f"the cache does not do what the story describes: {error}") from error
    if svg is not None:
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(render_page(shown), encoding="utf-8")
        say(console, f"\npage: {svg}")


def _end(code: int, reason: str) -> typer.Exit:
    say(Console(stderr=True), reason, style="red")
    return typer.Exit(code)
