"""The commands of the pages that ask models run in a shorter form, from the wheel and in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache.tests.docs.installation import WHOLE, shared_installation, write_user_files
from hicache.tests.docs.pages import blocks_of_pages
from hicache.tests.docs.shorter import OF_MODELS, shortened

COMMANDS = [
    command
    for block in blocks_of_pages()
    if block.language == "console" and not block.reason
    for command in block.commands
    if any(re.match(beginning, command) for beginning in OF_MODELS)
]


def test_the_pages_have_commands_of_each_kind() -> None:
    missing = [beginning for beginning in OF_MODELS if not any(re.match(beginning, one) for one in COMMANDS)]
    assert not missing, f"no command of a page begins with {missing}; found {COMMANDS}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_asks_models_runs(
    command: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    installation = shared_installation(tmp_path_factory.getbasetemp())
    write_user_files(tmp_path, WHOLE)
    code, printed = installation.run(shortened(command), tmp_path)
    assert code == 0, f"{shortened(command)}: expected 0, got {code}:\n{printed}"
