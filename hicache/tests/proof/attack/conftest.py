"""Gives each attack its campaign, and shows the counts of all at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from hicache.tests.proof.attack.campaign import COUNTS, LONGEST, Campaign, shown, total

__all__ = ["campaign", "pytest_terminal_summary"]


@pytest.fixture
def campaign(record_property: Callable[[str, object], None]) -> Iterator[Campaign]:
    """The campaign of a test."""
    started = Campaign()
    yield started
    record_property(COUNTS, dict(started.counts))
    record_property(LONGEST, started.longest_s)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the outcome and the counts of each campaign, and the sums of all."""
    reports = [one for some in terminalreporter.stats.values() for one in some if isinstance(one, pytest.TestReport)]
    failed = {report.nodeid for report in reports if report.failed}
    recorded = {
        report.nodeid: (cast("dict[str, int]", properties[COUNTS]), cast("float", properties[LONGEST]))
        for report in reports
        if report.when == "teardown" and COUNTS in (properties := dict(report.user_properties))
    }
    if not recorded:
        return
    terminalreporter.section("attacks")
    for node_id, found in sorted(recorded.items()):
        outcome = "failed" if node_id in failed else "passed"
        terminalreporter.write_line(f"{outcome} {node_id.partition('::')[2]}: {shown(*found)}")
    for line in total(list(recorded.values()), len(recorded.keys() & failed)):
        terminalreporter.write_line(line)
