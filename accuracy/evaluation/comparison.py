"""Comparison: the differences between a later pass and the first one, the hits that a pass lacks, and its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from hicache.types import Tier

from ..answers import GATES
from ..engine.engine import Hits
from ..engine.model_runner import divergence
from .evaluate import ForwardCounts, ScoredPass
from .recorder import AnsweredRequest

MANY_REQUESTS = 16
"""With at least this many requests, faults and lost pages affect some requests, and not all."""


def differences(
    name: str, dtype: torch.dtype, first: ScoredPass, later: ScoredPass, *, same_bytes: bool
) -> Iterator[str]:
    """One line for each way in which scores, answers or distributions differ by more than the gates allow.

    `same_bytes`: every byte that the later pass read was computed by the first pass. The logits of requests with the
    same chunks must then be equal in every bit.
    """
    if first.scores != later.scores:
        yield f"{name}: expected the scores {dict(first.scores)}, got {dict(later.scores)}"
    for task, expected in first.answers.items():
        given = later.answers[task]
        other = [number for number, pair in enumerate(zip(expected, given, strict=True)) if pair[0] != pair[1]]
        if other:
            at = other[0]
            yield (
                f"{name}: {task}: answers {other} differ, in number {at} expected {expected[at]!r}, got {given[at]!r}"
            )
    if same_bytes:
        yield from _inexact(name, first, later)
    gate, nats = GATES[dtype], nats_between(first, later)
    mean, worst = float(nats.mean()), float(nats.max())
    if not (mean <= gate.mean and worst <= gate.worst):
        yield f"{name}: {mean:.1e} nats a token, {worst:.1e} at the worst, over {gate}"


def missing_hits(name: str, tier: Tier, page_size: int, later: ScoredPass) -> Iterator[str]:
    """One line for each request whose prompt was cached and that had fewer hits than its whole pages.

    Pages that an earlier request of the same pass has used may come from the device, all others come from `tier`.
    """
    requests = later.requests
    for number, (request, new) in enumerate(zip(requests, new_page_tokens(requests, page_size), strict=True)):
        from_tier, cached = getattr(request.hits, tier.value), request.reusable_tokens // page_size * page_size
        if from_tier < new or request.hits.total < cached:
            yield (
                f"{name}: request {number}: expected {new} tokens from {tier.value} and {cached} from all tiers, "
                f"got {request.hits}"
            )


def missing_partial_hits(name: str, page_size: int, later: ScoredPass) -> Iterator[str]:
    """One line unless storage that fails or has lost pages gave some of the tokens asked of it, and not all.

    With few requests no line: the order of storage threads decides whether all of them, or none, meet a fault.
    """
    new = sum(new_page_tokens(later.requests, page_size))
    if len(later.requests) >= MANY_REQUESTS and not 0 < later.hits.storage < new:
        yield f"{name}: expected some of {new} tokens from storage, and not all, got {later.hits}"


def new_page_tokens(requests: Sequence[AnsweredRequest], page_size: int) -> Iterator[int]:
    """For each request, the tokens of those whole pages of its prompt that no earlier request has used."""
    seen: set[bytes] = set()
    for request in requests:
        prefixes = [request.tokens[:end].tobytes() for end in range(page_size, len(request.tokens) + 1, page_size)]
        new = [prefix not in seen for prefix in prefixes[: request.reusable_tokens // page_size]]
        seen.update(prefixes)
        yield sum(new) * page_size


def nats_between(first: ScoredPass, later: ScoredPass) -> torch.Tensor:
    """The divergence of each token that both passes computed after the same tokens, in nats: float64 [tokens]."""
    return torch.cat([divergence(*_after_equal_tokens(*pair)) for pair in _pairs(first, later)])


def same_chunks(first: AnsweredRequest, later: AnsweredRequest) -> bool:
    """Whether the later request begins where a forward of the first one ended, and has the same ends from there on.

    Padding, and other rows beside a request, change the last bits as other chunks do.
    """
    start = later.hits.total
    if not (first.is_alone and later.is_alone):
        return False
    return start in (first.hits.total, *first.ends) and later.ends == tuple(end for end in first.ends if end > start)


def _inexact(name: str, first: ScoredPass, later: ScoredPass) -> Iterator[str]:
    for number, (one, other) in enumerate(_pairs(first, later)):
        logits = _after_equal_tokens(one, other)
        if same_chunks(one, other) and not torch.equal(*logits):
            worst = float(divergence(*logits).max())
            yield f"{name}: request {number}, {other.hits}: expected equal logits, got {worst:.1e} nats"


def _pairs(first: ScoredPass, later: ScoredPass) -> Iterator[tuple[AnsweredRequest, AnsweredRequest]]:
    return zip(first.requests, later.requests, strict=True)


def _after_equal_tokens(one: AnsweredRequest, other: AnsweredRequest) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of both requests whose preceding tokens are equal: generated tokens may differ, and end the range."""
    shortest = min(len(one.tokens), len(other.tokens))
    differing = (one.tokens[:shortest] != other.tokens[:shortest]).nonzero()[0]
    same = int(differing[0]) if len(differing) else shortest
    count = max(0, same - one.reusable_tokens)
    return one.logits[:count], other.logits[:count]


