"""RollCall: when a collective fails, the ranks of a tree tell each other who is still there, and name who is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hicache.clock import Clock
from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.mesh import AXES, places, tree_ranks, world_rank

PATIENCE = 1.5
"""How long after it came to the call a rank waits for the others to answer, in deadlines."""

BEATS = 8
LONGEST_BEAT_S = 0.25
PAUSE_S = 0.01

ALARM, VERDICT = "alarm", "verdict"


class Board(Protocol):
    """What is needed of torch.distributed's Store: text by key, for all ranks to read and write."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read what is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all these keys are there."""

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Write if the key holds what was expected, for "": if it is not there. Gives what it then holds."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a rank waits in. `since`: when it came, in seconds, by the clock of the roll call."""

    group: str
    number: int
    what: str
    since: float

    def __str__(self) -> str:
        return f"call {self.number} ({self.what})"


class RollCall:
    """Finds out, once a collective has failed on some rank, which ranks of the tree are dead or silent.

    Who fails sounds an alarm. Who waits in any call looks for it with every beat, and then fails too. All say that they
    are alive, and wait for the others until one and a half deadlines after they came to their own call: by then all
    who came to a call have seen the alarm. Who has not answered is named. The first to know writes the verdict, and
    every rank raises that one, also the one that it names, if it only came too late.
    """

    def __init__(
        self, board: Board, topology: Topology, timeout_s: float, clock: Clock, pause: Callable[[float], object]
    ) -> None:
        self.beat_s = min(timeout_s / BEATS, LONGEST_BEAT_S)
        self._board = board
        self._rank = world_rank(topology)
        self._ranks = tree_ranks(topology)
        self._places = places(topology)
        self._timeout_s = timeout_s
        self._clock = clock
        self._pause = pause
        self._verdict: RankError | None = None

    def enter(self, group: str, number: int, what: str) -> Call:
        """A call that begins now. Raises what was raised before: where one call has failed there is no other."""
        self.refuse()
        return Call(group, number, what, self._clock.now())

    def refuse(self) -> None:
        """Raise the verdict, if there is one."""
        if self._verdict is not None:
            raise _again(self._verdict)

    def is_lost(self, call: Call) -> bool:
        """Whether to wait no longer: the call's deadline has passed, or there is an alarm."""
        return self._clock.now() >= call.since + self._timeout_s or self._board.check([ALARM])

    def conclude(self, call: Call, cause: Exception) -> RankError:
        """What this rank and all others raise, as `call` failed for this cause."""
        try:
            self._verdict = self._ask(call, cause)
        except RuntimeError as error:
            message = f"{call} of {call.group} failed ({cause}), and so did the store that tells who is there: {error}"
            self._verdict = RankError(message, call.group, ())
        return _again(self._verdict)

    def _ask(self, call: Call, cause: Exception) -> RankError:
        self._board.set(_alive(self._rank), f"{call} of {call.group}")
        self._board.set(ALARM, str(self._rank))
        while self._silent() and not self._board.check([VERDICT]) and not self._is_too_late(call):
            self._pause(PAUSE_S)
        return _read(self._board.compare_set(VERDICT, "", _written(self._judge(call, cause))))

    def _silent(self) -> tuple[int, ...]:
        return tuple(rank for rank in self._ranks if not self._board.check([_alive(rank)]))

    def _is_too_late(self, call: Call) -> bool:
        return self._clock.now() >= call.since + PATIENCE * self._timeout_s

    def _judge(self, call: Call, cause: Exception) -> RankError:
        silent = self._silent()
        if not silent:
            calls = (f"{self._board.get(_alive(rank)).decode()} on world rank {rank}" for rank in self._ranks)
            return RankError(f"no rank is silent, yet these failed: {', '.join(calls)}: {cause}", call.group, ())
        ranks = tuple(self._place(call.group, rank) for rank in silent)
        who = f"{_ranks(ranks)} of {call.group} did not come to {call} within {self._timeout_s:g} s"
        return RankError(f"{who} (world {_ranks(silent)})", call.group, ranks)

    def _place(self, group: str, rank: int) -> int:
        place: int = getattr(self._places[rank], f"{group}_rank") if group in AXES else rank
        return place


def _alive(rank: int) -> str:
    return f"alive/{rank}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _written(error: RankError) -> str:
    return json.dumps([str(error), error.group, error.ranks])


def _read(verdict: bytes) -> RankError:
    message, group, ranks = json.loads(verdict)
    return RankError(message, group, tuple(ranks))


def _again(error: RankError) -> RankError:
    return RankError(str(error), error.group, error.ranks)
