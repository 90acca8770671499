"""ComparedCalls: the calls of one rank in a group, each compared with those of the other ranks before it is entered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from hicache.errors import RankError
from hicache.testing.ranks.call import Attendance, Call


class Meeting(Protocol):
    """Where the ranks of one group tell each other what they come with, without the collectives that are under test."""

    @property
    def name(self) -> str:
        """The group's name."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def timeout_s(self) -> float:
        """How long a rank is waited for."""

    def meet(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """What each rank says at its call of this number, and what became of those that left, in words.

        Returns when all have come or left, or the time is over. Raises the error of a meeting that was broken up.
        """

    def leave(self, rank: int, how: str) -> None:
        """This rank will not come any more; the first word that it leaves with stays."""

    def break_up(self, error: RankError) -> None:
        """The ranks have parted: whoever comes from now on, or waits, gets this error."""


class ComparedCalls:
    """What one rank does in one group. `calls`: all so far.

    `note`: told of each call before it is entered, so that a rank that hangs in one can be found there.
    """

    def __init__(self, rank: int, meeting: Meeting, note: Callable[[str], None]) -> None:
        self.rank = rank
        self.meeting = meeting
        self.calls: list[Call] = []
        self._note = note
        self._meetings = 0
        self._error: RankError | None = None

    def answer(self, call: Call, load: str) -> list[str]:
        """Come to the next call with a load, and see with what loads the others come, by rank.

        Raises RankError on every rank, now and at each later call, when one skips the call or makes another one.
        """
        self._require_unbroken()
        self.calls.append(call)
        return self._meet(call, len(self.calls), load)

    def stand(self, call: Call) -> None:
        """See that all other ranks stand between the same two calls. Raises RankError on every rank when one does not.

        `call`: what this rank is about to do, which is no collective of this group.
        """
        self._require_unbroken()
        self._meet(call, len(self.calls) + 1, "")

    def _meet(self, call: Call, number: int, load: str) -> list[str]:
        self._note(f"call {number} of {self.meeting.name} ({call})")
        self._meetings += 1
        text = json.dumps([call.operation, call.purpose, call.count, load])
        try:
            said, left = self.meeting.meet(self.rank, self._meetings, text)
        except RankError as error:
            self._error = error
            raise
        heard = {rank: json.loads(said[rank]) for rank in sorted(said)}
        came = {rank: Call(*words[:3]) for rank, words in heard.items()}
        meeting = self.meeting
        self._error = Attendance(meeting.name, meeting.size, number, meeting.timeout_s, came, left).fault()
        if self._error is not None:
            meeting.break_up(self._error)
        self._require_unbroken()
        return [words[3] for words in heard.values()]

    def leave(self, how: str) -> None:
        """Say that this rank will make no more calls, and what became of it: `had ended`, `had raised …`."""
        self.meeting.leave(self.rank, how)

    def _require_unbroken(self) -> None:
        if (error := self._error) is not None:
            # Anew: threads share what is known, but not an exception that each of them raises.
            raise RankError(str(error), error.group, error.ranks)
