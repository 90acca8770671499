"""Gives each attack its campaign, and shows the counts of all at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hicache.tests.attack.campaign import COUNTS, Campaign

__all__ = ["campaign", "pytest_terminal_summary"]


@pytest.fixture
def campaign(record_property: Callable[[str, object], None]) -> Iterator[Campaign]:
    """The campaign of a test."""
    started = Campaign()
    yield started
    record_property(COUNTS, str(started))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the counts of each campaign."""
    lines = [
        f"{report.nodeid.partition('::')[2]}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
        for name, value in report.user_properties
        if name == COUNTS
    ]
    if lines:
        terminalreporter.section("attacks")
        for line in sorted(lines):
            terminalreporter.write_line(line)
