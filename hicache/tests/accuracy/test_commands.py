"""The commands of the pages that ask models run in a shorter form, from the wheel and in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache.tests.docs.installation import install_wheel, write_user_files
from hicache.tests.docs.pages import blocks_of_pages
from hicache.tests.docs.shorter import OF_MODELS, shortened

COMMANDS = [
    command
    for block in blocks_of_pages()
    if block.language == "console" and not block.reason
    for command in block.commands
    if any(re.match(beginning, command) for beginning in OF_MODELS)
]


def test_each_command_that_asks_models_runs(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    assert len(COMMANDS) >= len(OF_MODELS), f"expected commands of each kind, got {COMMANDS}"
    installation = install_wheel(tmp_path_factory.mktemp("installation"))
    write_user_files(tmp_path)
    for command in COMMANDS:
        code, printed = installation.run(shortened(command), tmp_path)
        assert code == 0, f"{shortened(command)}: expected 0, got {code}:\n{printed}"
