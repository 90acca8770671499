"""Comparison: what a later pass has to have in common with the first, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from hicache.types import Tier

from ..engine.divergence import divergence
from ..gates import GATES
from .asked import Asked
from .scored_pass import ScoredPass

MANY_REQUESTS = 16
"""Of so many, faults or losses spare some, and not all."""


def differences(
    name: str, dtype: torch.dtype, first: ScoredPass, later: ScoredPass, *, same_bytes: bool
) -> Iterator[str]:
    """One line for each way in which scores, answers or distributions differ by more than the gates allow.

    `same_bytes`: what the later pass found is all of the first one's making, and nothing was computed anew in between:
    where the chunks are the same, the logits are equal in every bit.
    """
    if first.scores != later.scores:
        yield f"{name}: expected the scores {dict(first.scores)}, got {dict(later.scores)}"
    for task, expected in first.answers.items():
        given = later.answers[task]
        other = [number for number, pair in enumerate(zip(expected, given, strict=True)) if pair[0] != pair[1]]
        if other:
            at = other[0]
            yield f"{name}: {task}: answers {other} differ, the first is {given[at]!r} and was {expected[at]!r}"
    if same_bytes:
        yield from _inexact(name, first, later)
    gate, nats = GATES[dtype], apart(first, later)
    mean, most = float(nats.mean()), float(nats.max())
    if not (mean <= gate.mean and most <= gate.most):
        yield f"{name}: {mean:.1e} nats a token, {most:.1e} at the worst, over {gate}"


def unserved(name: str, tier: Tier, page_size: int, later: ScoredPass) -> Iterator[str]:
    """One line for each request that was not answered from this tier as far as its prompt was known to it.

    What an earlier request of the same pass had may come from the device.
    """
    for number, (asked, owed) in enumerate(zip(later.asked, owed_tokens(later.asked, page_size), strict=True)):
        came, known = getattr(asked.hits, tier.value), asked.reusable_tokens // page_size * page_size
        if came < owed or asked.hits.total < known:
            yield f"{name}: request {number}: expected {owed} tokens from {tier.value}, {known} in all: {asked.hits}"


def unspared(name: str, page_size: int, later: ScoredPass) -> Iterator[str]:
    """One line unless storage that had lost something gave some of what it was asked for, and not all.

    Of few requests every one may be spared, or none, as the threads that ask storage come: of these nothing is told.
    """
    owed = sum(owed_tokens(later.asked, page_size))
    if len(later.asked) >= MANY_REQUESTS and not 0 < later.hits.storage < owed:
        yield f"{name}: expected some of {owed} tokens from storage, and not all: {later.hits}"


def owed_tokens(requests: Sequence[Asked], page_size: int) -> Iterator[int]:
    """Of each prompt, the whole pages that no earlier request has had."""
    seen: set[bytes] = set()
    for asked in requests:
        prefixes = [asked.tokens[:end].tobytes() for end in range(page_size, len(asked.tokens) + 1, page_size)]
        new = [prefix not in seen for prefix in prefixes[: asked.reusable_tokens // page_size]]
        seen.update(prefixes)
        yield sum(new) * page_size


def apart(first: ScoredPass, later: ScoredPass) -> torch.Tensor:
    """Nats between the two passes, per token that both were asked after the same ones: float64 [tokens]."""
    return torch.cat([divergence(*_after_the_same(*pair)) for pair in _pairs(first, later)])


def same_chunks(first: Asked, later: Asked) -> bool:
    """Whether a request went on from where a forward of the first one ended, and stopped where that one stopped."""
    start = later.hits.total
    return start in (first.hits.total, *first.ends) and later.ends == tuple(end for end in first.ends if end > start)


def _inexact(name: str, first: ScoredPass, later: ScoredPass) -> Iterator[str]:
    for number, (one, other) in enumerate(_pairs(first, later)):
        logits = _after_the_same(one, other)
        if same_chunks(one, other) and not torch.equal(*logits):
            most = float(divergence(*logits).max())
            yield f"{name}: request {number}, {other.hits}: the same chunks, and {most:.1e} nats apart"


def _pairs(first: ScoredPass, later: ScoredPass) -> Iterator[tuple[Asked, Asked]]:
    return zip(first.asked, later.asked, strict=True)


def _after_the_same(one: Asked, other: Asked) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of both as far as the same tokens stand before them: an answer goes on from what it said itself."""
    shortest = min(len(one.tokens), len(other.tokens))
    differing = (one.tokens[:shortest] != other.tokens[:shortest]).nonzero()[0]
    same = int(differing[0]) if len(differing) else shortest
    count = max(0, same - one.reusable_tokens)
    return one.logits[:count], other.logits[:count]
