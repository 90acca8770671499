"""Agreement: every decision that ranks take together, each in one place that every rank passes, whatever it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hicache.errors import InvariantError, RankError
from hicache.parallel.group import Group, Reduction
from hicache.parallel.mesh import AXES

T = TypeVar("T")
NameT = TypeVar("NameT", bound=str)


class Agreement:
    """What the ranks that share a tree hold in common. A cache on one rank agrees with itself, and nothing is called.

    `groups`: by axis, this rank's group; an axis of one rank has none. What ranks found out is reduced over all axes.
    What is a matter of opinion, such as the time, is for the first stage of a pipeline to say.
    """

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = [groups[axis] for axis in AXES if axis in groups]
        self._stages = groups.get("pp")
        self._place, self.ranks = 0, 1
        for group in self._groups:
            self._place += self.ranks * group.rank
            self.ranks *= group.size

    def least(self, numbers: Mapping[str, int], purpose: str) -> dict[str, int]:
        """Of each number the least that a rank has."""
        return self._packed(numbers, purpose)

    def acknowledged(self, started: int, outcomes: Sequence[int]) -> Sequence[int]:
        """How far jobs have come on every rank; the further, the greater the number.

        `started`: jobs since the cache was opened. Raises InvariantError when the ranks have not started the same.
        """
        if not self._groups:
            return outcomes
        least, negative, *agreed = self._reduce([started, -started, *outcomes], "progress")
        if least != -negative:
            raise InvariantError(f"RANK-1: the ranks have parted: they started from {least} to {-negative} jobs")
        return agreed

    def is_over(self, *, is_over: bool) -> bool:
        """Whether a prefetch is waited for no longer: as soon as one rank of the first stage says so."""
        value = [int(is_over)]
        for group in self._groups:
            if group is not self._stages:
                value = group.reduce(value, Reduction.MAX, "prefetch end")
        return bool(self._stages.broadcast(value, "prefetch end")[0] if self._stages else value[0])

    def completed(self, pages: Mapping[NameT, int]) -> dict[NameT, int]:
        """Of each pool the pages that have come on every rank: in one reduction, in the order of the names."""
        return self._packed(pages, "completed")

    def together(self, act: Callable[[], T], undo: Callable[[T], object], purpose: str) -> T:
        """Do what succeeds on every rank or on none. Raises what it raised here, or RankError for another rank."""
        try:
            result = act()
        except Exception:
            self._first_lacking(purpose, lacks=True)
            raise
        failed = self._first_lacking(purpose, lacks=False)
        if failed is not None:
            undo(result)
            raise RankError(f"rank {failed} of {self.ranks} failed ({purpose})", "all", (failed,))
        return result

    def every(self, purpose: str, *, did: bool) -> bool:
        """Whether every rank did."""
        return self._first_lacking(purpose, lacks=not did) is None

    def _first_lacking(self, purpose: str, *, lacks: bool) -> int | None:
        """The first rank that did not do it, counted along the axes."""
        (first,) = self._reduce([self._place if lacks else self.ranks], purpose)
        return first if first < self.ranks else None

    def _packed(self, numbers: Mapping[NameT, int], purpose: str) -> dict[NameT, int]:
        """By name, and not as the mapping happens to be ordered."""
        names = sorted(numbers)
        return dict(zip(names, self._reduce([numbers[name] for name in names], purpose), strict=True))

    def _reduce(self, values: list[int], purpose: str) -> list[int]:
        for group in self._groups:
            values = group.reduce(values, Reduction.MIN, purpose)
        return values


ALONE = Agreement({})
"""A cache on one rank."""
