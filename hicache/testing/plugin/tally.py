"""Tally: the counts over the executions of a run, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hicache.testing.contract import TIERS, Clause
from hicache.testing.plugin.known_failures import KnownFailure
from hicache.testing.report.run import Execution, Outcome


class Tally:
    """Counts over the executions of one run. `contract`: the clauses that apply to the subject of the run."""

    def __init__(self, executions: Sequence[Execution], contract: Mapping[str, Clause]) -> None:
        self._executions = executions
        self._contract = contract
        self._executed = [one for one in executions if one.outcome is not Outcome.SKIPPED]
        self._outcomes = Counter(one.outcome for one in executions)

    def line(self) -> str:
        """The numbers of tests that passed, failed and were skipped, and of clauses that no test executed."""
        counts = {
            "passed": self._outcomes[Outcome.PASSED],
            "failed": self._outcomes[Outcome.FAILED],
            "known to fail": self._outcomes[Outcome.KNOWN_FAILURE],
            "skipped": self._outcomes[Outcome.SKIPPED],
            "not executed": len(self.not_executed()),
        }
        if not counts["known to fail"]:
            del counts["known to fail"]
        return "hicache: " + ", ".join(f"{count} {name}" for name, count in counts.items())

    def summary(self) -> Iterator[str]:
        """Why tests were skipped, most frequent reason first; how many clauses were not executed, by tier."""
        skipped = Counter(one.reason for one in self._executions if one.outcome is Outcome.SKIPPED)
        for reason, count in skipped.most_common():
            yield f"{count} skipped: {reason}"
        by_tier = Counter(clause.tier for clause in self.not_executed())
        for tier in TIERS:
            if by_tier[tier]:
                yield f"{by_tier[tier]} {tier} clauses not executed"

    def not_executed(self) -> tuple[Clause, ...]:
        """The clauses that no test executed, in the order of the contract."""
        executed = {clause_id for one in self._executed for clause_id in one.clauses}
        return tuple(clause for clause in self._contract.values() if clause.id not in executed)

    def verified_nothing(self) -> bool:
        """Whether no clause was executed. A run of the benchmarks alone, which have no clauses, is excepted."""
        measured = {one.suite for one in self._executed} == {"benchmarks"}
        return not measured and len(self.not_executed()) == len(self._contract)

    def unmatched(self, known: Sequence[KnownFailure]) -> Iterator[KnownFailure]:
        """The known failures that match no executed test, of the suites that were executed."""
        suites = {one.suite for one in self._executed}
        for failure in known:
            if failure.suite in suites and not any(failure.covers(one.node_id, one.clauses) for one in self._executed):
                yield failure
