"""The wheel with the kit and without torch: caches of others and storage are verified, the rest names the extra."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hicache

EXAMPLES = Path(__file__).parents[3] / "examples"
SUITES = Path(hicache.__file__).parent / "suites"
INSTALL = "needs torch, which is not installed: pip install 'hicache[torch]'"
DICTIONARY = "hicache.testing.caches.dictionary:DictionaryAdapter"

RANKED = """
from hicache.testing.adapter import Capability
from hicache.testing.caches.dictionary import DictionaryAdapter


class Ranked(DictionaryAdapter):
    capabilities = frozenset(Capability) - {Capability.TABLES}
    snapshot = sizes = layers = slot_bytes = write = read = lambda self: {}
"""
"""An adapter that declares what torch is needed for; no test of it opens a cache."""


def run(folder: Path, *command: str) -> tuple[int, str]:
    """Run a module of this environment in a folder. Returns the exit code and everything it printed."""
    done = subprocess.run([sys.executable, *command], cwd=folder, check=False, text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


def test_the_wheel_is_tested_without_torch() -> None:
    assert "site-packages" in hicache.__file__, f"hicache is imported from {hicache.__file__}"
    assert find_spec("torch") is None, "torch is installed: the tests of this module prove nothing"


def test_a_machine_searches_a_cache_of_others(tmp_path: Path) -> None:
    options = ("--adapter", DICTIONARY, "--require", "nothing", "--only", "properties")
    code, output = run(tmp_path, "-m", "hicache", "verify", *options)
    assert code == 0, f"expected 0, got {code}: {output}"
    assert "no test failed" in output, f"expected the verdict: {output}"


def test_the_plugin_drives_the_tests_of_a_project(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", str(EXAMPLES / "test_my_cache.py"))
    assert code == 0, f"expected 0, got {code}: {output}"


def test_storage_is_verified_and_the_cache_over_it_is_skipped(tmp_path: Path) -> None:
    suites = [str(SUITES / f"conformance/storage/test_{name}.py") for name in ("under_a_cache", "names")]
    options = ("-p", "no:cacheprovider", "-r", "s", "--hicache-backend", "file")
    place = ("--hicache-backend-config", '{"root": "{directory}"}')
    code, output = run(tmp_path, "-m", "pytest", *suites, *options, *place)
    assert code == 0, f"expected 0, got {code}: {output}"
    assert f"the reference cache over the backend {INSTALL}" in output, f"expected what was skipped: {output}"


@pytest.mark.parametrize("path", ["distributed_tests/test_collectives.py", "conformance/test_census.py"])
def test_what_an_adapter_declares_and_torch_serves_is_skipped(tmp_path: Path, path: str) -> None:
    (tmp_path / "ranked.py").write_text(RANKED, encoding="utf-8")
    options = ("-p", "no:cacheprovider", "-r", "s", "--hicache-adapter", "ranked:Ranked", "--hicache-quick")
    _, output = run(tmp_path, "-m", "pytest", str(SUITES / path), *options)
    assert INSTALL in output, f"expected the reason: {output}"
    assert "failed" not in output.replace("0 failed", ""), f"expected skips alone: {output}"


@pytest.mark.parametrize("command", [("verify",), ("explain",), ("replay", "trace.jsonl")])
def test_a_command_on_the_reference_names_the_extra_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "trace.jsonl").touch()
    code, output = run(tmp_path, "-m", "hicache", *command)
    assert (code, output.count("\n")) == (2, 1), f"expected 2 and one line, got {code}: {output}"
    assert INSTALL in output, f"expected the extra: {output}"


def test_a_suite_on_the_reference_names_the_extra(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-m", "pytest", "--pyargs", "hicache.suites.properties", "-p", "no:cacheprovider")
    assert code != 0, f"nothing was verified: {output}"
    assert INSTALL in output.strip().splitlines()[-1], f"expected the extra in the last line: {output}"


def test_the_smallest_example_runs(tmp_path: Path) -> None:
    code, output = run(tmp_path, str(EXAMPLES / "smallest.py"))
    assert code == 0, f"expected 0, got {code}: {output}"


@pytest.mark.parametrize("name", ["own_tensors", "hybrid_three_tiers", "ranks_torchrun"])
def test_an_example_with_tensors_names_torch(tmp_path: Path, name: str) -> None:
    code, output = run(tmp_path, str(EXAMPLES / f"{name}.py"))
    assert code == 1, f"expected 1, got {code}: {output}"
    assert "torch" in output.splitlines()[-1], f"expected what is missing: {output}"
