"""Part: the sums over consecutive requests of a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hicache.testing.replay.tally import Tally


@dataclass(frozen=True, slots=True)
class Part:
    """Sums over consecutive requests, in tokens; hits by tier.

    `counters`: as in CacheAdapter.counters, for these requests, and empty for a cache without COUNTERS; and
    `prefetches`,
    `prefetches_refused`, `fetched_tokens`: prefetches started and refused, and the tokens they loaded.
    """

    requests: int
    input_tokens: int
    hit_tokens: Mapping[str, int]
    hit_rates: Mapping[str, float]
    hit_rate: float
    counters: Mapping[str, int]
    seconds: float


def part_since(parts: Iterable[Part], tally: Tally, counters: Mapping[str, int], seconds: float) -> Part:
    """The part after some parts. `tally`, `counters`: over all requests so far."""
    before = list(parts)
    input_tokens = tally.input_tokens - sum(part.input_tokens for part in before)
    hits = {tier: count - sum(part.hit_tokens[tier] for part in before) for tier, count in tally.hit_tokens.items()}
    return Part(
        requests=tally.requests - sum(part.requests for part in before),
        input_tokens=input_tokens,
        hit_tokens=hits,
        hit_rates={tier: share(tokens, input_tokens) for tier, tokens in hits.items()},
        hit_rate=share(sum(hits.values()), input_tokens),
        counters={name: count - sum(part.counters.get(name, 0) for part in before) for name, count in counters.items()},
        seconds=round(seconds, 3),
    )


def share(tokens: int, of: int) -> float:
    """A rate from 0 to 1; 0 when `of` is 0."""
    return tokens / of if of else 0.0
