"""Renamed tests: the old and the new ids, so that lists of known failures and baselines with an old id still match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hicache.config import read_table
from hicache.testing.report.fields import RecordFields

TABLE = Path(__file__).with_suffix(".toml")


def read_renames(path: Path) -> dict[str, str]:
    """The new ids of tests by their old ids. Raises ConfigurationError for a file without them."""
    fields = RecordFields(str(path), "", read_table(path))
    found = fields.texts_by_name("renamed")
    fields.refuse_unread()
    return found


RENAMED: Mapping[str, str] = read_renames(TABLE)
"""The table that ships."""


def new_id(test: str) -> str:
    """The present id of a test, or of a pattern that names one test function. Any other text is returned unchanged."""
    return next(_substitutions(test, RENAMED.items()), test)


def ids_of(test: str) -> tuple[str, ...]:
    """The present id of a test, and those that it had before."""
    return (test, *_substitutions(test, ((new, old) for old, new in RENAMED.items())))


def _substitutions(test: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (found for row in rows if (found := _substituted(test, *row)) is not None)


def _substituted(test: str, source: str, target: str) -> str | None:
    """The test with the target's text in the place of the source's, or None if its id is not that of the source."""
    before, star, after = source.partition("*")
    if star and test == f"{before.removesuffix('[')}*":
        return target
    rest = test.removeprefix(before)
    if rest == test:
        return None
    if not star:
        return target + rest if rest in ("", "*") or rest.startswith("[") else None
    # The last * of a pattern may also stand for the end of the source.
    if not rest.endswith((after, "*")):
        return None
    start, _, end = target.partition("*")
    return start + rest.removesuffix(after) + (end if rest.endswith(after) else "")
