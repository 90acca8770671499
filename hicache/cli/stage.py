"""Stage: one part of a verification, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hicache.testing.report.run import Outcome, RunRecord

Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What is to be verified. `adapter`: `module:Class`. `directory`: where reports and logs go."""

    adapter: str
    quick: bool
    directory: Path
    known_failures: Path | None


@dataclass(frozen=True, slots=True)
class StageResult:
    """What came of a stage.

    `record`: the run, or None when it ended before there was one. `problem`: what went wrong besides failing tests.
    """

    name: str
    record: RunRecord | None
    problem: str | None
    duration_s: float

    @property
    def failed(self) -> bool:
        """Whether the verification fails because of this stage."""
        return self.problem is not None or self.record is None or self.count(Outcome.FAILED) > 0

    def count(self, outcome: Outcome) -> int:
        """How many executions ended so."""
        executions = self.record.executions if self.record else ()
        return sum(execution.outcome is outcome for execution in executions)


def shortcomings(results: Sequence[StageResult]) -> list[str]:
    """Why the cache does not count as verified: the stages that failed, or that no test passed in any."""
    failed = [result.name for result in results if result.failed]
    nothing = not any(result.count(Outcome.PASSED) for result in results)
    return failed or (["no test passed"] if nothing else [])


class Stage(Protocol):
    """One part of a verification."""

    @property
    def name(self) -> str:
        """One word for tables and progress bars."""

    def run(self, progress: Progress) -> StageResult:
        """Run it to the end."""
