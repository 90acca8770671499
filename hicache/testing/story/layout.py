"""Layout: the position of everything on the SVG page, in pixels. Positions in a panel count from its corner."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hicache.testing.story.picture import PictureRow
from hicache.testing.story.script import Scene

WIDTH = 1280
MARGIN = 20
GAP = 16
TREE_X = 424
TIERS_X = 752
TIER_PITCH = 112
INDENT = 22
LINE_HEIGHT = 34
PAGE_PITCH = 136
PAGES_PER_LINE = 2
ROOT_Y = 48
TEXT_Y = 72
TEXT_HEIGHT = 20
TEXT_CHARACTERS = 50
WIDE_CHARACTERS = 170
MOVEMENT_HEIGHT = 30
POOLS_HEIGHT = 44
PADDING = 18


@dataclass(frozen=True, slots=True)
class LaidOutNode:
    """One node of the drawn tree.

    `x`, `y`: left edge and vertical middle of its first page. `branch_y`: where the line from its parent begins.
    `middle`: vertical middle of all its lines. `pages`: left edge, vertical middle and words of each page.
    """

    row: PictureRow
    x: int
    y: int
    branch_y: int
    middle: int
    pages: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """The panel of one act. `top`: its position on the page. `text`: lines of text."""

    scene: Scene
    top: int
    height: int
    text: tuple[str, ...]
    nodes: tuple[LaidOutNode, ...]
    movements_y: int
    pools_y: int

    @property
    def notes_x(self) -> int:
        """Left edge of the notes, which stand after the cells of all tiers."""
        return TIERS_X + TIER_PITCH * len(self.scene.picture.tiers)


def wrapped(text: str) -> list[str]:
    """Wrap a text to the full width of the page."""
    return textwrap.wrap(text, WIDE_CHARACTERS)


def panels(scenes: Iterable[Scene], top: int) -> Iterator[Panel]:
    """Lay out the panels one below the other. `top`: of the first one."""
    for scene in scenes:
        panel = _panel(scene, top)
        yield panel
        top += panel.height + GAP


def _panel(scene: Scene, top: int) -> Panel:
    text = tuple(textwrap.wrap(scene.act.text, TEXT_CHARACTERS))
    nodes = tuple(_nodes(scene.picture.rows))
    movements_y = (nodes[-1].pages[-1][1] if nodes else ROOT_Y) + LINE_HEIGHT
    pools_y = movements_y + MOVEMENT_HEIGHT * len(scene.picture.movements)
    bottom = max(pools_y + POOLS_HEIGHT, TEXT_Y + TEXT_HEIGHT * (len(text) + 1))
    return Panel(scene, top, bottom + PADDING, text, nodes, movements_y, pools_y)


def _nodes(rows: Sequence[PictureRow]) -> Iterator[LaidOutNode]:
    y = ROOT_Y
    bottoms = [ROOT_Y]
    for row in rows:
        depth = len(row.lines) - 1
        x, first = TREE_X + INDENT * depth, y + LINE_HEIGHT
        places = (divmod(number, PAGES_PER_LINE) for number in range(len(row.pages)))
        spots = [(x + PAGE_PITCH * column, first + LINE_HEIGHT * line) for line, column in places]
        y = spots[-1][1]
        pages = tuple((*spot, words) for spot, words in zip(spots, row.pages, strict=True))
        yield LaidOutNode(row, x, first, bottoms[depth], (first + y) // 2, pages)
        bottoms[depth + 1 :] = [y]
