"""JudgedPass: a pass beside the first one, in the numbers that a report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engine.arrivals import Hits
from .comparison import apart
from .scored_pass import ScoredPass

STEPS = (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 5e-3)
"""Nats, up to which tokens are counted together."""


@dataclass(frozen=True, slots=True)
class JudgedPass:
    """`tokens_apart`: how many kept tokens were apart by what. `problems`: what the gates did not let pass.

    `wait_share`: of what the first pass waited for the same prompts, or None where it had them cached itself.
    """

    name: str
    scores: Mapping[str, float]
    hits: Hits
    computed_tokens: int
    seconds: float
    wait_share: float | None
    tokens_apart: Mapping[str, int]
    most_nats: float
    problems: Sequence[str]


def judged(name: str, first: ScoredPass, later: ScoredPass, problems: Sequence[str]) -> JudgedPass:
    """A pass, and what was found wrong with it."""
    nats = apart(first, later).abs()
    counts, below = {}, 0
    for step in STEPS:
        upto = int((nats <= step).sum())
        counts["0" if not step else f"to {step:.0e}"] = upto - below
        below = upto
    counts["above"] = len(nats) - below
    most = float(nats.max()) if len(nats) else 0.0
    share = _wait_share(first, later)
    return JudgedPass(
        name, later.scores, later.hits, later.computed_tokens, later.seconds, share, counts, most, tuple(problems)
    )


def _wait_share(first: ScoredPass, later: ScoredPass) -> float | None:
    pairs = [
        (one.wait_s, other.wait_s)
        for one, other in zip(first.asked, later.asked, strict=True)
        if not one.hits.total and other.hits.total
    ]
    return sum(other for _, other in pairs) / sum(one for one, _ in pairs) if pairs else None
