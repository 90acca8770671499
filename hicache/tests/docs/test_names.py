"""The files that the pages name exist, and so do those that they link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache.testing.plugin.tags import SUITES
from hicache.tests.docs.pages import PAGES, ROOT

NAME = re.compile(r"`(?:\.{1,2}/)?([\w./-]+\.(?:py|toml|ya?ml|md|json|svg|html))`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")

NOT_HERE = frozenset(
    {
        *("run.json", "report.md", "report.html", "NAME.json"),  # written by commands
        *("my_adapter.py", "cache.toml", "extra.toml", "options.json"),  # of a user
        "config.json",  # of a model
    }
)
"""Names of files that no checkout has."""

FOLDERS = ("hicache", *SUITES, "benchmarks", "docs", "examples", ".github")
FILES = [
    path.relative_to(ROOT).as_posix()
    for place in (ROOT.glob("*"), *((ROOT / folder).rglob("*") for folder in FOLDERS))
    for path in place
    if path.is_file()
]
NOW = [path for path in PAGES if path.name != "CHANGELOG.md"]
"""The pages on what there is. The changelog also names what there was."""


def unknown_names(text: str) -> list[str]:
    """The names of files between backquotes that the end of no path is equal to."""
    names = [name for name in NAME.findall(text) if name.rpartition("/")[2] not in NOT_HERE]
    return [name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in FILES)]


@pytest.mark.parametrize("path", NOW, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_files_that_a_page_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not unknown_names(text), f"{path}: no such files: {unknown_names(text)}"
    dead = [link for link in LINK.findall(text) if not path.parent.joinpath(link).exists()]
    assert not dead, f"{path}: links lead nowhere: {dead}"


def test_a_file_that_does_not_exist_is_found() -> None:
    found = unknown_names("`test_counts.py`, `benchmarks/test_counts.py`, `run.json`, `test_scaling.py`")
    assert found == ["test_scaling.py"], f"expected the one that does not exist, got {found}"
