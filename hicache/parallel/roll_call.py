"""RollCall: when a collective fails, the ranks of a tree tell each other who is still there, and name who is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hicache.clock import Clock
from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.mesh import AXES, places, tree_ranks, world_rank

GRACE = 0.5
"""How much longer than the deadline a rank waits for the answers of others, in deadlines."""

BEATS = 8
"""How often in a deadline a rank that waits looks for an alarm, at least."""

LONGEST_BEAT_S = 0.25
PAUSE_S = 0.01
"""Between two looks at who has answered."""

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


@dataclass(frozen=True, slots=True)
class _Answer:
    """In which call a rank is, and when it came there, by the clock of who asks."""

    call: str
    came_s: float


class RollCall:
    """Finds out, once a collective has failed on some rank, which ranks of the tree are dead or silent.

    Who fails sounds an alarm. Who waits in any call looks for it with every beat, and then fails too. All say that they
    are alive, and wait for the others until the deadline of their own call has passed, and half of it again: whoever
    comes to a call by the deadline sees the alarm by then. Who has not answered is named. The first to know writes the
    verdict, and every rank raises that one, also the one that it names, if it only came too late.
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

    def assemble(self, call: Call) -> None:
        """Wait until every rank of the tree has come to this. Raises TimeoutError when it is lost."""
        self._board.set(f"here/{self._rank}", str(call))
        while not all(self._board.check([f"here/{rank}"]) for rank in self._ranks):
            if self.is_lost(call):
                raise TimeoutError(f"{call} has not begun")
            self._pause(PAUSE_S)

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
        self._answer(call)
        limit_s = max(self._clock.now(), call.since + self._timeout_s) + GRACE * self._timeout_s
        answers = dict[int, _Answer]()
        while True:
            answers |= {rank: self._answer_of(rank) for rank in self._ranks if self._is_new(rank, answers)}
            if len(answers) == len(self._ranks) or self._board.check([VERDICT]) or self._clock.now() >= limit_s:
                return _read(self._board.compare_set(VERDICT, "", _written(self._judge(call, answers, cause))))
            self._pause(PAUSE_S)

    def _answer(self, call: Call) -> None:
        self._board.set(_alive(self._rank), f"{self._clock.now() - call.since} {call} of {call.group}")
        self._board.set(ALARM, str(self._rank))

    def _is_new(self, rank: int, answers: Mapping[int, _Answer]) -> bool:
        return rank not in answers and self._board.check([_alive(rank)])

    def _answer_of(self, rank: int) -> _Answer:
        waited_s, call = self._board.get(_alive(rank)).decode().split(maxsplit=1)
        return _Answer(call, self._clock.now() - float(waited_s))

    def _judge(self, call: Call, answers: Mapping[int, _Answer], cause: Exception) -> RankError:
        missing = self._missing(answers)
        if not missing:
            calls = ", ".join(f"{answer.call} on world rank {rank}" for rank, answer in sorted(answers.items()))
            return RankError(f"every rank came in time, yet these failed: {calls}: {cause}", call.group, ())
        ranks = tuple(self._place(call.group, rank) for rank in missing)
        who = f"{_ranks(ranks)} of {call.group} did not come to {call} within {self._timeout_s:g} s"
        return RankError(f"{who} (world {_ranks(missing)})", call.group, ranks)

    def _missing(self, answers: Mapping[int, _Answer]) -> tuple[int, ...]:
        """Who has not answered; when all have, who came later than the first could wait for."""
        silent = tuple(rank for rank in self._ranks if rank not in answers)
        limit_s = min((answer.came_s for answer in answers.values()), default=0.0) + self._timeout_s
        return silent or tuple(rank for rank in self._ranks if answers[rank].came_s > limit_s)

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
