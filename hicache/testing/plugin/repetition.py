"""Repetition: a failed test is run once more, and named flaky if it then passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from hicache.testing.plugin.causes import FLAKY, read_causes, to_property

MAX_REPEATED_S = 10.0
"""A test that took longer is not repeated. Those are the searches of Hypothesis, which repeats an example itself."""

MAX_REPEATED = 3
"""Tests of one cause that one process repeats. A cause with many tests is not flaky."""


class Repetition:
    """The repetitions of one process. `is_on`: they are asked for."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._repeated: Counter[tuple[str, ...]] = Counter()

    def run(self, item: pytest.Item, following: pytest.Item | None) -> bool | None:
        """Run a test, and once more if it failed. None, so that pytest runs it, if repetitions are off.

        The reports are those of the first time. The failure stays one; if the test then passes, it is of the cause
        FLAKY. `following`: the test after it.
        """
        if not self._is_on:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = _run(item, following)
        failed = [report for report in reports if report.failed]
        if failed and self._takes(failed) and not any(report.failed for report in _again(item, following)):
            for report in failed:
                report.user_properties.append(to_property([FLAKY]))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _takes(self, failed: Sequence[pytest.TestReport]) -> bool:
        """Whether a failed test is repeated: it is short, and few others of its cause were."""
        causes = tuple(cause for report in failed for cause in read_causes(report.user_properties))
        self._repeated[causes] += 1
        is_short = sum(report.duration for report in failed) <= MAX_REPEATED_S
        return is_short and FLAKY not in causes and self._repeated[causes] <= MAX_REPEATED


def _again(item: pytest.Item, following: pytest.Item | None) -> Sequence[pytest.TestReport]:
    """The reports of a repetition, with new fixtures of the test."""
    if isinstance(item, pytest.Function):
        item._initrequest()  # noqa: SLF001 - pytest has no public way; its plugins that repeat tests do this
    return _run(item, following)


def _run(item: pytest.Item, following: pytest.Item | None) -> list[pytest.TestReport]:
    """The reports of setup, call and teardown, which are not yet published."""
    runner = item.config.pluginmanager.get_plugin("runner")
    assert runner is not None, "pytest's own plugin runs the tests"
    reports: list[pytest.TestReport] = runner.runtestprotocol(item, log=False, nextitem=following)
    return reports
