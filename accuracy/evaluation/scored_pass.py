"""ScoredPass: the scores, answers and requests of one evaluation of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.prefix_finder import Hits
from .answered_request import AnsweredRequest


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPass:
    """`scores`: by `task metric`. `answers`: by task, in the order of its documents. `seconds`: of the whole pass."""

    scores: Mapping[str, float]
    answers: Mapping[str, Sequence[Any]]
    requests: Sequence[AnsweredRequest]
    seconds: float

    @property
    def hits(self) -> Hits:
        """The sum of the hits of all requests."""
        each = [one.hits for one in self.requests]
        return Hits(sum(one.device for one in each), sum(one.host for one in each), sum(one.storage for one in each))

    @property
    def computed_tokens(self) -> int:
        """The reusable tokens of all prompts that were not hits."""
        return sum(one.reusable_tokens - one.hits.total for one in self.requests)
