"""The gates of ranks: each answers as one alone does, and all are answered alike, from the same tiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hicache.types import Tier

from .comparison import differences, unserved, unspared
from .judged_pass import JudgedPass, judged
from .processes import LESS
from .scored_pass import ScoredPass


def judged_ranks(
    first: ScoredPass, by_rank: Sequence[Mapping[str, ScoredPass]], dtype: torch.dtype, page_size: int
) -> Iterator[JudgedPass]:
    """Each pass of all ranks, in the numbers of rank 0 beside its first one. `first`: that of one rank alone."""
    for name in by_rank[0]:
        passes = [own[name] for own in by_rank]
        problems = [
            problem
            for rank, own in enumerate(passes)
            for problem in (
                *differences(f"rank {rank}: {name}", dtype, first, own, same_bytes=name != LESS),
                *_lacking(f"rank {rank}: {name}", name, own, page_size),
                *_parted(f"rank {rank} beside rank 0: {name}", dtype, passes[0], own),
            )
        ]
        yield judged(f"{len(passes)} ranks: {name}", by_rank[0]["first"], passes[0], problems)


def _lacking(place: str, name: str, own: ScoredPass, page_size: int) -> Iterator[str]:
    if name in (Tier.HOST.value, Tier.STORAGE.value):
        yield from unserved(place, Tier(name), page_size, own)
    if name == LESS:
        yield from unspared(place, page_size, own)


def _parted(place: str, dtype: torch.dtype, zeroth: ScoredPass, own: ScoredPass) -> Iterator[str]:
    yield from differences(place, dtype, zeroth, own, same_bytes=True)
    for number, (one, other) in enumerate(zip(zeroth.asked, own.asked, strict=True)):
        if one.hits != other.hits:
            yield f"{place}: request {number}: expected {one.hits}, got {other.hits}"
