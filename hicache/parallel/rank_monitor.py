"""RankMonitor: after a collective has failed, the ranks of a tree find out through a store which ranks are missing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache.clock import Clock
from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.mesh import AXES, axis_ranks, places, tree_ranks, world_rank

GRACE = 0.5
"""How much longer than the deadline a rank waits for the answers of others, as a share of the deadline."""

POLLS_PER_DEADLINE = 8
"""A waiting rank looks for an alarm at least this often within one deadline."""

MAX_POLL_S = 0.25
PAUSE_S = 0.01
"""Seconds between two checks for the answers of other ranks."""

RECENT = 16
"""Of so many last calls a rank tells the others, when they find out which of them made another call."""

ALARM, VERDICT = "alarm", "verdict"
"""Keys of the store. The alarm says that a call has failed on some rank; the verdict is the error that all raise."""


class RankStore(Protocol):
    """A key-value store that all ranks read and write: the part of torch.distributed's Store that is used here."""

    def set(self, key: str, value: str) -> None:
        """Write the value of a key."""

    def get(self, key: str) -> bytes:
        """The value of a key."""

    def check(self, keys: list[str]) -> bool:
        """Whether all these keys are set."""

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Write if the key has the expected value, where "" means that it is not set. Returns the value afterwards."""


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that a rank waits in. `since`: when the rank began it, in seconds by the monitor's clock.

    `number`: counted in the group, from 0. `position`: counted over all groups of the rank. `count`: of its values.
    """

    group: str
    number: int
    what: str
    since: float
    position: int
    count: int

    def __str__(self) -> str:
        return f"call {self.number} ({self.what})"

    @property
    def details(self) -> str:
        """The call in words, which are the same on two ranks if they are in the same call, and differ otherwise."""
        values = f"{self.count} value{'' if self.count == 1 else 's'}"
        return f"{self} of {self.group} with {values} as collective {self.position}"

    @property
    def signature(self) -> int:
        """63 bits of a digest of the details."""
        return int.from_bytes(hashlib.sha256(self.details.encode()).digest()[:8], "big") >> 1


class DivergedError(RuntimeError):
    """A collective has ended, and its ranks were in different calls."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The call that a rank is in, and when it began it, in seconds by the clock of the rank that reads the answer.

    `has_diverged`: whether the call has ended with DivergedError. `recent`: the details of the last calls, this one as
    the last.
    """

    group: str
    call: str
    position: int
    recent: Sequence[str]
    has_diverged: bool
    since: float

    @property
    def details(self) -> str:
        """The call in words."""
        return self.recent[-1]


