"""Comparison of torch.distributed.new_group on all ranks: each rank must make all groups, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import distributed

from hicache.testing.ranks.call import Call
from hicache.testing.ranks.compared_calls import ComparedCalls


@contextmanager
def compare_new_groups(all_ranks: ComparedCalls) -> Iterator[None]:
    """Inside the block, a rank that makes another group than the others, or none, is named on every rank (RANK-6)."""
    new_group = distributed.new_group

    @wraps(new_group)
    def compared(ranks: Sequence[int] | None = None, *arguments: Any, **options: Any) -> Any:
        members = "all ranks" if ranks is None else f"ranks {', '.join(map(str, ranks))}"
        all_ranks.compare(Call("new_group", members, 0), "")
        return new_group(ranks, *arguments, **options)

    distributed.new_group = compared
    try:
        yield
    finally:
        distributed.new_group = new_group
