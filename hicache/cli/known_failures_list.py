"""The text of a list of known failures: an entry as TOML, and an older list in the present format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from hicache.config import read_table
from hicache.errors import ConfigurationError
from hicache.testing.plugin.known_failures import (
    KNOWN_FAILURES_FORMAT,
    KnownFailure,
    format_of,
    quoted,
    read_known_failures,
)
from hicache.testing.report.fields import RecordFields

TOKEN = re.compile(
    r"""(?P<string>'{3}.*?'{3}|"{3}(?:\\.|[^\\])*?"{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<comment>\#[^\n]*)|(?P<header>^[ \t]*\[\[[ \t]*failure[ \t]*\]\])""",
    re.DOTALL | re.MULTILINE,
)
"""The tokens of a list of format 1: strings, so that nothing is found within them, comments, and heads of entries."""

FORMAT = re.compile(r"^format\s*=\s*1\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Listed:
    """An id, and the comments that stand above it or within its entry."""

    id: str
    comments: tuple[str, ...]


def entry_lines(kind: str, reason: str, link: str, ids: Sequence[Listed]) -> Iterator[str]:
    """The lines of the entry of all ids that fail for one reason. `kind`, `reason`, `link`: TOML values."""
    if len(ids) == 1:
        yield from ids[0].comments
    yield from ("[[failures]]", f"kind = {kind}", f"reason = {reason}", f"link = {link}")
    if len(ids) == 1:
        yield f"ids = [{quoted(ids[0].id)}]"
        return
    yield "ids = ["
    for one in ids:
        yield from (f"    {comment}" for comment in one.comments)
        yield f"    {quoted(one.id)},"
    yield "]"


def rewritten(path: Path) -> str:
    """The text of a list in the present format, with the present ids of tests.

    Kinds, reasons, links and comments stay. Raises ConfigurationError for a list that cannot be read, and for one that
    cannot be rewritten without a loss: its entries are not tables such as `[[failure]]`.
    """
    entries, text = read_known_failures(path), path.read_text(encoding="utf-8")
    if format_of(RecordFields(str(path), "", read_table(path))) == KNOWN_FAILURES_FORMAT:
        names = {quote(one.id): quoted(one.present_id) for one in entries for quote in (quoted, "'{}'".format)}
        return TOKEN.sub(lambda found: names.get(found[0], found[0]), text)
    blocks = _blocks(text)
    if len(blocks) != len(entries) + 1:
        raise ConfigurationError(f"{path}: expected a table [[failure]] for each of {len(entries)} entries")
    return _joined(blocks, entries)


def rewrite(path: Path) -> None:
    """Write a list anew, in the present format and with the present ids of tests.

    Raises ConfigurationError, and leaves the file unchanged, if it cannot be read or would lose an entry or a comment.
    """
    expected = Counter(replace(one, place="", id=one.present_id) for one in read_known_failures(path))
    draft = path.with_stem(f"{path.stem}.draft")
    draft.write_text(rewritten(path), encoding="utf-8")
    try:
        if Counter(replace(one, place="") for one in read_known_failures(draft)) != expected:
            raise ConfigurationError(f"{path}: cannot be rewritten, its entries would change")
        if _comments(draft) != _comments(path):
            raise ConfigurationError(f"{path}: cannot be rewritten, its comments would change")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _comments(path: Path) -> Counter[str]:
    tokens = TOKEN.finditer(path.read_text(encoding="utf-8"))
    return Counter(one["comment"].rstrip() for one in tokens if one["comment"])


@dataclass(frozen=True, slots=True)
class _Block:
    """A part of a list of format 1, from the head of an entry to the next. The first one ends before all entries.

    `comments`: within the entry. `heading`: the text after it that a blank line divides from the next entry.
    `attached`: the comments directly above the next entry.
    """

    comments: tuple[str, ...]
    heading: str
    attached: tuple[str, ...]


def _blocks(text: str) -> list[_Block]:
    starts = [0, *(one.start() for one in TOKEN.finditer(text) if one["header"]), len(text)]
    # With a blank line after it, so that no comment includes it.
    first = FORMAT.sub(f"format = {KNOWN_FAILURES_FORMAT}\n", text[: starts[1]])
    return [_block(first), *(_block(text[start:end]) for start, end in pairwise(starts[1:]))]


def _block(text: str) -> _Block:
    """Divide the text before an entry: its own last lines that are blank or comments belong to what follows."""
    tokens = list(TOKEN.finditer(text))
    end = max((one.end() for one in tokens if not one["comment"]), default=0)
    end = text.find("\n", end) + 1 or len(text)
    tail = text[end:] if tokens and not tokens[0]["comment"] else text
    within = text[: len(text) - len(tail)]
    heading, _, attached = tail.rpartition("\n\n")
    return _Block(
        comments=tuple(one[0] for one in TOKEN.finditer(within) if one["comment"]),
        heading=heading.strip("\n"),
        attached=tuple(line.strip() for line in attached.splitlines() if line.strip()),
    )


def _joined(blocks: Sequence[_Block], entries: Sequence[KnownFailure]) -> str:
    """The list of format 2. A heading divides it: entries before and after it are not joined."""
    parts = [blocks[0].heading]
    if f"format = {KNOWN_FAILURES_FORMAT}" not in parts[0].splitlines():
        parts.append(f"format = {KNOWN_FAILURES_FORMAT}")
    groups: dict[tuple[str, str, str], list[Listed]] = {}
    for before, block, entry in zip(blocks, blocks[1:], entries, strict=False):
        if before is not blocks[0] and before.heading:
            parts += [*_texts(groups), before.heading]
            groups = {}
        listed = Listed(entry.present_id, (*before.attached, *block.comments))
        groups.setdefault((entry.kind, entry.reason, entry.link), []).append(listed)
    last = [blocks[-1].heading, "\n".join(blocks[-1].attached)]
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(one for one in [*parts, *_texts(groups), *last] if one)) + "\n"


def _texts(groups: dict[tuple[str, str, str], list[Listed]]) -> Iterator[str]:
    for (kind, reason, link), ids in groups.items():
        yield "\n".join(entry_lines(quoted(kind), quoted(reason), quoted(link), ids))
