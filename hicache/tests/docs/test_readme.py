"""The README, the index and the path through the code: counts, the verdict, pages and files are those that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from hicache.tests.docs.pages import PAGES, ROOT, read_blocks
from hicache.tests.inventory.findings import ENGINES, findings

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
LINES = 100
"""How long the README may be."""


def rows(page: str, head: str) -> dict[str, list[str]]:
    """The rows of the table with this head, by their first cell."""
    table = re.search(rf"^{re.escape(head)}\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None, f"there is no table {head}"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1].splitlines()]
    return {first: others for first, *others in cells}


def test_the_readme_counts_the_defects_of_the_findings() -> None:
    told = {name: int(cells[1]) for name, cells in rows(README, "| engine | release | defects | for example |").items()}
    engines = [ENGINES[one.engine] for one in findings()]
    found = {name: engines.count(name) for name in engines}
    assert told == found, f"README.md: expected {found}, got {told}"
    count = ("five", "six", "seven", "eight", "nine", "ten")[len(found) - 5]
    sentence = f"The kit found {len(engines)} defects in {count} engines"
    assert sentence in README, f"README.md: expected {sentence}"


def test_the_index_counts_the_defects_of_sglang_by_release() -> None:
    head = "| what was verified | defects in 0.5.13.post1 | in 0.5.23 | an example |"
    told = [(int(cells[0]), int(cells[1])) for cells in rows(INDEX, head).values()]
    of_sglang = [one for one in findings() if one.engine == "sglang"]
    sections = list(dict.fromkeys(one.section for one in of_sglang))
    found = [
        tuple(
            sum(one.section == section and release in one.releases for one in of_sglang)
            for release in ("0.5.13.post1", "0.5.23")
        )
        for section in sections
    ]
    assert told == found, f"docs/index.md: expected {found} for {sections}, got {told}"


def test_the_readme_is_short_and_has_the_two_commands_of_a_fresh_clone() -> None:
    assert len(README.splitlines()) <= LINES, f"README.md has {len(README.splitlines())} lines"
    commands = [line.partition("  #")[0] for line in README.splitlines() if line.startswith("$ make ")]
    assert [command.strip() for command in commands] == ["$ make verify", "$ make test"], f"got {commands}"


def test_the_verdict_in_the_readme_is_what_the_command_prints(tmp_path: Path) -> None:
    (block,) = (one for one in read_blocks(README, "README.md") if "✗" in "".join(one.lines))
    (command,) = block.commands
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HICACHE_", "COV_"))}
    program = (sys.executable, "-c", "from hicache.cli.main import main; main()", *command.split()[1:], "--jobs", "1")
    environment = {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"{command}: expected 1, got {done.returncode}: {done.stdout}{done.stderr}"
    shown = "\n".join(block.lines[1:])
    assert len(block.lines[1:]) == 6, f"README.md: expected six lines, got {shown}"
    assert shown in done.stdout, f"{command}: expected\n{shown}\ngot\n{done.stdout}"


def test_every_page_is_reached_from_the_index() -> None:
    reached = {DOCS / "index.md"}
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        new = {(page.parent / link).resolve() for link in links} - reached
        reached |= new
        waiting += new
    missing = [page.relative_to(ROOT).as_posix() for page in PAGES if page.parent != ROOT and page not in reached]
    assert not missing, f"docs/index.md leads to none of {missing}"
    assert DOCS / "index.md" in {(ROOT / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", README)}, (
        "README.md does not lead to the index"
    )


def test_the_path_through_the_code_has_files_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    path = text.partition("## A path through the code\n")[2].partition("\n## ")[0]
    device, _, prefetch = path.partition("**A prefetch in four files:**")
    steps = [re.findall(r"^\d+\. `([\w/.]+)`: ", part, re.MULTILINE) for part in (device, prefetch)]
    assert [len(part) for part in steps] == [10, 4], f"expected ten files and four, got {steps}"
    missing = [name for part in steps for name in part if not (ROOT / name).is_file()]
    assert not missing, f"docs/architecture.md: there are no files {missing}"
