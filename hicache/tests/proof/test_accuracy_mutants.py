"""Each cache that gives a model something wrong fails the test that is named for it: by what the model answers.

That the reference passes the same tests is what the environment `accuracy` shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.tests.proof.mutants.accuracy.rows import ROWS
from hicache.tests.proof.mutants.rows import Row

ROOT = Path(__file__).parents[3]
SUITE = "accuracy"

MISSING = [name for name in ("torch", "transformers", "lm_eval") if not find_spec(name)]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"models are run, and {', '.join(MISSING)} is missing: pip install 'hicache[accuracy]'"
)

INSIDE = (
    *("-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:xdist"),
    *("-o", "faulthandler_timeout=0", "--assert=plain"),
)
"""What speaks for a whole process is left to the run that there is. Modules that it imported are not rewritten."""


class Heard:
    """What became of the tests of a run inside this one, which has the libraries of models loaded already."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.words = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note each test once, and every error."""
        if report.when == "call" or not report.passed:
            self.outcomes.append(report.outcome)
            self.words += report.longreprtext

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected."""
        self.words += report.longreprtext if report.failed else ""


def run(adapter: type[CacheAdapter], tests: Iterable[str]) -> Heard:
    """The suite on a cache."""
    heard = Heard()
    subject = ["--hicache-adapter", f"{adapter.__module__}:{adapter.__qualname__}"]
    paths = [f"{ROOT / SUITE}/{test}" for test in tests]
    pytest.main([*INSIDE, "--rootdir", str(ROOT), *subject, *paths], plugins=[heard])
    return heard


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_model_sees_a_mutant(row: Row) -> None:
    heard = run(row.adapter, [row.test])
    assert heard.outcomes == ["failed"], f"{row.slug} ({row.source}): {row.test}: {heard.outcomes}\n{heard.words}"
    assert re.search(row.told, heard.words), f"{row.slug}: expected {row.told!r}, got:\n{heard.words}"
