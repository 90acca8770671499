"""The fragments of the changelog: names and texts that towncrier takes, and a part Unreleased that stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache.config import read_table
from hicache.tests.docs.pages import ROOT

FOLDER = ROOT / "changelog.d"
SETTINGS = read_table(ROOT / "pyproject.toml")["tool"]["towncrier"]
TYPES = [one["directory"] for one in SETTINGS["type"]]
NAME = re.compile(rf"\+[a-z0-9]+(?:-[a-z0-9]+)*\.(?:{'|'.join(TYPES)})\.md")
LINES, COLUMNS = 5, 140
UNRELEASED_LINES = 120
"""What the part Unreleased of CHANGELOG.md may have; it does not grow any more."""

FRAGMENTS = sorted(path for path in FOLDER.iterdir() if path.name != "README.md")


def flaws(name: str, text: str) -> list[str]:
    """What is wrong with a fragment."""
    lines = text.splitlines()
    found = [] if NAME.fullmatch(name) else [f"the name is not +NAME.TYPE.md with a type of {TYPES}"]
    found += [] if 0 < len(lines) <= LINES else [f"expected 1 to {LINES} lines, got {len(lines)}"]
    found += [f"a line has {len(line)} characters: {line}" for line in lines if len(line) > COLUMNS]
    found += ["the first character is a list mark or a heading"] if text[:1] in {"-", "*", "#", ""} else []
    found += [] if text.rstrip().endswith(".") else ["the text does not end with a full stop"]
    return found


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_one_entry(path: Path) -> None:
    found = flaws(path.name, path.read_text(encoding="utf-8"))
    assert not found, f"{path}: {found}"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("replay.changed.md", "It changed.", "the name is not"),
        ("+replay.better.md", "It changed.", "the name is not"),
        ("+replay.changed.md", "", "expected 1 to 5 lines"),
        ("+replay.changed.md", "- It changed.", "a list mark"),
        ("+replay.changed.md", "It changed", "a full stop"),
        ("+replay.changed.md", f"{'long ' * 40}.", "a line has 201"),
    ],
)
def test_a_wrong_fragment_is_found(name: str, text: str, expected: str) -> None:
    assert any(expected in flaw for flaw in flaws(name, text)), f"expected {expected!r}, got {flaws(name, text)}"


def test_the_changelog_has_the_mark_and_a_short_part_unreleased() -> None:
    text = (ROOT / SETTINGS["filename"]).read_text(encoding="utf-8")
    assert text.count(SETTINGS["start_string"]) == 1, (
        f"{SETTINGS['filename']}: expected {SETTINGS['start_string']!r} once"
    )
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## [")[0]
    lines = len(unreleased.splitlines())
    assert lines <= UNRELEASED_LINES, f"Unreleased has {lines} lines; new entries go to changelog.d"
