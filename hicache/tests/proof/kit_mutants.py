"""Defects of the kit itself: each is a row of `kit_mutants.toml`, and a test of hicache/tests/kit finds it.

    python -m hicache.tests.proof.kit_mutants [SLUG ...]

Runs the rows that are named, or all, each on a changed copy of the checkout. The tests of the kit start processes, and
those must have the change too. Prints of each row whether its test fails; the exit status is 1 where one passes, or
where a test fails on a copy without a change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache.config import read_table
from hicache.tests.proof.changed_source import Change

ROOT = Path(__file__).parents[3]
TABLE = Path(__file__).with_suffix(".toml")

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "reports", "*.egg-info")
"""What a copy of a checkout does not need."""

FAILED = 1
"""The exit status of pytest when tests were run and some failed."""


@dataclass(frozen=True, slots=True)
class KitMutant:
    """One defect of the kit. `test`: finds it, by its path from the root of the checkout."""

    slug: str
    defect: str
    test: str
    changes: tuple[Change, ...]


def read_kit_mutants(path: Path = TABLE) -> tuple[KitMutant, ...]:
    """The rows of a table. Raises TypeError for a field that is missing or unknown."""
    return tuple(_mutant(slug=slug, **row) for slug, row in read_table(path).items())


def _mutant(*, changes: Sequence[Sequence[str]], **fields: str) -> KitMutant:
    return KitMutant(**fields, changes=tuple(Change(*change) for change in changes))


def source_file(root: Path, module: str) -> Path:
    """The file of a module, or of a package, in a checkout."""
    path = root / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def run_changed(changes: Sequence[Change], tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run tests on a changed copy of the checkout. Raises ChangeError where a change does not apply."""
    with tempfile.TemporaryDirectory(prefix="hicache-kit-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
        for change in changes:
            file = source_file(copy, change.module)
            file.write_text(change.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": str(copy), "TMPDIR": folder}
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def main(slugs: Sequence[str]) -> int:
    """Run mutants by name; returns the exit status."""
    chosen = [one for one in read_kit_mutants() if one.slug in slugs or not slugs]
    sound = run_changed((), sorted({one.test for one in chosen}))
    if sound.returncode:
        sys.stdout.write(f"the tests fail without a change:\n{sound.stdout}\n")
        return 1
    missed = 0
    for mutant in chosen:
        run = run_changed(mutant.changes, [mutant.test])
        missed += not (is_found := run.returncode == FAILED)
        details = (
            "found" if is_found else f"NOT FOUND by {mutant.test}, which ended with {run.returncode}\n{run.stdout}"
        )
        sys.stdout.write(f"{mutant.slug}: {details}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
