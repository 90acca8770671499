"""ScoredPass: one evaluation of a model, and what was asked of its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.arrivals import Hits
from .asked import Asked


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPass:
    """`scores`: by `task metric`. `answers`: of each task, in the order of its documents. `seconds`: of all of it."""

    scores: Mapping[str, float]
    answers: Mapping[str, Sequence[Any]]
    asked: Sequence[Asked]
    seconds: float

    @property
    def hits(self) -> Hits:
        """Of all requests together."""
        each = [one.hits for one in self.asked]
        return Hits(sum(one.device for one in each), sum(one.host for one in each), sum(one.storage for one in each))

    @property
    def computed_tokens(self) -> int:
        """Of all prompts, those that a cache might have answered for and did not."""
        return sum(one.reusable_tokens - one.hits.total for one in self.asked)
