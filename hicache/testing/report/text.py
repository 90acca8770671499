"""Text for a page: without control characters and lone surrogates; and counts in words."""

from __future__ import annotations

import re

_TERMINAL_STYLE = re.compile("\x1b\\[[0-9;]*m")
_UNPRINTABLE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legible(text: str) -> str:
    r"""The text without terminal colours, and with escapes for characters that XML forbids: NUL becomes `\x00`."""
    plain = _TERMINAL_STYLE.sub("", text).replace("\r\n", "\n")
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), plain)


def first_line(text: str) -> str:
    """The first line that is not blank, or an empty string."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def counted(number: int, noun: str) -> str:
    """The number with its noun, in the plural unless it is 1: `1 test`, `2,000 tests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
