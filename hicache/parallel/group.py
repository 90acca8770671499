"""Group: the collectives of ranks that take decisions together: reduce, broadcast and barrier."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

GREATEST = 2**63 - 1
"""The greatest value."""


class Reduction(str, Enum):
    """How the numbers of all ranks are combined into one."""

    MIN = "MIN"
    MAX = "MAX"


class Group(Protocol):
    """The ranks along one axis of the mesh. Every rank makes the same calls in the same order, in any state.

    `purpose`: what is decided, in a word or two, and about what, after a colon: it differs where ranks decide about
    different things. Error messages use it to name the call that a rank skipped. Every verb raises RankError, within a
    bounded time, when a rank is dead or silent.
    """

    @property
    def name(self) -> str:
        """The axis: `tp`, `cp` or `pp`."""

    @property
    def rank(self) -> int:
        """The index of this rank in the group."""

    @property
    def size(self) -> int:
        """How many ranks the group has."""

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        """The least or the greatest value over all ranks, element by element.

        Every rank passes the same number of values, each an int64.
        """

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        """The values of the group's first rank. Every other rank passes as many values, which are ignored."""

    def barrier(self, purpose: str) -> None:
        """Return when every rank has called this."""
