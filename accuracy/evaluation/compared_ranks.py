"""Compare the passes of several ranks with the first pass of one rank, and with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hicache.types import Tier

from .compared_pass import ComparedPass, compared
from .comparison import differences, missing_hits, missing_partial_hits
from .processes import LOST_PAGES
from .scored_pass import ScoredPass


def compared_ranks(
    first: ScoredPass, by_rank: Sequence[Mapping[str, ScoredPass]], dtype: torch.dtype, page_size: int
) -> Iterator[ComparedPass]:
    """For each pass name, the pass of rank 0 with the problems of all ranks. `first`: the first pass of one rank alone.

    Its figures compare rank 0 with rank 0's own first pass.
    """
    for name in by_rank[0]:
        passes = [own[name] for own in by_rank]
        problems = [
            problem
            for rank, own in enumerate(passes)
            for problem in (
                *differences(f"rank {rank}: {name}", dtype, first, own, same_bytes=name != LOST_PAGES),
                *_missing_hits(f"rank {rank}: {name}", name, own, page_size),
                *_rank_differences(f"rank {rank} beside rank 0: {name}", dtype, passes[0], own),
            )
        ]
        yield compared(f"{len(passes)} ranks: {name}", by_rank[0]["first"], passes[0], problems)


def _missing_hits(place: str, name: str, own: ScoredPass, page_size: int) -> Iterator[str]:
    if name in (Tier.HOST.value, Tier.STORAGE.value):
        yield from missing_hits(place, Tier(name), page_size, own)
    if name == LOST_PAGES:
        yield from missing_partial_hits(place, page_size, own)


def _rank_differences(place: str, dtype: torch.dtype, zeroth: ScoredPass, own: ScoredPass) -> Iterator[str]:
    yield from differences(place, dtype, zeroth, own, same_bytes=True)
    for number, (one, other) in enumerate(zip(zeroth.requests, own.requests, strict=True)):
        if one.hits != other.hits:
            yield f"{place}: request {number}: expected {one.hits}, got {other.hits}"
