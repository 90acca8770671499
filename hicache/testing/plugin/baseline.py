"""Baseline: an earlier run. What failed in it is reported as having failed before, so that only new failures count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hicache.errors import ConfigurationError
from hicache.testing.laws import CHECKED_AFTER_EACH_VERB
from hicache.testing.plugin.renamed_tests import new_id
from hicache.testing.plugin.versions import VERSIONS
from hicache.testing.report.run import Execution, Outcome, RunRecord, read_run

FAILED_BEFORE = "failed before"
"""How the reason of a failure that the baseline has begins."""

_FAILURES = (Outcome.FAILED, Outcome.KNOWN_FAILURE)
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Baseline:
    """What an earlier run executed and what failed in it.

    `name`: the file, and when the run began. `causes`: of each failed test, known or not, by its id. `executed`: ids of
    all tests that were not skipped. Ids are the present ones. `laws`: those that were found broken. The driver checks a
    law after each verb, so chance decides which of the tests with drawn operations meets it first.
    """

    name: str
    implementation: str
    causes: Mapping[str, frozenset[str]]
    executed: frozenset[str]
    laws: frozenset[str]

    def has(self, test: str, causes: Collection[str]) -> bool:
        """Whether the earlier run had this failure.

        The test failed before for these causes, or it was executed before and its causes are laws that were broken.
        """
        if not causes or test not in self.executed:
            return False
        return self.laws.issuperset(causes) or self.causes.get(test, frozenset()).issuperset(causes)

    def summary(self, executions: Iterable[Execution]) -> Iterator[str]:
        """What a run says of the baseline: how many tests failed before, and which failed then and pass now."""
        done = list(executions)
        before = sum(one.reason.partition("\n")[0].endswith(self.reason) for one in done)
        fixed = [one.node_id for one in done if one.outcome is Outcome.PASSED and one.node_id in self.causes]
        yield f"baseline {self.name}: {before} failed before, {len(fixed)} fixed"
        for test in fixed[:_MAX_SHOWN]:
            yield f"  fixed: {test}"
        if len(fixed) > _MAX_SHOWN:
            yield f"  and {len(fixed) - _MAX_SHOWN} more"

    @property
    def reason(self) -> str:
        """Why a failure that the baseline has does not count."""
        return f"{FAILED_BEFORE}: {self.name}"


def read_baseline(path: Path, implementation: str, profile: str) -> tuple[Baseline, str]:
    """Read a `run.json`, or that of a report folder, for a run of this implementation. Also returns a warning or "".

    Raises ConfigurationError if the file cannot be read, or if its run has another version of the contract or of the
    adapter interface, or another profile: its tests do not mean the same. A run of another adapter is a warning.
    """
    file = path / "run.json" if path.is_dir() else path
    record = read_run(file)
    for name, theirs, ours in _meanings(record, profile):
        if theirs != ours:
            raise ConfigurationError(f"{file}: the {name} of the baseline is {theirs}, but that of this run is {ours}")
    other = record.implementation != implementation
    warning = f"baseline {file}: is a run of {record.implementation}, not of {implementation}" if other else ""
    return _baseline(f"{file} of {record.started}", record), warning


def _meanings(record: RunRecord, profile: str) -> Iterator[tuple[str, object, object]]:
    yield "contract version", record.versions.contract, VERSIONS.contract
    yield "adapter interface version", record.versions.interface, VERSIONS.interface
    yield "profile", record.profile, profile


def _baseline(name: str, record: RunRecord) -> Baseline:
    failed = [one for one in record.executions if one.outcome in _FAILURES]
    return Baseline(
        name=name,
        implementation=record.implementation,
        causes={new_id(one.node_id): frozenset(one.causes) for one in failed},
        executed=frozenset(new_id(one.node_id) for one in record.executions if one.outcome is not Outcome.SKIPPED),
        laws=frozenset(cause for one in failed for cause in one.causes if cause in CHECKED_AFTER_EACH_VERB),
    )
