"""Ids of tests: a shell takes them unquoted."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hicache
from hicache.testing.plugin.items import plain_id
from hicache.tests.kit.suite_runs import run, write_suite

ROOT = Path(hicache.__file__).parent.parent
PLAIN = re.compile(r"[\w./:,=@%+-]+(\[[\w./:,=@%+-]*\])?", re.ASCII)
FOLDERS = {
    "hicache/tests": 3000,
    "hicache/tests/proof": 200,
    "conformance": 9000,
    "properties": 60,
    "distributed_tests": 200,
    # Without the libraries of models this suite is skipped as a whole.
    "accuracy": 400 if find_spec("transformers") else 0,
    "benchmarks": 300,
}
"""The folders of tests, and a number of tests that each has at least."""


def test_each_id_can_be_pasted_into_a_shell() -> None:
    # In a worker of xdist the plugin of the benchmarks would warn that it disables them, and a warning is an error.
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--benchmark-disable"]
    command = [sys.executable, "-m", "pytest", "--hicache-full", *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    for folder, least in FOLDERS.items():
        count = sum(one.startswith(f"{folder}/") for one in ids)
        assert count >= least, f"{folder}: expected at least {least} tests, got {count}"
    others = [one for one in ids if not PLAIN.fullmatch(one)]
    assert not others, f"{len(others)} ids have other characters: {others[:10]}"
    assert len(set(ids)) == len(ids), "each id names one test"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full+swa/page16/lru", "full+swa/page16/lru"),
        ("on both tiers", "on-both-tiers"),
        ("(0, 1)", "0,-1"),
        ("'a/b'", "a/b"),
        ("$HOME; *", "HOME"),
        ("{}", "7b-7d"),
        ("", ""),
    ],
)
def test_other_characters_become_one_hyphen(text: str, expected: str) -> None:
    assert plain_id(text) == expected, f"{text!r}: expected {expected!r}, got {plain_id(text)!r}"


PARAMETRIZED = """
import re

@pytest.fixture(params=["of a fixture", 3], ids=["a [fixture]", None])
def thing(request):
    return request.param

@clause("KEY-1")
@pytest.mark.parametrize("a", ["a b", 3, b"c d", None, re.compile("e f"), lambda: 0])
@pytest.mark.parametrize("b", [pytest.param(1, id="by param (1)"), 2])
@pytest.mark.parametrize("c", [1, 2], ids=lambda value: f"by call {value}")
@pytest.mark.parametrize("d", [1, 1], ids=["same $", "same #"])
def test_it(a, b, c, d, thing):
    pass
"""


def test_ids_become_plain_however_they_are_given(pytester: pytest.Pytester) -> None:
    write_suite(pytester, PARAMETRIZED)
    listed = [line for line in run(pytester, "--collect-only", "-q").outlines if "::" in line]
    first, *_ = listed
    assert first == "conformance/test_it.py::test_it[a-fixture-same0-by-call-1-by-param-1-a-b]", f"got {first}"
    assert len(set(listed)) == len(listed) == 2 * 2 * 2 * 2 * 6, f"expected 96 tests, got {listed}"
    others = [one for one in listed if not PLAIN.fullmatch(one)]
    assert not others, f"expected plain ids, got {others}"
    chosen = run(pytester, first, "--collect-only", "-q").outlines
    assert first in chosen, f"the id selects the test: {chosen}"


def test_the_ids_of_a_project_stay_as_they_are(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("a", ["a b", "(c)"])
        def test_own(a):
            pass
        """
    )
    listed = run(pytester, "--collect-only", "-q").outlines
    assert any(line.endswith("::test_own[a b]") for line in listed), f"expected the project's own ids, got {listed}"
