"""Each command of the pages runs as it is written there, or in a shorter form, or a reason says why not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from hicache.cli.app import app
from hicache.testing.plugin.options import OPTIONS
from hicache.testing.plugin.profiles import PROFILES
from hicache.tests.docs.installation import Installation, install_wheel, write_user_files
from hicache.tests.docs.pages import PAGES, ROOT, Block, blocks_of_pages, read_blocks
from hicache.tests.docs.shorter import ENDS_WITH, NOT_RUN, SHORTER, shortened, why_not_run

BLOCKS = [block for block in blocks_of_pages() if block.language == "console"]
RUN = [block for block in BLOCKS if not block.reason and not all(map(why_not_run, block.commands))]
COMMANDS = [(block.place, command) for block in BLOCKS for command in block.commands]


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel of the checkout."""
    return install_wheel(tmp_path_factory.mktemp("installation"))


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
