"""Races: accesses to the same bytes of memory, at least one a write, that nothing puts in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Clock: TypeAlias = dict[int, int]
"""What has happened before: of each actor, the number of its latest access that is known to be over."""

Where: TypeAlias = "slice | npt.NDArray[np.intp]"
"""Bytes of a piece of memory."""


def join(clock: Clock, other: Clock) -> None:
    """Let all that happened before `other` have happened before `clock`."""
    for actor, number in other.items():
        if number > clock.get(actor, 0):
            clock[actor] = number


@dataclass(frozen=True, slots=True, eq=False)
class SlotAccess:
    """One operation of one actor: a stream, the host, or the allocator.

    `number`: counts those of the actor. `clock`: what has happened before. `place`: where in the source the host asked
    for it.
    """

    actor: int
    number: int
    clock: Clock
    operation: str
    on: str
    place: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.on}, queued by {self.place}"


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Two accesses that are in no order, in the order in which they happened to run.

    `address`: of the memory, in a space in which none is used twice. `touched`: the bytes of it that both touch, from
    the first to the end of the last.
    """

    memory: str
    address: int
    touched: tuple[int, int]
    first: tuple[str, SlotAccess]
    second: tuple[str, SlotAccess]

    def covers(self, address: int) -> bool:
        """Whether an address is among the bytes, or between them."""
        return self.touched[0] <= address - self.address < self.touched[1]

    def __str__(self) -> str:
        (did, first), (does, second) = self.first, self.second
        start, end = self.touched
        return f"bytes {start} to {end} of {self.memory}: {did} by {first}; and {does} by {second}, in no order"


class RaceLog:
    """All accesses, and the races among them."""

    def __init__(self) -> None:
        self.races: list[Race] = []
        self._accesses: dict[tuple[int, int], SlotAccess] = {}
        self._end = 0

    def access(self, actor: int, number: int, clock: Clock, operation: str, on: str, place: str) -> SlotAccess:
        """Note an access."""
        made = SlotAccess(actor, number, dict(clock), operation, on, place)
        self._accesses[actor, number] = made
        return made

    def place(self, size_bytes: int) -> int:
        """An address that no other memory has, or had before it was freed."""
        self._end += size_bytes
        return self._end - size_bytes

    def find(self, actor: int, number: int) -> SlotAccess:
        """An access that was noted."""
        return self._accesses[actor, number]


class Shadow:
    """For each byte of a piece of memory, the latest read and the latest write of each actor."""

    def __init__(self, log: RaceLog, size_bytes: int, label: str) -> None:
        self.address = log.place(size_bytes)
        self.label = label
        self._log = log
        self._size_bytes = size_bytes
        self._latest: dict[tuple[int, bool], npt.NDArray[np.int64]] = {}

    def touch(self, access: SlotAccess, where: Where, *, is_write: bool) -> None:
        """Check an access against all that ran before, when it runs."""
        if not (where.stop > where.start if isinstance(where, slice) else len(where)):
            return
        for (actor, was_write), latest in self._latest.items():
            if actor != access.actor and (is_write or was_write):
                late = latest[where] > access.clock.get(actor, 0)
                if late.any():
                    touched = np.flatnonzero(late) + where.start if isinstance(where, slice) else where[late]
                    other = self._log.find(actor, int(latest[touched].max()))
                    self._report((other, was_write), (access, is_write), touched)
        own = self._latest.get((access.actor, is_write))
        if own is None:
            own = self._latest[access.actor, is_write] = np.zeros(self._size_bytes, dtype=np.int64)
        own[where] = access.number

    def _report(
        self, first: tuple[SlotAccess, bool], second: tuple[SlotAccess, bool], touched: npt.NDArray[np.intp]
    ) -> None:
        ends = (int(touched.min()), int(touched.max()) + 1)
        (one, was_write), (other, is_write) = first, second
        did, does = ("written" if was_write else "read"), ("written" if is_write else "read")
        self._log.races.append(Race(self.label, self.address, ends, (did, one), (does, other)))
