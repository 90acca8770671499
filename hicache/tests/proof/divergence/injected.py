"""Case: collectives that all ranks of a mesh make, and the place where one rank makes others; drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from hicache.config import Topology
from hicache.parallel.mesh import AXES, topology_of, world_size

MESHES: Mapping[str, Topology] = {
    "tp2": topology_of(0, tp_size=2, cp_size=1, pp_size=1, dp_size=1),
    "tp3": topology_of(0, tp_size=3, cp_size=1, pp_size=1, dp_size=1),
    "pp4": topology_of(0, tp_size=1, cp_size=1, pp_size=4, dp_size=1),
    "tp2-cp2": topology_of(0, tp_size=2, cp_size=2, pp_size=1, dp_size=1),
    "tp2-pp3": topology_of(0, tp_size=2, cp_size=1, pp_size=3, dp_size=1),
    "tp2-cp2-pp2": topology_of(0, tp_size=2, cp_size=2, pp_size=2, dp_size=1),
    "tp4-pp2": topology_of(0, tp_size=4, cp_size=1, pp_size=2, dp_size=1),
    "tp8": topology_of(0, tp_size=8, cp_size=1, pp_size=1, dp_size=1),
}
DECISIONS = 4
"""Each is one call along every axis, as those of an agreement. Nothing diverges in the last one."""

MAX_COUNT = 9


class Verb(str, Enum):
    """What a call does."""

    MIN = "MIN"
    MAX = "MAX"
    BROADCAST = "broadcast"
    BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One collective along an axis."""

    axis: str
    verb: Verb
    purpose: str
    count: int


Calls = tuple[PlannedCall, ...]


class Leaving(str, Enum):
    """How a rank leaves the others before a call."""

    DIES = "dies"
    IS_KILLED = "is killed"
    HANGS = "hangs"
    RAISES = "raises"
    ENDS = "ends"
    IS_LATE = "is late"


def _skips(calls: Calls, at: int) -> Calls:
    return calls[:at] + calls[at + 1 :]


def _calls_twice(calls: Calls, at: int) -> Calls:
    return calls[: at + 1] + calls[at:]


def _exchanges_axes(calls: Calls, at: int) -> Calls:
    return (*calls[:at], calls[at + 1], calls[at], *calls[at + 2 :])


def _exchanges_decisions(calls: Calls, at: int) -> Calls:
    step = len({call.axis for call in calls})
    first = at - at % step
    second, third = first + step, first + 2 * step
    return (*calls[:first], *calls[second:third], *calls[first:second], *calls[third:])


def _changed(calls: Calls, at: int, call: PlannedCall) -> Calls:
    return (*calls[:at], call, *calls[at + 1 :])


def _reduces_otherwise(calls: Calls, at: int) -> Calls:
    other = Verb.MIN if calls[at].verb is Verb.MAX else Verb.MAX
    return _changed(calls, at, replace(calls[at], verb=other))


def _passes_more(calls: Calls, at: int) -> Calls:
    return _changed(calls, at, replace(calls[at], count=calls[at].count + 1))


def _decides_something_else(calls: Calls, at: int) -> Calls:
    return _changed(calls, at, replace(calls[at], purpose="something else"))


CHANGES: Mapping[str, Callable[[Calls, int], Calls]] = {
    "skips a call": _skips,
    "calls twice": _calls_twice,
    "exchanges two axes": _exchanges_axes,
    "exchanges two decisions": _exchanges_decisions,
    "reduces otherwise": _reduces_otherwise,
    "passes more values": _passes_more,
    "decides something else": _decides_something_else,
}
KINDS = (*CHANGES, *(leaving.value for leaving in Leaving))


@dataclass(frozen=True, slots=True)
class Case:
    """`calls`: what every rank makes. `rank`: the world rank that does something else at `at`, an index of `calls`."""

    mesh: str
    kind: str
    rank: int
    at: int
    calls: Calls

    def __str__(self) -> str:
        return f"{self.mesh}: rank {self.rank} {self.kind} at call {self.at} of {len(self.calls)}"

    @property
    def topology(self) -> Topology:
        """Any place of the mesh."""
        return MESHES[self.mesh]

    @property
    def leaving(self) -> Leaving | None:
        """How the rank leaves, if it does."""
        return None if self.kind in CHANGES else Leaving(self.kind)

    def made_by(self, rank: int) -> Calls:
        """The calls that a rank makes; one that leaves makes those before `at`."""
        if rank != self.rank:
            return self.calls
        return self.calls[: self.at] if self.leaving else CHANGES[self.kind](self.calls, self.at)

    @property
    def first_different(self) -> int:
        """The index of the first call that the rank does not make as the others do."""
        made = self.made_by(self.rank)
        return next(at for at, call in enumerate(self.calls) if at >= len(made) or made[at] != call)

    def number(self, index: int) -> int:
        """The number of a call among those of its axis, from 0."""
        return sum(call.axis == self.calls[index].axis for call in self.calls[:index])


def draw(seed: int, kinds: Sequence[str] = KINDS) -> Case:
    """The case of a seed: its kind comes from the list in turn, all else by chance."""
    chance, kind = Random(seed), kinds[seed % len(kinds)]
    meshes = [name for name in MESHES if kind != "exchanges two axes" or "-" in name]
    mesh = chance.choice(meshes)
    axes = [axis for axis in AXES if getattr(MESHES[mesh], f"{axis}_size") > 1]
    calls = tuple(call for number in range(DECISIONS) for call in _decision(number, axes, chance))
    rank = chance.randrange(world_size(MESHES[mesh]))
    last = len(calls) - len(axes)
    places_of = [at for at in range(last) if _can_change(kind, calls, at)]
    return Case(mesh, kind, rank, chance.choice(places_of), calls)


def _decision(number: int, axes: Sequence[str], chance: Random) -> list[PlannedCall]:
    verb = chance.choice([Verb.MIN, Verb.MIN, Verb.MAX, Verb.BROADCAST]) if number % 3 else Verb.MIN
    count = chance.randint(1, MAX_COUNT)
    return [PlannedCall(axis, verb, f"decision {number}", count) for axis in axes]


def _can_change(kind: str, calls: Calls, at: int) -> bool:
    step = len({call.axis for call in calls})
    if kind == "exchanges two axes":
        return at % step < step - 1
    if kind == "exchanges two decisions":
        return at + 2 * step <= len(calls) - step
    return kind != "reduces otherwise" or calls[at].verb in (Verb.MIN, Verb.MAX)
