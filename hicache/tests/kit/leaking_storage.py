"""LeakingStorage: a backend of a third party that has a secret option, and shows it wherever it can."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces
from hicache.storage.memory import MemoryStorage

LOG = logging.getLogger(__name__)


class LeakingStorage(MemoryStorage):
    """Prints and logs its password in tests, and raises it in each get.

    Options: those of MemoryStorage; `password`, which is secret; `refuses`, to be refused when it is opened; `watched`,
    a file to which it adds each command line of the system that has the password.
    """

    SECRET_OPTIONS = ("password",)

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        known = dict(options)
        self.password = known.pop("password")
        watched = known.pop("watched", None)
        if watched is not None:
            with Path(watched).open("a", encoding="utf-8") as file:
                file.writelines(_command_lines_with(str(self.password)))
        if known.pop("refuses", False):
            raise ConfigurationError(f"the password {self.password} is wrong")
        super().__init__(scope, known)

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        if "PYTEST_CURRENT_TEST" in os.environ:
            # Where the output of a backend is not captured, only the backend itself can hide it.
            LOG.error("the password is %s", self.password)
            print(f"password={self.password}")  # noqa: T201 - what a careless backend does
        _ask("store.example", self.password, f"Bearer {self.password}")


def _ask(host: str, password: str, header: str) -> NoReturn:
    """Pytest shows the arguments of the function that raises."""
    raise OSError(f"{host} refuses {header} and {password!r}")


def _command_lines_with(word: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes()
        except OSError:
            # The process has ended, or is another user's.
            continue
        if word.encode() in line:
            found.append(f"{file}: {line!r}\n")
    return found
