"""Ways in which ranks can part, and what is told of each: played on groups of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hicache.parallel.group import Group, Reduction

Act = Callable[[Group], None]
"""What a rank does in a group."""


def usual(group: Group) -> None:
    """Three calls, the second of which is the one that matters."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5], Reduction.MIN, "progress")
    group.barrier("end")


def skips(group: Group) -> None:
    """Leaves out the second call, and goes on with the third."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.barrier("end")


def stays_away(group: Group) -> None:
    """Makes the first call and never another one, without a word."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")


def changes_operation(group: Group) -> None:
    """Asks for the greatest where the others ask for the least."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5], Reduction.MAX, "progress")


def changes_shape(group: Group) -> None:
    """Gives more numbers than the others."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    group.reduce([4, 5, 6], Reduction.MIN, "progress")


def raises(group: Group) -> None:
    """Fails between two calls."""
    group.reduce([1, 2, 3], Reduction.MIN, "capacities")
    raise ZeroDivisionError("a defect of rank 1")


@dataclass(frozen=True, slots=True)
class Way:
    """What the last rank does while the others do the usual, and what each rank is told. `{last}`: its number."""

    act: Act
    told: str


WAYS: Mapping[str, Way] = {
    "skips": Way(skips, "rank {last} of tp skipped call 2 (MIN progress): it came with barrier end"),
    "stays-away": Way(stays_away, "rank {last} of tp did not come to call 2 (MIN progress) within 0.5 s"),
    "other-operation": Way(changes_operation, "rank {last} of tp makes call 2 (MIN progress) as MAX progress"),
    "other-shape": Way(changes_shape, "rank {last} of tp gives 3 numbers to call 2 (MIN progress), rank 0 gives 2"),
    "raises": Way(
        raises,
        "rank {last} of tp skipped call 2 (MIN progress): it had raised ZeroDivisionError: a defect of rank 1",
    ),
}
