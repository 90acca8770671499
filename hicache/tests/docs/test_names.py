"""The files that the pages name exist, and so do those that they link to, and the pages that the code names."""

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
        *("run.json", "report.md", "report.html", "page.html", "NAME.json"),  # written by commands
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


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"(?m)^#+ (.*)$", text)}


def lost_anchors(path: Path) -> list[str]:
    """The links of a page to a heading that does not exist, in the page or in another one."""
    targets = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text(encoding="utf-8"))
    pages = {name: (path.parent / name if name else path) for name, _ in targets}
    known = {name: anchors(page.read_text(encoding="utf-8")) for name, page in pages.items()}
    return [f"{name}#{anchor}" for name, anchor in targets if anchor not in known[name]]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_headings_that_a_page_links_to_exist(path: Path) -> None:
    assert not lost_anchors(path), f"{path}: there are no headings {lost_anchors(path)}"


def test_a_heading_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One: two\n[here](#one-two), [there](page.md#three)", encoding="utf-8")
    assert lost_anchors(page) == ["page.md#three"], f"got {lost_anchors(page)}"


NAMED = re.compile(r"(?<![\w/])docs/(?:[\w./-]+\.(?:md|html|svg|json|toml)|reproductions/\w+\.py)\b")
WRITTEN = frozenset({"docs/gpu/run.json"})
"""What a command writes on a machine with a GPU."""


def test_the_pages_that_code_and_settings_name_exist() -> None:
    suffixes = (".py", ".toml", ".ini", ".yml", ".j2")
    read = [name for name in FILES if name.endswith(suffixes) or name == "Makefile"]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in read}
    named = {(name, page) for name, text in texts.items() for page in NAMED.findall(text)}
    assert len(named) > 20, f"only {sorted(named)} were found"
    lost = sorted((name, page) for name, page in named if page not in WRITTEN and not (ROOT / page).exists())
    assert not lost, f"these files name pages that do not exist: {lost}"


def test_a_file_that_does_not_exist_is_found() -> None:
    found = unknown_names("`test_counts.py`, `benchmarks/test_counts.py`, `run.json`, `test_scaling.py`")
    assert found == ["test_scaling.py"], f"expected the one that does not exist, got {found}"