class RankMonitor:
    """Finds out, after a collective has failed on some rank, which ranks of the tree are dead or silent.

    The rank whose call fails sets the alarm in the store. A rank that waits in any call checks the alarm every `poll_s`
    seconds, and its call fails too. Each of these ranks writes that it is alive. It then waits for the others until the
    deadline of its own call has passed, and half of the deadline longer: a rank that reaches its call by the deadline
    sees the alarm within that time. Ranks without an answer are missing. The rank that gave the first alarm writes the
    verdict, the error that every rank raises, and any other one if it does not in that time; a missing rank that was
    only too late raises it as well.
    """

    def __init__(
        self, store: RankStore, topology: Topology, timeout_s: float, clock: Clock, pause: Callable[[float], object]
    ) -> None:
        self.poll_s = min(timeout_s / POLLS_PER_DEADLINE, MAX_POLL_S)
        self._store = store
        self._rank = world_rank(topology)
        self._ranks = tree_ranks(topology)
        self._places = places(topology)
        self._timeout_s = timeout_s
        self._clock = clock
        self._pause = pause
        self._verdict: RankError | None = None
        self._begun = 0
        self._recent = deque[Call](maxlen=RECENT)

    def begin(self, group: str, number: int, what: str, count: int) -> Call:
        """A call that begins now. Raises the verdict, if there is one: after one failed call all later calls fail."""
        if self._verdict is not None:
            raise _copy_of(self._verdict)
        self._begun += 1
        call = Call(group, number, what, self._clock.now(), self._begun, count)
        self._recent.append(call)
        return call

    def wait_for_all(self, call: Call) -> None:
        """Wait until every rank of the tree has reached this call. Raises TimeoutError when the wait must end."""
        self._store.set(f"here/{self._rank}", str(call))
        while not all(self._store.check([f"here/{rank}"]) for rank in self._ranks):
            if self.must_give_up(call):
                raise TimeoutError(f"{call} has not begun")
            self._pause(PAUSE_S)

    def must_give_up(self, call: Call) -> bool:
        """Whether the wait in a call must end: its deadline has passed, or there is an alarm."""
        return self._clock.now() >= call.since + self._timeout_s or self._store.check([ALARM])

    def verdict(self, call: Call, cause: Exception) -> RankError:
        """The error that this rank and all others raise after `call` has failed with `cause`."""
        try:
            self._verdict = self._agreed_verdict(call, cause)
        except RuntimeError as error:
            message = f"{call} of {call.group} failed ({cause}), and so did the store that the ranks share: {error}"
            self._verdict = RankError(message, call.group, ())
        return _copy_of(self._verdict)

    def _agreed_verdict(self, call: Call, cause: Exception) -> RankError:
        self._answer(call, has_diverged=isinstance(cause, DivergedError))
        limit_s = max(self._clock.now(), call.since + self._timeout_s) + GRACE * self._timeout_s
        # The first to give an alarm reads each answer when it comes. A late rank does not know how old they are.
        may_decide = isinstance(cause, DivergedError) or self._store.get(ALARM).decode() == str(self._rank)
        answers = dict[int, _Answer]()
        while True:
            answers |= {rank: self._answer_of(rank) for rank in self._ranks if self._is_new(rank, answers)}
            is_known = len(answers) == len(self._ranks) and may_decide
            if is_known or self._store.check([VERDICT]) or self._clock.now() >= limit_s:
                own = _to_text(self._own_verdict(call, answers, cause))
                return _from_text(self._store.compare_set(VERDICT, "", own))
            self._pause(PAUSE_S)

    def _answer(self, call: Call, *, has_diverged: bool) -> None:
        waited_s = self._clock.now() - call.since
        recent = [*(one.details for one in self._recent if one != call), call.details]
        answer = [call.group, str(call), call.position, recent, has_diverged, waited_s]
        self._store.set(_alive(self._rank), json.dumps(answer))
        self._store.compare_set(ALARM, "", str(self._rank))

    def _is_new(self, rank: int, answers: Mapping[int, _Answer]) -> bool:
        return rank not in answers and self._store.check([_alive(rank)])

    def _answer_of(self, rank: int) -> _Answer:
        group, call, position, recent, has_diverged, waited_s = json.loads(self._store.get(_alive(rank)))
        return _Answer(group, call, position, recent, has_diverged, self._clock.now() - waited_s)

    def _own_verdict(self, call: Call, answers: Mapping[int, _Answer], cause: Exception) -> RankError:
        different = self._different(answers)
        if different is not None:
            return different
        missing = self._missing(answers)
        if not missing:
            calls = ", ".join(f"{one.call} of {one.group} on world rank {at}" for at, one in sorted(answers.items()))
            return RankError(f"every rank answered in time, yet these calls failed: {calls}: {cause}", call.group, ())
        first = self._first_without(missing, answers)
        group, what = (call.group, str(call)) if first is None else (first.group, first.call)
        ranks = tuple(self._rank_along(group, rank) for rank in missing)
        who = f"{_ranks(ranks)} of {group} did not reach {what} within {self._timeout_s:g} s"
        return RankError(f"{who} (world {_ranks(missing)})", group, ranks)

    def _first_without(self, missing: Sequence[int], answers: Mapping[int, _Answer]) -> _Answer | None:
        """The first call that a missing rank did not reach. Others wait in later ones for those that wait in it."""
        waiting = [answer for rank, answer in answers.items() if set(missing) & set(self._group_of(rank, answer.group))]
        return min(waiting, key=lambda answer: (answer.position, answer.since), default=None)

    def _different(self, answers: Mapping[int, _Answer]) -> RankError | None:
        """The error that names the ranks of a group that made another call than most; None if no group has diverged."""
        diverged = [rank for rank in self._ranks if rank in answers and answers[rank].has_diverged]
        if not diverged:
            return None
        group = answers[diverged[0]].group
        members = [rank for rank in self._group_of(diverged[0], group) if rank in diverged]
        done = Counter(details for answer in answers.values() for details in answer.recent)
        most = max(done[answers[rank].details] for rank in members)
        usual = {answers[rank].details for rank in members if done[answers[rank].details] == most}
        # Where as many ranks made one call as another, the right one is unknown: all are named.
        others = [rank for rank in members if len(usual) > 1 or answers[rank].details not in usual]
        ranks = tuple(self._rank_along(group, rank) for rank in others)
        made = "; ".join(
            f"rank {along} made {answers[rank].details} (world rank {rank})"
            for along, rank in zip(ranks, others, strict=True)
        )
        where = "" if len(usual) > 1 else f", where the others made {next(iter(usual))}"
        return RankError(f"RANK-2: {made}{where}", group, ranks)

    def _group_of(self, rank: int, axis: str) -> tuple[int, ...]:
        """The world ranks of the group of a rank along an axis; all of the tree for the group `world`."""
        lists = axis_ranks(self._places[rank]).get(axis, (self._ranks,))
        return next(ranks for ranks in lists if rank in ranks)

    def _missing(self, answers: Mapping[int, _Answer]) -> tuple[int, ...]:
        """The ranks without an answer; if all answered, those that began after the first rank's deadline."""
        silent = tuple(rank for rank in self._ranks if rank not in answers)
        limit_s = min((answer.since for answer in answers.values()), default=0.0) + self._timeout_s
        return silent or tuple(rank for rank in self._ranks if answers[rank].since > limit_s)

    def _rank_along(self, group: str, world: int) -> int:
        """The rank of a world rank within the group of an axis; the world rank itself for the group `world`."""
        rank: int = getattr(self._places[world], f"{group}_rank") if group in AXES else world
        return rank


def _alive(rank: int) -> str:
    return f"alive/{rank}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _to_text(error: RankError) -> str:
    return json.dumps([str(error), error.group, error.ranks])


def _from_text(verdict: bytes) -> RankError:
    message, group, ranks = json.loads(verdict)
    return RankError(message, group, tuple(ranks))


def _copy_of(error: RankError) -> RankError:
    return RankError(str(error), error.group, error.ranks)
