"""ComparedCalls: the calls of one rank in a group, each compared with the other ranks' before it is entered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from hicache.errors import RankError
from hicache.testing.ranks.call import Call, GroupCall


class SideChannel(Protocol):
    """The connection of a group's ranks for comparing their calls, separate from the collectives under test."""

    @property
    def name(self) -> str:
        """The group's name."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def timeout_s(self) -> float:
        """How long to wait for a rank."""

    def exchange(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """Exchange texts for one call: the text of each rank, and why other ranks left, in words.

        Returns when all ranks have sent a text or left, or after `timeout_s`. Raises the error of an aborted channel.
        """

    def leave(self, rank: int, how: str) -> None:
        """Record that this rank makes no more calls; a second reason is ignored."""

    def abort(self, error: RankError) -> None:
        """Raise this error on every rank that waits or exchanges from now on."""


class ComparedCalls:
    """The calls that one rank makes in one group. `calls`: all so far.

    `note`: called with each call before it is entered, to show where a rank hangs.
    """

    def __init__(self, rank: int, channel: SideChannel, note: Callable[[str], None]) -> None:
        self.rank = rank
        self.channel = channel
        self.calls: list[Call] = []
        self._note = note
        self._exchanges = 0
        self._error: RankError | None = None

    def compare(self, call: Call, payload: str) -> list[str]:
        """Compare the next call with the other ranks' calls, and return the payload of each rank, by rank.

        Raises RankError on every rank, now and at each later call, when a rank skips the call or makes another one.
        """
        self._require_unbroken()
        self.calls.append(call)
        return self._exchange(call, len(self.calls), payload)

    def require_between_calls(self, call: Call) -> None:
        """Check that all ranks are between the same two calls. Raises RankError on every rank when one is not.

        `call`: what this rank does next, which is not a collective of this group.
        """
        self._require_unbroken()
        self._exchange(call, len(self.calls) + 1, "")

    def _exchange(self, call: Call, number: int, payload: str) -> list[str]:
        self._note(f"call {number} of {self.channel.name} ({call})")
        self._exchanges += 1
        text = json.dumps([call.operation, call.purpose, call.count, payload])
        try:
            texts, left = self.channel.exchange(self.rank, self._exchanges, text)
        except RankError as error:
            self._error = error
            raise
        entries = {rank: json.loads(texts[rank]) for rank in sorted(texts)}
        came = {rank: Call(*words[:3]) for rank, words in entries.items()}
        channel = self.channel
        self._error = GroupCall(channel.name, channel.size, number, channel.timeout_s, came, left).error()
        if self._error is not None:
            channel.abort(self._error)
        self._require_unbroken()
        return [words[3] for words in entries.values()]

    def leave(self, how: str) -> None:
        """Record that this rank makes no more calls, and why: `had ended`, `had raised …`."""
        self.channel.leave(self.rank, how)

    def _require_unbroken(self) -> None:
        if (error := self._error) is not None:
            # A new exception: threads share the error's contents, but must not raise one object in several threads.
            raise RankError(str(error), error.group, error.ranks)
