"""The README: its quick start runs, its picture is what the command prints, its commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from hicache.cli.app import app
from hicache.tests.front.child import ROOT, run_python

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ *\$ hicache (.*?)(?: +#.*)?$", README, re.MULTILINE)


def _block(language: str) -> str:
    """The first block of code in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the README has no block of {language!r}"
    return found[1]


def test_the_quick_start_runs(tmp_path: Path) -> None:
    (tmp_path / "quick_start.py").write_text(_block("python"), encoding="utf-8")
    printed = run_python(tmp_path, "-W", "error", "quick_start.py")
    expected = "0 tokens are cached, 1000 are to be computed\n992 tokens are cached, 8 are to be computed\n"
    assert printed == expected, f"expected {expected!r}, the quick start printed {printed!r}"


def test_the_picture_is_what_the_command_prints(tmp_path: Path) -> None:
    program = "from hicache.cli.main import main; main()"
    printed = run_python(tmp_path, "-c", program, "explain", "--act", "5")
    lines = {line.strip() for line in printed.splitlines()}
    missing = [line for line in _block("").splitlines() if line.strip() not in lines]
    assert not missing, f"`hicache explain --act 5` does not print {missing}, it prints:\n{printed}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_options(command: str) -> None:
    words, found = command.split(), get_command(app)
    while isinstance(found, typer.core.TyperGroup) and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    assert not isinstance(found, typer.core.TyperGroup), f"`hicache {command}`: {words[0]!r} is no command"
    known = {option for parameter in found.params for option in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    assert not unknown, f"`hicache {command}` has no option {unknown}; known: {sorted(known)}"


def test_commands_are_found() -> None:
    named = {command.split()[0] for command in COMMANDS}
    expected = {"verify", "verify-storage", "report", "replay", "accuracy"}
    assert named >= expected, f"expected commands {expected}, found {named}"


def test_every_link_to_a_file_leads_to_one() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > 5, f"only {links} were found"
    missing = [link for link in links if not (ROOT / link.partition("#")[0]).exists()]
    assert not missing, f"there are no files {missing}"
