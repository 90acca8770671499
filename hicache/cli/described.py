"""Description of an adapter for a command that is about to run it, read in a separate process.

The import of an adapter runs code of the cache under test. It may raise, exit, print or hang.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from hicache.cli.command import adapter_class
from hicache.cli.program import SAFE_PATH, program
from hicache.testing.report.legible import legible

_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Described:
    """An adapter class. `name`: of the class. `capabilities`: names of those that it declares."""

    name: str
    profile: str
    capabilities: tuple[str, ...]


def describe(adapter: str) -> Described:
    """Import `package.module:Class` in a process. Usage error, with the last line that it printed, if this fails."""
    with TemporaryDirectory(prefix="hicache-") as folder:
        answer = Path(folder) / "adapter.json"
        try:
            done = subprocess.run(  # noqa: S603 - the command is made by this package
                program(__name__, adapter, str(answer)),
                env={**os.environ, **SAFE_PATH},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _unusable(f"the import of {adapter} did not end within {_LIMIT_S:g} s") from None
        if not answer.exists():
            told = [line for line in legible(done.stderr).splitlines() if line.strip()]
            reason = told[-1] if told else f"the import ended with code {done.returncode}"
            raise _unusable(reason if adapter in reason else f"{adapter}: {reason}")
        fields = json.loads(answer.read_text(encoding="utf-8"))
    return Described(fields["name"], fields["profile"], tuple(fields["capabilities"]))


def _unusable(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint="--adapter")


def main(adapter: str, answer: str) -> None:
    """Write what `describe` returns to a file. An error of the import is the last line on stderr."""
    try:
        cache = adapter_class(adapter)
    except typer.BadParameter as error:
        raise SystemExit(error.message) from None
    found = Described(cache.__name__, cache.profile, tuple(sorted(one.name for one in cache.capabilities)))
    Path(answer).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
