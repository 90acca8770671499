"""How groups are made on torch.distributed: each is compared before it is made, as all ranks make all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import distributed

from hicache.testing.ranks.call import Call
from hicache.testing.ranks.compared_calls import ComparedCalls


@contextmanager
def comparing(everybody: ComparedCalls) -> Iterator[None]:
    """Meanwhile a rank that makes another group than the others, or none, is named on every rank (RANK-6)."""
    new_group = distributed.new_group

    @wraps(new_group)
    def compared(ranks: Sequence[int] | None = None, *arguments: Any, **options: Any) -> Any:
        members = "all ranks" if ranks is None else f"ranks {', '.join(map(str, ranks))}"
        everybody.answer(Call("new_group", members, 0), "")
        return new_group(ranks, *arguments, **options)

    distributed.new_group = compared
    try:
        yield
    finally:
        distributed.new_group = new_group
