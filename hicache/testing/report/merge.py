"""Merge several runs of one implementation, such as one for each suite, into one."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.errors import ConfigurationError
from hicache.testing.report.run import SCHEMA_VERSION, RunRecord


def merge_runs(records: Sequence[RunRecord]) -> RunRecord:
    """Merge the executions and environments; the start is the earliest one.

    Raises ConfigurationError if there is no run, if the runs are of different implementations, or if two runs have
    the same execution.
    """
    if not records:
        raise ConfigurationError("there is no run to merge")
    implementations = {(record.implementation, record.capabilities) for record in records}
    if len(implementations) > 1:
        raise ConfigurationError(f"runs of different implementations: {sorted(implementations)}")
    executions = tuple(execution for record in records for execution in record.executions)
    seen: set[tuple[str, str]] = set()
    for execution in executions:
        name = (execution.suite, execution.node_id)
        if name in seen:
            raise ConfigurationError(f"{execution.suite}: {execution.node_id} is in two runs")
        seen.add(name)
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        implementation=records[0].implementation,
        started=min(record.started for record in records),
        environment=_environment(records),
        capabilities=records[0].capabilities,
        executions=executions,
    )


def _environment(records: Sequence[RunRecord]) -> dict[str, str]:
    """A value that differs between the runs is listed with all its values."""
    names = dict.fromkeys(name for record in records for name in record.environment)
    return {
        name: ", ".join(dict.fromkeys(record.environment[name] for record in records if name in record.environment))
        for name in names
    }
