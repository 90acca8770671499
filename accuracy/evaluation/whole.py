"""whole: the same questions put to a model without a cache, each in one forward."""

from __future__ import annotations

from dataclasses import replace

from ..engine.arrivals import Hits
from ..engine.model_runner import ModelRunner
from .asked import Asked
from .scored_pass import ScoredPass


def whole(runner: ModelRunner, first: ScoredPass) -> ScoredPass:
    """A pass with the tokens of another, answers that were generated included: its distributions are its own."""
    return replace(first, asked=tuple(_at_once(runner, asked) for asked in first.asked))


def _at_once(runner: ModelRunner, asked: Asked) -> Asked:
    logits = runner.forward(asked.tokens, 0, None)[asked.reusable_tokens :][: len(asked.logits)]
    return replace(asked, hits=Hits(0, 0, 0), ends=(len(asked.tokens),), logits=logits.cpu())