STEPS = (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 5e-3)
"""Upper bounds of the histogram of tokens by divergence, in nats."""


@dataclass(frozen=True, slots=True)
class ComparedPass:
    """`tokens_by_nats`: the histogram of kept tokens by divergence. `problems`: the differences beyond the gates.

    `parts`: the figures of each task and each group, by its name; a part has no parts, and no problems of its own.
    `wait_share`: the waiting time for prompts with hits, as a share of that of the first pass for the same prompts.
    Only prompts without hits in the first pass count; None if there are none.
    """

    name: str
    scores: Mapping[str, float]
    hits: Hits
    computed_tokens: int
    forwards: ForwardCounts
    seconds: float
    wait_share: float | None
    tokens_by_nats: Mapping[str, int]
    mean_nats: float
    max_nats: float
    problems: Sequence[str]
    parts: Mapping[str, ComparedPass]


def compared(name: str, first: ScoredPass, later: ScoredPass, problems: Sequence[str]) -> ComparedPass:
    """Compare a pass, and each task in it, with the first one. `problems`: the differences that were found before."""
    parts = {one: _figures(one, first.part(one), later.part(one), (), {}) for one in first.names}
    return _figures(name, first, later, problems, parts)


def _figures(
    name: str, first: ScoredPass, later: ScoredPass, problems: Sequence[str], parts: Mapping[str, ComparedPass]
) -> ComparedPass:
    nats = nats_between(first, later).abs()
    counts, below = {}, 0
    for step in STEPS:
        upto = int((nats <= step).sum())
        counts["0" if not step else f"to {step:.0e}"] = upto - below
        below = upto
    counts["above"] = len(nats) - below
    mean, worst = (float(nats.mean()), float(nats.max())) if len(nats) else (0.0, 0.0)
    return ComparedPass(
        name=name,
        scores=later.scores,
        hits=later.hits,
        computed_tokens=later.computed_tokens,
        forwards=later.forwards,
        seconds=later.seconds,
        wait_share=_wait_share(first, later),
        tokens_by_nats=counts,
        mean_nats=mean,
        max_nats=worst,
        problems=tuple(problems),
        parts=parts,
    )


def _wait_share(first: ScoredPass, later: ScoredPass) -> float | None:
    pairs = [
        (one.wait_s, other.wait_s)
        for one, other in zip(first.requests, later.requests, strict=True)
        if not one.hits.total and other.hits.total
    ]
    return sum(other for _, other in pairs) / sum(one for one, _ in pairs) if pairs else None


def untested_tasks(passes: Sequence[ComparedPass]) -> list[str]:
    """The tasks and groups without a hit in any pass: nothing was read from a cache, so equal answers show nothing."""
    return [name for name in passes[0].parts if not any(one.parts[name].hits.total for one in passes)]
