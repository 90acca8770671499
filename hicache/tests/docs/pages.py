"""The commands of the pages: those in blocks of the language console."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = tuple(sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]))

_FENCE = re.compile(r"^( *)```(\S*)$")
_MARK = re.compile(r"^ *<!-- not run: (.*) -->$")
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code. `line`: that of its fence. `reason`: why it is not run, as the comment above it says."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]
    reason: str

    @property
    def place(self) -> str:
        """The page and the line."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands, each on one line and without its comment. Other lines are what a command prints."""
        text = "\n".join(self.lines).replace("\\\n", " ")
        asked = [line.removeprefix(_PROMPT) for line in text.split("\n") if line.startswith(_PROMPT)]
        return tuple(re.sub(r"\s+", " ", re.sub(r"\s+# .*", "", line)).strip() for line in asked)


def read_blocks(text: str, page: str) -> Iterator[Block]:
    """Every block of a page in Markdown."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        if opening := _FENCE.match(lines[number]):
            end = lines.index(f"{opening[1]}```", number + 1)
            mark = _MARK.match(lines[number - 1]) if number else None
            inside = tuple(line.removeprefix(opening[1]) for line in lines[number + 1 : end])
            yield Block(page, number + 1, opening[2], inside, mark[1] if mark else "")
            number = end
        number += 1


def blocks_of_pages() -> list[Block]:
    """Every block of every page."""
    return [
        block
        for path in PAGES
        for block in read_blocks(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
