"""Part: what happened to some requests of a replay in a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hicache.testing.replay.tally import Tally


@dataclass(frozen=True, slots=True)
class Part:
    """Sums over some requests, in tokens; hits by tier.

    `counters`: what was counted meanwhile, as in CacheAdapter.counters, which is nothing for a cache that does not
    count; and `prefetches`, `prefetches_refused`, `fetched_tokens`: that were asked for, refused, brought.
    """

    requests: int
    input_tokens: int
    hit_tokens: Mapping[str, int]
    hit_rates: Mapping[str, float]
    hit_rate: float
    counters: Mapping[str, int]
    seconds: float


def part_since(parts: Iterable[Part], tally: Tally, counters: Mapping[str, int], seconds: float) -> Part:
    """What came after some parts. `tally`, `counters`: of all."""
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
    """A rate from 0 to 1; 0 of nothing."""
    return tokens / of if of else 0.0
