"""Files in the current folder hide no module from `hicache verify`, nor from the processes that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hicache.cli.program import SAFE_PATH, program

ROOT = Path(__file__).parents[3]

HOSTILE = (
    *("readline", "rlcompleter", "cmd", "pdb", "queue", "token", "random", "json", "sqlite3", "sitecustomize"),
    *("torch", "numpy", "pytest", "xdist", "execnet", "hypothesis", "rich", "typer", "yaml", "_pytest", "pluggy"),
)
"""What pytest, its workers, the kit and the cache import, or what completes lines."""

MARK = """
import os, sys
name = os.path.join({folder!r}, "executed")
os.makedirs(name, exist_ok=True)
open(os.path.join(name, __name__), "w").close()
"""

ADAPTER = "from hicache.testing.caches.dictionary import DictionaryAdapter as Mine\n"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with an adapter, and files by the names of libraries that leave a mark when they are executed."""
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(MARK.format(folder=str(tmp_path)), encoding="utf-8")
    (tmp_path / "mine.py").write_text(ADAPTER, encoding="utf-8")
    return tmp_path


def executed(folder: Path) -> list[str]:
    """The files that were executed."""
    return sorted(path.name for path in (folder / "executed").glob("*"))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before 3.11 the workers of xdist do not get the setting")
def test_a_file_by_the_name_of_a_library_is_not_executed(hostile: Path) -> None:
    options = ("--adapter", "mine:Mine", "--require", "nothing", "--only", "conformance", "--jobs", "1")
    command = program("hicache", "verify", *options, "-k", "test_an_empty_allocation_gives_no_slot")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=hostile, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"expected a verification, got {done.returncode}: {done.stdout}{done.stderr}"
    assert not executed(hostile), f"files of the current folder were executed: {executed(hostile)}"


def test_a_module_of_the_current_folder_hides_none_of_the_library(hostile: Path) -> None:
    (hostile / "shown.py").write_text("raise SystemExit('found in the current folder')", encoding="utf-8")
    environment = {**os.environ, **SAFE_PATH, "PYTHONPATH": ""}
    for module in ("json.tool", "sqlite3"):
        subprocess.run(program(module, "--help"), cwd=hostile, env=environment, capture_output=True, check=False)
    done = subprocess.run(program("shown"), cwd=hostile, env=environment, capture_output=True, text=True, check=False)
    assert "No module named" in done.stderr, f"the current folder was searched: {done.stdout}{done.stderr}"
    assert not executed(hostile), f"files of the current folder were executed: {executed(hostile)}"


def verified_on_torchrun(folder: Path, adapter: str) -> subprocess.CompletedProcess[str]:
    """A verification, in this folder, of the class Mine of this module, by the test on processes of torchrun alone."""
    (folder / "mine.py").write_text(adapter, encoding="utf-8")
    options = ("--adapter", "mine:Mine", "--require", "nothing", "--only", "distributed_tests", "--jobs", "1")
    command = program("hicache", "verify", *options, "-k", "test_a_workload_on_the_processes_of_torchrun")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_processes_of_torchrun_find_the_suite_and_the_adapter(tmp_path: Path) -> None:
    done = verified_on_torchrun(tmp_path, "from hicache.testing.caches.reference import ReferenceAdapter as Mine\n")
    assert done.returncode == 0, f"expected a verification, got {done.returncode}: {done.stdout}{done.stderr}"
    assert "1 passed" in done.stdout, f"expected the workload to run, got {done.stdout}"


READS_ZEROS = """
from hicache.testing.caches.reference import ReferenceAdapter

class Mine(ReferenceAdapter):
    def read(self, *where):
        return 0 * super().read(*where)
"""


def test_a_law_that_breaks_on_a_rank_of_torchrun_is_the_cause(tmp_path: Path) -> None:
    done = verified_on_torchrun(tmp_path, READS_ZEROS)
    assert done.returncode == 1, f"expected a failure, got {done.returncode}: {done.stdout}{done.stderr}"
    causes = [line for line in done.stdout.splitlines() if line.startswith("✗")]
    assert causes == ["✗ REQ-3, found by 1 test of RANK-1, RANK-2"], f"expected the law alone, got {done.stdout}"
