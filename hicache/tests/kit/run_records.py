"""Run records made by hand, for the tests of reports."""

from __future__ import annotations

from hicache.testing.report import SCHEMA_VERSION, Execution, Outcome, RunRecord

HOSTILE = 'expected <b>1</b> & "2", got \x00\x1b[31mred\x1b[0m \ud800 ``` | </pre><script>alert(1)</script> ]]> é\ufffe'
"""A failure's message with the worst contents: markup of every format, control characters, a lone surrogate."""


def execution(
    *clauses: str,
    outcome: Outcome = Outcome.PASSED,
    configuration: str = "full/page16/lru",
    reason: str = "",
    name: str = "test_one",
    suite: str = "conformance",
    duration_s: float = 0.25,
) -> Execution:
    """One execution of `name`, with 7 operations."""
    node_id = f"{suite}/test_file.py::{name}[{configuration}]"
    return Execution(node_id, suite, clauses, configuration, outcome, reason, f"pytest '{node_id}'", duration_s, 7)


def record(
    *executions: Execution, implementation: str = "package.cache:Adapter", started: str = "2026-01-02"
) -> RunRecord:
    """One run of these executions."""
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        implementation=implementation,
        started=started,
        environment={"python": "3.10.1"},
        capabilities=("BYTES", "SWA"),
        executions=executions,
    )
