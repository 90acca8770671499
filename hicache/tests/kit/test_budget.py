"""The quick verdict stays quick: it has no more tests than this. Counts gate, since times depend on the machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import hicache

ROOT = Path(hicache.__file__).parent.parent

MAX_TESTS = {"conformance": 5570, "properties": 106, "distributed_tests": 104, "accuracy": 70, "benchmarks": 71}
"""By suite, on the reference. Those of ranks start processes: one for each rank of a test."""

OF_MODELS = "accuracy"
"""The suite that is not collected where the libraries of models are not installed."""


UNIT_TESTS = "hicache/tests"


def test_the_quick_verdict_has_no_more_tests_than_its_budget() -> None:
    # Without a path this checkout runs its unit tests, the quick verdict, and a part of the other suites.
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--benchmark-disable"]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    counts = Counter(one.partition("/")[0] for one in ids)
    found = {*counts, OF_MODELS}
    assert found == {"hicache", *MAX_TESTS}, f"expected unit tests and tests of each suite, got {dict(counts)}"
    slow = [one for one in ids if one.startswith(f"{UNIT_TESTS}/proof/")]
    assert not slow, f"expected no tests that take minutes, got {len(slow)}, as {slow[0]}"
    over = {suite: counts[suite] for suite in MAX_TESTS if counts[suite] > MAX_TESTS[suite]}
    assert not over, f"more tests than {MAX_TESTS}: {over}; a quick run has fewer configurations, see configurations.py"
