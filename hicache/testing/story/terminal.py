"""The story in a terminal: one tree for each act. The signs are sufficient without colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hicache.testing.story.picture import Fill, Movement, Picture, PictureCell, PictureMark, PictureRow, Residency
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

_COLOURS = {Component.FULL.value: "blue", Component.SWA.value: "green", Component.MAMBA.value: "magenta"}
_ARRIVED = "○◔◑◕"
_TEXT_WIDTH = 104
_TWO_PAGES_WIDTH = 110
_POOL_TIERS = (Tier.DEVICE, Tier.HOST)


def show_legend(console: Console) -> None:
    """Print the introduction, and how to read the drawings."""
    components = Table.grid(padding=(0, 2))
    for component, meaning in COMPONENTS.items():
        components.add_row(Text(LETTERS[component], style=f"bold {_COLOURS[component]}"), meaning)
    introduction = _paragraph(console, INTRODUCTION)
    console.print(Text(TITLE, style="bold"), introduction, Padding(components, (1, 3)), _signs(), sep="\n")


def show_scene(console: Console, scene: Scene) -> None:
    """Print one act: its text, the tree, the running transfers, and the owners of the pages of each pool."""
    heading = (f"\n{scene.number}  {scene.act.title}", "bold"), (f"   {' '.join(scene.act.clauses)}", "dim")
    per_line = 2 if console.width >= _TWO_PAGES_WIDTH else 1
    picture = scene.picture
    drawing = Group(_tree(picture, per_line), *_movements(picture.movements), _pools(picture.fills))
    text = _paragraph(console, scene.act.text)
    console.print(Text.assemble(*heading), text, Padding(drawing, (1, 0, 0, 3)), sep="\n")


def _paragraph(console: Console, text: str) -> RenderableType:
    return Padding(Text(text), (0, max(0, console.width - _TEXT_WIDTH), 0, 3))


def _signs() -> RenderableType:
    in_tree = {_ARRIVED if one is Residency.ARRIVING else one.value: meaning for one, meaning in RESIDENCY.items()}
    in_pools = {owner.value: meaning for owner, meaning in OWNERS.items()}
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text("in the tree", style="dim"), "", Text("pages of each pool (M: states)", style="dim"))
    for left, right in zip_longest([*in_tree.items(), ("[■]", LOCKED)], in_pools.items(), fillvalue=("", "")):
        table.add_row(*(Text(part) for part in (*left, *right)))
    return Padding(table, (0, 3))


def _tree(picture: Picture, per_line: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    letters = "".join(f" {letter} " for letter in LETTERS.values())
    table.add_column(Text("\n"), no_wrap=True)
    for tier in picture.tiers:
        table.add_column(Text(f" {tier.value}\n{letters}"), no_wrap=True)
    table.add_column(Text("\n"))
    between = "  " if per_line > 1 else "\n"
    table.add_row(Text("root", style="dim"), *("" for _ in picture.tiers), _notes((), picture.root, between))
    for row in picture.rows:
        cells = (_cells(row.cells[tier]) for tier in picture.tiers)
        notes = _notes(row.lockers, row.marks, between) if row.is_in_tree else Text(OUT_OF_TREE, style="dim")
        table.add_row(_node(row, per_line), *cells, notes)
    return table


def _node(row: PictureRow, per_line: int) -> Text:
    """The pages of a node, `per_line` on each line, below its branches. What is not in the tree has dotted ones."""
    *above, follows = row.lines
    branches = "".join("│  " if line else "   " for line in above)
    arm = "─ " if row.is_in_tree else "┄ "
    first, rest = branches + ("├" if follows else "└") + arm, branches + ("│  " if follows else "   ")
    lines = [" ┊ ".join(row.pages[place : place + per_line]) for place in range(0, len(row.pages), per_line)]
    return Text(first + f"\n{rest}".join(lines), style="" if row.is_in_tree else "dim")


def _cells(cells: Iterable[PictureCell]) -> Text:
    return Text.assemble(*(part for cell in cells for part in _cell(cell)))


def _cell(cell: PictureCell) -> Iterator[tuple[str, str]]:
    left, right = "[]" if cell.is_locked else "  "
    is_arriving = cell.residency is Residency.ARRIVING
    sign = _ARRIVED[int(cell.arrived * len(_ARRIVED)) % len(_ARRIVED)] if is_arriving else cell.residency.value
    is_empty = cell.residency in (Residency.ABSENT, Residency.TOMBSTONE)
    yield left, "bold"
    yield sign, "dim" if is_empty else _COLOURS[cell.component]
    yield right, "bold"


def _notes(lockers: Iterable[str], marks: Iterable[PictureMark], between: str) -> Text:
    notes = [Text(f"◀ {mark.value}", style="bold") for mark in marks]
    if names := ", ".join(lockers):
        notes.append(Text(f"locked by {names}", style="yellow"))
    return Text(between).join(notes)


def _movements(movements: Iterable[Movement]) -> Iterator[Text]:
    for one in movements:
        bar = "■" * one.units_done + "·" * (one.units - one.units_done)
        yield Text(f"\n{one.text} {bar}", style="yellow")


def _pools(fills: Iterable[Fill]) -> RenderableType:
    bars = {(fill.tier, fill.component): _bar(fill) for fill in fills}
    table = Table.grid(padding=(0, 2))
    for tier in _POOL_TIERS:
        table.add_row(Text(f"{tier.value} pages", style="dim"), *(bars[tier, component] for component in LETTERS))
    return Padding(table, (1, 0, 0, 0))


def _bar(fill: Fill) -> Text:
    colour = _COLOURS[fill.component]
    pages = "".join(owner.value * count for owner, count in fill.pages.items())
    return Text.assemble((LETTERS[fill.component], colour), " ", (pages, colour))
