"""Outcome: what one process of several came to; and the error that tells of all that did not end well."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache.errors import HiCacheError


@dataclass(frozen=True, slots=True)
class Outcome:
    """`value`: what the rank's function returned. `failure`: why it did not, with its traceback; or nothing."""

    rank: int
    value: Any
    failure: str


class RanksFailedError(HiCacheError, AssertionError):
    """Ranks that did not end well. The message holds the traceback of each; `outcomes`: of all, by rank."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        failed = [outcome for outcome in outcomes if outcome.failure]
        head = f"{len(failed)} of {len(outcomes)} ranks did not end well"
        super().__init__("\n\n".join([head, *(f"rank {one.rank} {one.failure}" for one in failed)]))
        self.outcomes = tuple(outcomes)


class Desk:
    """The files in which one rank leaves word of itself, for the process that started it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.stack = folder / f"rank{rank}.stack"
        self._outcome = folder / f"rank{rank}.outcome"
        self._notes = folder / f"rank{rank}.notes"

    def note(self, text: str) -> None:
        """Write down where the rank is."""
        with self._notes.open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(text) + "\n")

    def last_note(self) -> str:
        """Where the rank was last, or nothing."""
        lines = self._notes.read_text(encoding="utf-8").splitlines() if self._notes.exists() else []
        return str(json.loads(lines[-1])) if lines else ""

    def hand_in(self, outcome: Outcome) -> None:
        """Leave the outcome, all of it at once."""
        draft = self._outcome.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(outcome))
        draft.rename(self._outcome)

    def outcome(self) -> Outcome | None:
        """What was left, or None."""
        if not self._outcome.exists():
            return None
        found = pickle.loads(self._outcome.read_bytes())  # noqa: S301 - a child of this process wrote it
        assert isinstance(found, Outcome), f"{self._outcome} holds {found!r}"
        return found
