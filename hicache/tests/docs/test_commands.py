"""Each command of the pages runs as it is written there, or in a shorter form, or a reason says why not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from hicache.cli.app import app
from hicache.testing.adapter import CacheAdapter
from hicache.testing.cache_contract import _tests
from hicache.testing.contract import CONTRACT
from hicache.testing.levels import Level
from hicache.testing.load import load_adapter
from hicache.testing.plugin.options import OPTIONS, PROFILES
from hicache.testing.plugin.selection import undeclared
from hicache.testing.report import Outcome
from hicache.testing.report.coverage import LevelResult, Verdict, coverage
from hicache.testing.report.matrix import overview
from hicache.tests.docs.installation import Installation, shared_installation, write_user_files
from hicache.tests.docs.pages import PAGES, ROOT, Block, blocks_of_pages, read_blocks
from hicache.tests.docs.shorter import ENDS_WITH, NOT_RUN, SHORTER, shortened, why_not_run
from hicache.tests.kit.suite_runs import execution, record

BROKEN_CLAUSE = "MATCH-1"

BLOCKS = [block for block in blocks_of_pages() if block.language == "console"]
RUN = [block for block in BLOCKS if not block.reason and not all(map(why_not_run, block.commands))]
COMMANDS = [(block.place, command) for block in BLOCKS for command in block.commands]


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel of the checkout."""
    return shared_installation(tmp_path_factory.getbasetemp())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with nothing but what a user has written."""
    write_user_files(tmp_path)
    return tmp_path


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.place)
def test_a_block_runs(block: Block, installation: Installation, folder: Path) -> None:
    for command in block.commands:
        if why_not_run(command):
            continue
        code, printed = installation.run(shortened(command), folder)
        expected = ENDS_WITH.get(command, 0)
        assert code == expected, f"{block.place}: {shortened(command)}: expected {expected}, got {code}:\n{printed}"


def test_the_line_that_runs_a_failure_again_fails_again(installation: Installation, folder: Path) -> None:
    suite = f"pytest --pyargs hicache.suites.conformance -n 0 -x -k {BROKEN_CLAUSE}"
    code, printed = installation.run(f"{suite} --hicache-adapter my_broken:BrokenAdapter --hicache-report out", folder)
    assert code == pytest.ExitCode.TESTS_FAILED, f"expected a failure, got {code}:\n{printed}"
    (again,) = {line.strip() for line in printed.splitlines() if line.strip().startswith("pytest ")}
    assert again in (folder / "out" / "report.md").read_text(encoding="utf-8"), f"report.md does not have {again}"
    code, printed = installation.run(again, folder)
    assert code == pytest.ExitCode.TESTS_FAILED, f"{again}: expected the failure again, got {code}:\n{printed}"
    assert re.search(r"\b1 failed\b", printed), f"{again}: expected one failed test:\n{printed}"


# What can be said of commands that are not run, and of those in sentences.

SENTENCES = [
    (path.relative_to(ROOT).as_posix(), words)
    for path in PAGES
    for words in re.findall(
        r"`((?:hicache|pytest|python -m pytest|tox|make) [^`\n]+)`", path.read_text(encoding="utf-8")
    )
]


@pytest.mark.parametrize(("place", "command"), [*COMMANDS, *SENTENCES], ids=lambda text: text[:60])
def test_what_a_command_names_exists(place: str, command: str) -> None:
    unknown = list(unknown_words(shlex.split(command)))
    assert not unknown, f"{place}: `{command}` names {unknown}, which do not exist"


def unknown_words(words: list[str]) -> Iterator[str]:
    """The subcommand, the options, the profile, the target or the environment that do not exist."""
    program, *given = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S+", word)]
    if program == "hicache":
        yield from _unknown_of_hicache(given)
    elif program == "make":
        made = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        yield from (word for word in given if "=" not in word and word not in made)
    elif "--pyargs" in given or program == "pytest":
        known = {option.flag for option in OPTIONS}
        options = [word.partition("=")[0] for word in given if word.startswith("--hicache-")]
        yield from (option for option in options if option not in known)
        profiles = [given[number + 1] for number, word in enumerate(given) if word == "--hypothesis-profile"]
        yield from (name for name in profiles if name not in PROFILES)


def _unknown_of_hicache(words: list[str]) -> Iterator[str]:
    found = get_command(app)
    while isinstance(found, typer.core.TyperGroup) and words:
        name = words.pop(0)
        if name not in found.commands:
            yield name
            return
        found = found.commands[name]
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    yield from (word for word in words if word.startswith("--") and word != "--help" and word not in known)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("hicache verify --adapter a:B --slow", ["--slow"]),
        ("hicache prove", ["prove"]),
        ("pytest --hicache-adaptor a:B --hypothesis-profile nightly", ["--hicache-adaptor", "nightly"]),
        ("CI=1 make .venv/models verify tests", ["tests"]),
    ],
)
def test_a_word_that_does_not_exist_is_found(command: str, expected: list[str]) -> None:
    found = list(unknown_words(shlex.split(command)))
    assert found == expected, f"`{command}`: expected {expected}, found {found}"


# A shortened verification requires no level, and so does not end as the whole one would.

VERIFICATIONS = [
    (block.place, command)
    for block in BLOCKS
    for command in block.commands
    if not block.reason and re.match(r"hicache verify .*hicache\.testing\.adapters\.", command)
]


def device_if_all_passes(adapter: type[CacheAdapter]) -> LevelResult:
    """The level device after a run of the conformance suite in which no test fails."""
    executions = []
    for name, test in sorted(_tests(["*"]).items()):
        checks = next(mark.args[0] for mark in test.pytestmark if mark.name == "clause")  # type: ignore[attr-defined]
        lacks = undeclared(checks, adapter)
        outcome = Outcome.SKIPPED if lacks else Outcome.PASSED
        executions.append(execution(*checks.clauses, name=name, outcome=outcome, lacks=lacks))
    declared = tuple(one.name for one in adapter.capabilities)
    run = replace(record(*executions), profile=adapter.profile, capabilities=declared)
    return coverage(overview(run, CONTRACT)).of(Level.DEVICE)


@pytest.mark.parametrize(("place", "command"), VERIFICATIONS, ids=lambda text: text[-60:])
def test_a_verification_of_an_adapter_of_this_package_ends_with_0(place: str, command: str) -> None:
    words = shlex.split(command)
    device = device_if_all_passes(load_adapter(words[words.index("--adapter") + 1]))
    is_verified = device.verdict is Verdict.VERIFIED
    assert is_verified is not command.endswith("--require nothing"), (
        f"{place}: `{command}`: {device}: expected --require nothing if it is not verified, and only then"
    )


# The reading of the pages, and the tables of what is shorter.

PAGE = """
1. In a list:

   ```console
   $ first --option \\
         value        # a comment
   what it prints
   ```

