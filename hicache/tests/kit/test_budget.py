"""The quick verdict stays quick: it has no more tests than this. Counts gate, since times depend on the machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import hicache

ROOT = Path(hicache.__file__).parent.parent

MAX_TESTS = {"conformance": 5100, "properties": 90, "distributed_tests": 100}
"""By suite, on the reference. Those of ranks start processes: one for each rank of a test."""


def test_the_quick_verdict_has_no_more_tests_than_its_budget() -> None:
    options = ["--hicache-quick", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *MAX_TESTS, *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    counts = Counter(line.partition("/")[0] for line in done.stdout.splitlines() if "::" in line)
    assert counts.keys() == MAX_TESTS.keys(), f"expected tests of each suite, got {dict(counts)}"
    over = {suite: count for suite, count in counts.items() if count > MAX_TESTS[suite]}
    assert not over, f"more tests than {MAX_TESTS}: {over}; a quick run has fewer configurations, see configurations.py"
