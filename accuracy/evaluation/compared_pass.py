"""ComparedPass: the figures of a pass that a report shows, compared with the first pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engine.prefix_finder import Hits
from .comparison import nats_between
from .scored_pass import ScoredPass

STEPS = (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 5e-3)
"""Upper bounds of the histogram of tokens by divergence, in nats."""


@dataclass(frozen=True, slots=True)
class ComparedPass:
    """`tokens_by_nats`: the histogram of kept tokens by divergence. `problems`: the differences beyond the gates.

    `wait_share`: the waiting time for prompts with hits, as a share of that of the first pass for the same prompts.
    Only prompts without hits in the first pass count; None if there are none.
    """

    name: str
    scores: Mapping[str, float]
    hits: Hits
    computed_tokens: int
    seconds: float
    wait_share: float | None
    tokens_by_nats: Mapping[str, int]
    max_nats: float
    problems: Sequence[str]


def compared(name: str, first: ScoredPass, later: ScoredPass, problems: Sequence[str]) -> ComparedPass:
    """Compare a pass with the first one. `problems`: the differences that were found before."""
    nats = nats_between(first, later).abs()
    counts, below = {}, 0
    for step in STEPS:
        upto = int((nats <= step).sum())
        counts["0" if not step else f"to {step:.0e}"] = upto - below
        below = upto
    counts["above"] = len(nats) - below
    worst = float(nats.max()) if len(nats) else 0.0
    share = _wait_share(first, later)
    return ComparedPass(
        name, later.scores, later.hits, later.computed_tokens, later.seconds, share, counts, worst, tuple(problems)
    )


def _wait_share(first: ScoredPass, later: ScoredPass) -> float | None:
    pairs = [
        (one.wait_s, other.wait_s)
        for one, other in zip(first.requests, later.requests, strict=True)
        if not one.hits.total and other.hits.total
    ]
    return sum(other for _, other in pairs) / sum(one for one, _ in pairs) if pairs else None
