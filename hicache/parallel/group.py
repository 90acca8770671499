"""Group: ranks that take decisions together, in three verbs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol


class Reduction(str, Enum):
    """What becomes of the numbers that each rank gives."""

    MIN = "MIN"
    MAX = "MAX"


class Group(Protocol):
    """The ranks along one axis of the mesh. All make the same calls in the same order, whatever they hold.

    `purpose`: what is decided, in a word or two, for whoever looks for the rank that went another way. Every verb
    raises RankError, within a bounded time, when a rank is dead or silent.
    """

    @property
    def name(self) -> str:
        """The axis: `tp`, `cp` or `pp`."""

    @property
    def rank(self) -> int:
        """The place of this rank in the group."""

    @property
    def size(self) -> int:
        """How many ranks the group has."""

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        """The least or the greatest of what the ranks give, place by place; as many on every rank, each an int64."""

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        """What the group's first rank gives; the others give as many, and what they give does not matter."""

    def barrier(self, purpose: str) -> None:
        """Return when every rank has come here."""
