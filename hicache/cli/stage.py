"""Stage: one part of a verification, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hicache.testing.report.run import Outcome, RunRecord

Progress = Callable[[int, int], None]
"""Called with the number of units that are done, and the number of all units."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What to verify. `adapter`: `module:Class`. `directory`: the folder for the report and the logs."""

    adapter: str
    quick: bool
    directory: Path
    known_failures: Path | None


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a stage.

    `record`: the run, or None if the stage ended before there was one. `problem`: an error that is not a failed test,
    or None.
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
        """The number of executions with this outcome."""
        executions = self.record.executions if self.record else ()
        return sum(execution.outcome is outcome for execution in executions)


def shortcomings(results: Sequence[StageResult]) -> list[str]:
    """Why the cache is not verified: the names of failed stages, or that no test passed. Empty if it is verified."""
    failed = [result.name for result in results if result.failed]
    nothing = not any(result.count(Outcome.PASSED) for result in results)
    return failed or (["no test passed"] if nothing else [])


class Stage(Protocol):
    """One part of a verification."""

    @property
    def name(self) -> str:
        """The name in tables and progress bars."""

    def run(self, progress: Progress) -> StageResult:
        """Run the stage to its end."""
