"""The page about configurations: its backends are those that there are, and its programs run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from subprocess import run

import pytest

from hicache.storage.registry import BACKENDS
from hicache.tests.docs.pages import ROOT, Block, blocks_of_pages

PAGE = "docs/configuration.md"
LINES = (ROOT / PAGE).read_text(encoding="utf-8").splitlines()
STORES = {name for name, place in BACKENDS.items() if not place.startswith("hicache.storage.wrappers:")}
"""The backends that store pages. Wrappers, which only tests use, are not on the page."""

BLOCKS = [block for block in blocks_of_pages() if block.page == PAGE]
PROGRAMS = [block for block in BLOCKS if block.language == "python"]


def names_in(text: str) -> set[str]:
    """What stands between backquotes."""
    return set(re.findall(r"`([^`]+)`", text))


def test_the_key_of_the_backend_has_each_backend() -> None:
    (row,) = (line for line in LINES if line.startswith("| `storage.backend` |"))
    found = names_in(row) - {"storage.backend", "module:Class"}
    assert found == STORES, f"{PAGE}, storage.backend: expected {sorted(STORES)}, found {sorted(found)}"


def test_each_backend_is_beside_that_of_sglang_or_without_a_counterpart() -> None:
    choices = LINES[LINES.index("## Choices") :]
    rows = [line.split(" | ") for line in choices if line.startswith("| `--hicache-storage-backend` |")]
    pairs = [(names_in(row[1]), names_in(row[2])) for row in rows]
    (last,) = (line for line in LINES if "have no counterpart in SGLang" in line)
    alone = names_in(last.partition("the backends ")[2])
    ours = {name for _, here in pairs for name in here} - {"module:Class"}
    assert ours | alone == STORES, f"{PAGE}, Choices: expected {sorted(STORES)}, found {sorted(ours | alone)}"
    assert not ours & alone, f"{PAGE}: {ours & alone} have a counterpart, and have none"
    missing = [name for there, here in pairs for name in there if not here and name in BACKENDS]
    assert not missing, f"{PAGE}: {missing} are said to be missing here, and are not"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda block: f"line {block.line}")
def test_a_program_runs(program: Block, tmp_path: Path) -> None:
    for block in BLOCKS:
        if block.language == "toml":
            (tmp_path / name_of_file(block)).write_text("\n".join(block.lines), encoding="utf-8")
    command = [sys.executable, "-W", "error", "-c", "\n".join(program.lines)]
    done = run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{program.place}: expected that it runs, got {done.stderr}"


def name_of_file(block: Block) -> str:
    """The file that a block is, as the text before it says."""
    before = " ".join(LINES[: block.line - 1])
    return str(re.findall(r"a file `([\w.]+)`:", before)[-1])


def test_each_file_of_the_page_is_used_by_a_program() -> None:
    files = {name_of_file(block) for block in BLOCKS if block.language == "toml"}
    assert files == {"cache.toml", "extra.toml"}, f"{PAGE}: found {files}"
    unused = [name for name in files if not any(f"@{name}" in line for one in PROGRAMS for line in one.lines)]
    assert not unused, f"{PAGE}: no program reads {unused}"
