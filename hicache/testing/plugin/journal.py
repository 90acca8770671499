"""Journal: collects the reports of a run, from this process or from workers, into one execution for each test."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache.testing.plugin.tags import OPERATIONS, Tags, read_tags
from hicache.testing.report.run import Execution, Outcome

WORST_FIRST = (Outcome.FAILED, Outcome.KNOWN_FAILURE, Outcome.SKIPPED, Outcome.PASSED)

CRASHED = "???"
"""The phase of the report for a test whose worker process died."""


class Journal:
    """The test reports received so far."""

    def __init__(self) -> None:
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def take(self, report: pytest.TestReport) -> None:
        """Record the report of one phase of a test, unless the test belongs to no suite."""
        if report.when == CRASHED or read_tags(report.user_properties) is not None:
            self._reports.setdefault(report.nodeid, []).append(report)

    def executions(self) -> tuple[Execution, ...]:
        """One execution for each test, in the order in which they began."""
        return tuple(_execution(node_id, reports) for node_id, reports in self._reports.items())


def _execution(node_id: str, reports: Sequence[pytest.TestReport]) -> Execution:
    properties = [one for report in reports for one in report.user_properties]
    tags = read_tags(properties) or Tags("", node_id, (), "", f"pytest '{node_id}'")
    decisive = min(reports, key=lambda report: WORST_FIRST.index(_outcome(report)))
    return Execution(
        node_id=tags.test,
        suite=tags.suite,
        clauses=tags.clauses,
        configuration=tags.configuration,
        outcome=_outcome(decisive),
        reason=_reason(decisive),
        replay=tags.replay,
        duration_s=sum(report.duration for report in reports),
        operations=sum(int(str(value)) for name, value in reports[-1].user_properties if name == OPERATIONS),
    )


def _outcome(report: pytest.TestReport) -> Outcome:
    if report.failed:
        return Outcome.FAILED
    if report.skipped:
        return Outcome.KNOWN_FAILURE if hasattr(report, "wasxfail") else Outcome.SKIPPED
    return Outcome.PASSED


def _reason(report: pytest.TestReport) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr)
    return f"{report.wasxfail}\n{message}" if hasattr(report, "wasxfail") else message
