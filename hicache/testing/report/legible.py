"""Text that a cache under test has written, made fit to be shown."""

from __future__ import annotations

import re

_TERMINAL_STYLE = re.compile("\x1b\\[[0-9;]*m")
_UNPRINTABLE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legible(text: str) -> str:
    r"""The text without terminal colours, and with escapes for characters that XML forbids: NUL becomes `\x00`."""
    plain = _TERMINAL_STYLE.sub("", text).replace("\r\n", "\n")
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), plain)
