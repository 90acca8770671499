"""The story as one self-contained SVG page with a light and a dark colour scheme."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment

from hicache.testing.report.pages import templates
from hicache.testing.story import layout
from hicache.testing.story.picture import Fill, Owner, PictureCell, Residency
from hicache.testing.story.script import (
    COMPONENTS,
    INTRODUCTION,
    LETTERS,
    LOCKED,
    OUT_OF_TREE,
    OWNERS,
    RESIDENCY,
    TITLE,
    Scene,
)
from hicache.types import Component, Tier


def render_page(scenes: Sequence[Scene]) -> str:
    """Render the page: a legend, and one panel for each scene."""
    introduction = layout.wrapped(INTRODUCTION)
    legend_height = 214 + layout.TEXT_HEIGHT * len(introduction)
    panels = list(layout.panels(scenes, layout.MARGIN + legend_height + layout.GAP))
    return (
        _environment()
        .get_template("story.svg")
        .render(
            title=TITLE,
            introduction=introduction,
            legend_height=legend_height,
            panels=panels,
            height=panels[-1].top + panels[-1].height + layout.MARGIN,
            layout=layout,
            components=COMPONENTS,
            letters=LETTERS,
            samples=_samples(),
            owners=OWNERS,
            out_of_tree=OUT_OF_TREE,
            pool_tiers=(Tier.DEVICE, Tier.HOST),
        )
    )


def _samples() -> list[tuple[PictureCell, str]]:
    """One cell of each kind, with its meaning."""
    full, device = Component.FULL.value, Tier.DEVICE
    half = {Residency.HERE: 1.0, Residency.ARRIVING: 0.5}
    samples = [
        (PictureCell(full, device, one, half.get(one, 0.0), False), meaning) for one, meaning in RESIDENCY.items()
    ]
    return [*samples, (PictureCell(full, device, Residency.HERE, 1.0, True), LOCKED)]


def _spoken(cell: PictureCell) -> str:
    """The state of a cell in words."""
    locked = ", locked" if cell.is_locked else ""
    place = "in storage" if cell.tier is Tier.STORAGE else f"on the {cell.tier.value}"
    return f"{cell.component.upper()} {place}: {RESIDENCY[cell.residency]}{locked}"


def _squares(fill: Fill) -> list[Owner]:
    """The owner of each page of a pool, page by page."""
    return [owner for owner, count in fill.pages.items() for _ in range(count)]


def _environment() -> Environment:
    environment = templates(Path(__file__).parent / "templates")
    environment.filters.update(spoken=_spoken, squares=_squares)
    return environment
