"""Ways in which a rank can diverge from the others, and the error message of each, for any kind of group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hicache.parallel.group import Group, Reduction

Act = Callable[[Group], None]
"""What a rank does in a group."""


def usual(group: Group) -> None:
    """Three calls; the divergences change the second one."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5], Reduction.MIN, "progress")
    group.barrier("end")


def skips(group: Group) -> None:
    """Skips the second call and makes the third."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.barrier("end")


def is_silent(group: Group) -> None:
    """Makes the first call and no other one, and reports nothing."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")


def changes_operation(group: Group) -> None:
    """Computes the maximum where the others compute the minimum."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5], Reduction.MAX, "progress")


def changes_shape(group: Group) -> None:
    """Passes more values than the others."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5, 6], Reduction.MIN, "progress")


def raises(group: Group) -> None:
    """Raises between two calls."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    raise ZeroDivisionError("a defect of rank 1")


@dataclass(frozen=True, slots=True)
class Divergence:
    """What the last rank does while the others do `usual`, and the error message on each rank. `{last}`: its number."""

    act: Act
    message: str


DIVERGENCES: Mapping[str, Divergence] = {
    "skips": Divergence(skips, "rank {last} of tp skipped call 2 (MIN progress): it called barrier end instead"),
    "stays-away": Divergence(is_silent, "rank {last} of tp did not reach call 2 (MIN progress) within 0.5 s"),
    "other-operation": Divergence(changes_operation, "rank {last} of tp made call 2 (MIN progress) as MAX progress"),
    "other-shape": Divergence(
        changes_shape, "rank {last} of tp passed 3 values to call 2 (MIN progress), rank 0 passed 2"
    ),
    "raises": Divergence(
        raises,
        "rank {last} of tp skipped call 2 (MIN progress): it had raised ZeroDivisionError: a defect of rank 1",
    ),
}
