"""uncached_pass: compute the requests of a pass without a cache, each in one forward."""

from __future__ import annotations

from dataclasses import replace

from ..engine.model_runner import ModelRunner
from ..engine.prefix_finder import Hits
from .answered_request import AnsweredRequest
from .scored_pass import ScoredPass


def uncached_pass(runner: ModelRunner, first: ScoredPass) -> ScoredPass:
    """A pass with the tokens of the first one, generated tokens included, and logits computed without a cache."""
    return replace(first, requests=tuple(_in_one_forward(runner, request) for request in first.requests))


def _in_one_forward(runner: ModelRunner, request: AnsweredRequest) -> AnsweredRequest:
    logits = runner.forward(request.tokens, 0, None)[request.reusable_tokens :][: len(request.logits)]
    return replace(request, hits=Hits(0, 0, 0), ends=(len(request.tokens),), logits=logits.cpu())
