"""Outcome: the result of one rank's process; RanksFailedError: the failures of all ranks."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache.errors import HiCacheError
from hicache.testing.report.run import NO_EVIDENCE, Evidence

RAISED = "raised:"
"""How the failure of a rank begins that raised an error."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """`value`: what the rank's function returned. `failure`: why it did not return, with a traceback; or empty.

    `causes`: of the failure, as of a failed test; empty for an assertion of the test, and for what another rank caused.
    `evidence`: of the failure, from the cache of this rank.
    `backends`: of the collectives that the rank was in with another one.
    """

    rank: int
    value: Any
    failure: str
    causes: tuple[str, ...] = ()
    evidence: Evidence = NO_EVIDENCE
    backends: tuple[str, ...] = ()


def _brief(failure: str) -> str:
    """How a rank failed, in a line: the error that it raised, or how it ended and what it said first."""
    how, *words = failure.strip().splitlines()
    shown = _error(words)[:2] if how == RAISED else words[:1]
    return " ".join([how, *shown]).removesuffix(":").strip()


def _error(lines: Sequence[str]) -> list[str]:
    """The lines of the error at the end of a traceback: those after its last frame."""
    begin = max(number for number, line in enumerate(lines) if line.startswith("Traceback"))
    return [line for line in lines[begin + 1 :] if line and not line[0].isspace()]


class RanksFailedError(HiCacheError, AssertionError):
    """Some ranks failed. The message holds the traceback of each, of those that no other rank caused first.

    `outcomes`: of all ranks, by rank. `causes`: of all failures. `evidence`: that of the rank that the message names.
    """

    def __init__(self, outcomes: Sequence[RankOutcome]) -> None:
        failed = sorted((one for one in outcomes if one.failure), key=lambda one: not one.causes)
        head = f"{len(failed)} of {len(outcomes)} ranks failed: rank {failed[0].rank} {_brief(failed[0].failure)}"
        super().__init__("\n\n".join([head, *(f"rank {one.rank} {one.failure}" for one in failed)]))
        self.outcomes = tuple(outcomes)
        self.evidence = failed[0].evidence
        self.causes = tuple(dict.fromkeys(cause for one in failed for cause in one.causes))


class RankFiles:
    """The files that one rank writes for the process that started it.

    They are what it prints, its notes, its stack, its outcome, and why it was ended.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.stack = folder / f"rank{rank}.stack"
        self.doing = folder / f"rank{rank}.doing"
        self._stdout = folder / f"rank{rank}.stdout"
        self._stderr = folder / f"rank{rank}.stderr"
        self._outcome = folder / f"rank{rank}.outcome"
        self._notes = folder / f"rank{rank}.notes"

    def begin(self) -> None:
        """Write what this process prints to files, from now on."""
        for descriptor, path in ((1, self._stdout), (2, self._stderr)):
            with path.open("wb") as file:
                os.dup2(file.fileno(), descriptor)

    def words(self) -> str:
        """What the rank wrote to its standard error."""
        return self._stderr.read_text(encoding="utf-8", errors="replace") if self._stderr.exists() else ""

    def note(self, text: str) -> None:
        """Append where the rank is."""
        with self._notes.open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(text) + "\n")

    def last_note(self) -> str:
        """Where the rank was last, or an empty text."""
        lines = self._notes.read_text(encoding="utf-8").splitlines() if self._notes.exists() else []
        return str(json.loads(lines[-1])) if lines else ""

    def write_outcome(self, outcome: RankOutcome) -> None:
        """Write the outcome atomically."""
        draft = self._outcome.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(outcome))
        draft.rename(self._outcome)

    def outcome(self) -> RankOutcome | None:
        """The outcome that was written, or None."""
        if not self._outcome.exists():
            return None
        found = pickle.loads(self._outcome.read_bytes())  # noqa: S301 - a child of this process wrote it
        assert isinstance(found, RankOutcome), f"{self._outcome} holds {found!r}"
        return found
