"""The file for the CI of an engine, examples/test_hicache.py: it runs by itself, and a run that shows nothing fails."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hicache.tests.docs.pages import ROOT

JOB = (ROOT / "examples" / "test_hicache.py").read_text(encoding="utf-8")
SOUND = "hicache.testing.caches.dictionary:DictionaryAdapter"
BROKEN = "hicache.tests.proof.mutants.black_box:RadixEvictsLocked"

HITS = "test_what_verbs_inserted_is_found"

AS_PROGRAM = ("test_hicache.py",)
AS_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-s", "test_hicache.py")


def run_job(folder: Path, adapter: str, tests: str, *, words: tuple[str, ...] = AS_PROGRAM) -> tuple[int, str]:
    """Run the file with a cache of the kit in the place of the engine's. Returns the exit code and the output."""
    (folder / "known.toml").write_text("format = 2\nfailures = []\n", encoding="utf-8")
    options = ("--jobs", "1", "--require", "nothing", "--only", "conformance", "-k", tests)
    changed = (
        f"CORES = {{'hicache': {{{adapter!r}: 'known.toml'}}}}\nLISTS = {str(folder)!r}\nOPTIONS = {options}\n\n\n"
    )
    text = JOB.replace("class TestPrefixCaches", f"{changed}class TestPrefixCaches")
    (folder / "test_hicache.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("words", [AS_PROGRAM, AS_PYTEST], ids=["program", "pytest"])
def test_a_sound_cache_passes_and_its_witnesses_are_shown(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, output = run_job(tmp_path, SOUND, f"{HITS} or test_an_eviction_frees", words=words)
    assert code == 0, f"got {code}: {output}"
    assert f"{SOUND}: 0 of 1 runs failed" in output, f"expected the count of runs, got {output}"
    assert "witnesses: " in output, f"expected what the run saw, got {output}"


def test_the_lists_of_the_file_are_in_the_package() -> None:
    job = runpy.run_path(str(ROOT / "examples" / "test_hicache.py"))
    for known in {known for lists in job["CORES"].values() for known in lists.values()}:
        assert (ROOT / "hicache" / job["LISTS"] / known).is_file(), f"examples/test_hicache.py: there is no {known}"


def test_caches_that_hit_other_tokens_are_told_apart() -> None:
    job = runpy.run_path(str(ROOT / "examples" / "test_hicache.py"))
    assert job["difference"]({"python": [0, 64, 128], "rust": [0, 64]}) == "", "a replay may end early"
    found = job["difference"]({"python": [0, 64, 128], "rust": [0, 0, 128]})
    assert found == "prompt 1: python hit 64 tokens, and rust 0", f"got {found}"


def test_a_broken_cache_fails_the_job(tmp_path: Path) -> None:
    code, output = run_job(tmp_path, BROKEN, "test_locked_data_survives")
    assert code == 1, f"got {code}: {output}"
    assert "LOCK-5, found by" in output, f"expected the broken clause, got {output}"


def test_a_run_that_shows_nothing_fails_the_job(tmp_path: Path) -> None:
    code, output = run_job(tmp_path, SOUND, HITS)
    assert code == 1, f"got {code}: {output}"
    assert "the run saw no evictions" in output, f"expected what is missing, got {output}"
