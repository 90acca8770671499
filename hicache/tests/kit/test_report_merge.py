"""Merging: the runs of one implementation become one; anything else is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.report import merge_runs
from hicache.tests.kit.suite_runs import execution, record


def test_executions_environments_and_the_earliest_start_are_kept() -> None:
    one = record(execution("KEY-1"), started="2026-01-02T10:00:00+00:00")
    other = record(execution("KEY-1", suite="properties"), started="2026-01-02T09:00:00+00:00")
    other = replace(other, environment={"python": "3.11.0", "torch": "2.4"})
    merged = merge_runs([one, other])
    assert merged.executions == (*one.executions, *other.executions), f"executions are lost: {merged.executions}"
    assert merged.started == other.started, f"expected the earliest start, got {merged.started}"
    expected = {"python": "3.10.1, 3.11.0", "torch": "2.4"}
    assert merged.environment == expected, f"expected {expected}, got {merged.environment}"


def test_one_run_stays_as_it_is() -> None:
    only = record(execution("KEY-1"))
    assert merge_runs([only]) == only


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ConfigurationError, match="no run"):
        merge_runs([])


def test_runs_of_different_implementations_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"a:A.*b:B"):
        merge_runs([record(implementation="a:A"), record(implementation="b:B")])


def test_runs_that_declare_different_capabilities_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="HOST"):
        merge_runs([record(), replace(record(), capabilities=("HOST",))])


def test_the_same_execution_twice_is_refused() -> None:
    run = record(execution("KEY-1", name="test_twice"))
    with pytest.raises(ConfigurationError, match=r"test_twice.*two runs"):
        merge_runs([run, run])
