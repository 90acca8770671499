"""How long a prefix can be used, when each pool accepts some lengths and not others (sglang#26062)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hicache.types import HitPolicy

Want = tuple[Sequence[bool], HitPolicy, int]
"""Of one pool: which of its pages are there, in order; what a prefix needs of them; and for trailing pages how many."""


def usable_pages(pages: int, wants: Sequence[Want]) -> int:
    """The largest number of pages, up to `pages`, that all pools accept; 0 is always accepted.

    The minimum of each pool's own best will not do: a pool may accept 5 and 2 pages, and not the 4 of another.
    """
    lengths = set(range(pages + 1))
    for present, policy, trailing_pages in wants:
        lengths &= set(_accepted(present, policy, trailing_pages))
    return max(lengths)


def _accepted(present: Sequence[bool], policy: HitPolicy, trailing_pages: int) -> Iterator[int]:
    """The lengths that one pool accepts, ascending."""
    run = 0
    yield 0
    for end, is_present in enumerate(present, start=1):
        run = run + 1 if is_present else 0
        if run >= (end if policy is HitPolicy.ALL_PAGES else min(trailing_pages, end)):
            yield end