<!-- not run: needs a GPU -->
```console
$ second
```
"""


def test_commands_are_read_with_their_reasons() -> None:
    found = [(block.line, block.commands, block.reason) for block in read_blocks(PAGE, "page.md")]
    expected = [(4, ("first --option value",), ""), (11, ("second",), "needs a GPU")]
    assert found == expected, f"expected {expected}, got {found}"


def test_a_block_of_the_language_console_has_commands() -> None:
    assert len(RUN) > 10, f"only {len(RUN)} blocks are run"
    empty = [block.place for block in BLOCKS if not block.commands]
    assert not empty, f"a command begins with $: none in {empty}"


def test_no_command_hides_in_another_block() -> None:
    others = [block for block in blocks_of_pages() if block.language in ("", "sh", "bash", "shell", "text")]
    hidden = [
        block.place
        for block in others
        if any(re.match(r"\$ |(hicache|pytest|make|tox) -?\w+ ", line) for line in block.lines)
    ]
    assert not hidden, f"the language of a block with commands is console: {hidden}"
    indented = [
        f"{path.name}: {line}"
        for path in PAGES
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"    (\S*/)?(hicache|pytest|python|make|tox|torchrun|pip) -?\w+", line)
    ]
    assert not indented, f"these commands are in no block: {indented}"


def test_each_entry_of_the_tables_is_used() -> None:
    commands = [command for _, command in COMMANDS]
    unused = [one for one in NOT_RUN if not any(re.match(one, command) for command in commands)]
    unused += [one for one in ENDS_WITH if one not in commands]
    unused += [one for one in SHORTER if not any(re.search(one, command) for command in commands)]
    assert not unused, f"no command of a page matches {unused}"


def test_an_installation_names_where_hicache_comes_from() -> None:
    # Without an index, a name alone cannot be installed.
    named = [(place, words) for place, words in COMMANDS if re.match(r"pip install .*(hicache|\.\[)", words)]
    assert len(named) > 2, f"expected that the pages say how to install, got {named}"
    wrong = [one for one in named if not re.search(r"'\.\[[\w-]+\]'|'hicache\[\w+\] @ git\+URL@COMMIT'", one[1])]
    assert not wrong, f"expected a checkout or the URL of its repository, got {wrong}"
