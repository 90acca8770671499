"""`hicache explain`: a short story on a tiny cache, with a drawing after each act."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.command import REFERENCE, adapter_class, say, writable_file
from hicache.errors import ConfigurationError, InvariantError
from hicache.testing.adapter import Capability


def explain_command(
    adapter: Annotated[str, typer.Option(help="Adapter class of the cache, as package.module:Class.")] = REFERENCE,
    act: Annotated[int | None, typer.Option(min=1, help="Show only the act with this number, from 1.")] = None,
    svg: Annotated[Path | None, typer.Option(dir_okay=False, help="Also draw the story into this SVG file.")] = None,
) -> None:
    """Explain a cache on device, host and storage with a short story, and draw the tree after each act.

    A drawing shows for each node which data is on which tier, locked, evicted or in transfer. The acts with storage
    are left out for a cache that lacks what they need.

    Exit code:
    - 0: the cache did what the story describes.
    - 1: the cache did something else.
    - 2: the cache lacks a capability that the story needs, or cannot be opened.
    """
    from hicache.testing.story.page import render_page
    from hicache.testing.story.script import HOST_PART, STORAGE_PART, Scene, parts_of, run_story
    from hicache.testing.story.terminal import show_legend, show_scene

    subject = adapter_class(adapter)
    if missing := HOST_PART.lacks(subject):
        raise _end(2, f"the story needs capabilities that {adapter} does not declare: {_names(missing)}")
    count = sum(len(part.acts) for part in parts_of(subject))
    lacking = STORAGE_PART.lacks(subject)
    more = f"the acts with storage need capabilities that {adapter} does not declare: {_names(lacking)}"
    if act is not None and act > count:
        reason = f"there is no act {act}; the story has acts 1 to {count}"
        raise typer.BadParameter(f"{reason}; {more}" if lacking else reason, param_hint="--act")
    writable_file("--svg", svg)
    console = Console(emoji=False)
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
        svg.write_text(render_page(shown), encoding="utf-8")
        say(console, f"\npage: {svg}")
    if lacking and act is None:
        say(console, f"\n{more}")


def _names(capabilities: Sequence[Capability]) -> str:
    return ", ".join(capability.name for capability in capabilities)


def _end(code: int, reason: str) -> typer.Exit:
    say(Console(stderr=True, emoji=False), reason, style="red")
    return typer.Exit(code)
