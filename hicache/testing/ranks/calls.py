"""The collectives of each rank: they are compared over a side channel before any rank enters one."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache.errors import RankError
from hicache.parallel.group import Group, Reduction

GATHER = "gather"
"""The operation of an exchange over the side channel, outside of the collectives."""

PAUSE_S = 0.0005
"""The pause between two reads of the store."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective. `operation`: MIN, MAX, broadcast, barrier, or another name. `count`: the number of values."""

    operation: str
    purpose: str
    count: int

    def __str__(self) -> str:
        return f"{self.operation} {self.purpose}"


@dataclass(frozen=True, slots=True)
class GroupCall:
    """One call of a group as its ranks make it. `number`: of the call, 1 for the first.

    `came`: the call of each rank that reached it. `left`: why other ranks make no more calls, in words.
    """

    group: str
    size: int
    number: int
    timeout_s: float
    came: Mapping[int, CollectiveCall]
    left: Mapping[int, str]

    def error(self) -> RankError | None:
        """The error that names each rank whose call differs from the most frequent one; None when all agree."""
        by_rank = [self.came[rank] for rank in sorted(self.came)]
        # A rank that gathers while another rank is in a collective has skipped that collective.
        collectives = [call for call in by_rank if call.operation != GATHER]
        usual = Counter(collectives or by_rank).most_common(1)[0][0]
        messages = dict(self._differences(usual))
        return RankError("; ".join(messages.values()), self.group, tuple(messages)) if messages else None

    def _differences(self, usual: CollectiveCall) -> Iterator[tuple[int, str]]:
        call = f"call {self.number} ({usual})"
        for rank in range(self.size):
            who, found = f"rank {rank} of {self.group}", self.came.get(rank)
            if found is None and rank in self.left:
                yield rank, f"{who} skipped {call}: it {self.left[rank]}"
            elif found is None:
                yield rank, f"{who} did not reach {call} within {self.timeout_s:g} s"
            elif found.purpose != usual.purpose:
                yield rank, f"{who} skipped {call}: it called {found} instead"
            elif found.operation != usual.operation:
                yield rank, f"{who} made {call} as {found}"
            elif found.count != usual.count:
                first = next(other for other, one in self.came.items() if one == usual)
                yield rank, f"{who} passed {found.count} values to {call}, rank {first} passed {usual.count}"


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
        self.calls: list[CollectiveCall] = []
        self._note = note
        self._exchanges = 0
        self._error: RankError | None = None

    def compare(self, call: CollectiveCall, payload: str) -> list[str]:
        """Compare the next call with the other ranks' calls, and return the payload of each rank, by rank.

        Raises RankError on every rank, now and at each later call, when a rank skips the call or makes another one.
        """
        self._require_unbroken()
        self.calls.append(call)
        return self._exchange(call, len(self.calls), payload)

    def require_between_calls(self, call: CollectiveCall) -> None:
        """Check that all ranks are between the same two calls. Raises RankError on every rank when one is not.

        `call`: what this rank does next, which is not a collective of this group.
        """
        self._require_unbroken()
        self._exchange(call, len(self.calls) + 1, "")

    def _exchange(self, call: CollectiveCall, number: int, payload: str) -> list[str]:
        self._note(f"call {number} of {self.channel.name} ({call})")
        self._exchanges += 1
        text = json.dumps([call.operation, call.purpose, call.count, payload])
        try:
            texts, left = self.channel.exchange(self.rank, self._exchanges, text)
        except RankError as error:
            self._error = error
            raise
        entries = {rank: json.loads(texts[rank]) for rank in sorted(texts)}
        came = {rank: CollectiveCall(*words[:3]) for rank, words in entries.items()}
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
        if self._error is not None:
            raise _copied(self._error)


def _copied(error: RankError) -> RankError:
    """An equal error: threads share its contents, but must not raise one object in several threads."""
    return RankError(str(error), error.group, error.ranks)


class LocalSideChannel:
    """Shared by the threads. The texts of a call are kept until every rank has read them."""

    def __init__(self, name: str, size: int, timeout_s: float) -> None:
        self.name = name
        self.size = size
        self.timeout_s = timeout_s
        self._changed = threading.Condition()
        self._texts: dict[int, dict[int, str]] = {}
        self._left: dict[int, str] = {}
        self._error: RankError | None = None

    def exchange(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """See SideChannel."""
        with self._changed:
            texts = self._texts.setdefault(number, {})
            texts[rank] = text
            # A rank that is here has read the texts of the call before the last one.
            self._texts.pop(number - 2, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or len(texts.keys() | self._left) == self.size, self.timeout_s)
            if self._error is not None:
                raise _copied(self._error)
            return dict(texts), dict(self._left)

    def leave(self, rank: int, how: str) -> None:
        """See SideChannel."""
        with self._changed:
            self._left.setdefault(rank, how)
            self._changed.notify_all()

    def abort(self, error: RankError) -> None:
        """See SideChannel."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


class TextStore(Protocol):
    """The methods that are used of torch.distributed's stores."""

    def set(self, key: str, value: str) -> None:
        """Store a text."""

    def get(self, key: str) -> bytes:
        """The stored text."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys exist."""


class StoreSideChannel:
    """One rank's end of a channel. `key`: unique to the group in the store."""

    def __init__(self, store: TextStore, key: str, name: str, size: int, timeout_s: float) -> None:
        self.name = name
        self.size = size
        self.timeout_s = timeout_s
        self._store = store
        self._key = key

    def exchange(self, rank: int, number: int, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """See SideChannel."""
        self._store.set(self._place(number, rank), text)
        texts, left = {rank: text}, dict[int, str]()
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            self._require_unbroken()
            for other in set(range(self.size)) - texts.keys():
                self._look_for(other, number, texts, left)
            if len(texts.keys() | left) == self.size or time.monotonic() > deadline_s:
                return texts, left
            time.sleep(PAUSE_S)

    def _look_for(self, other: int, number: int, texts: dict[int, str], left: dict[int, str]) -> None:
        has_left = self._read(self._place("left", other))
        # Read in this order: a rank makes its last call before it leaves.
        text = self._read(self._place(number, other))
        if text is not None:
            texts[other] = text
        elif has_left is not None:
            left[other] = has_left

    def leave(self, rank: int, how: str) -> None:
        """See SideChannel."""
        if self._read(self._place("left", rank)) is None:
            self._store.set(self._place("left", rank), how)

    def abort(self, error: RankError) -> None:
        """See SideChannel."""
        self._store.set(f"{self._key}/broken", json.dumps([str(error), error.group, error.ranks]))

    def _require_unbroken(self) -> None:
        if (text := self._read(f"{self._key}/broken")) is not None:
            message, group, ranks = json.loads(text)
            raise RankError(message, group, tuple(ranks))

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _place(self, what: int | str, rank: int) -> str:
        return f"{self._key}/{what}/{rank}"


class ComparedGroup:
    """One rank's end of a group whose calls are compared; `name`, `rank` and `size` as in Group.

    Raises RankError on every rank when one skips a call or makes another one.
    """

    def __init__(self, name: str, rank: int, size: int, compared_calls: ComparedCalls) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.compared_calls = compared_calls

    @property
    def calls(self) -> Sequence[CollectiveCall]:
        """All calls of this rank so far."""
        return self.compared_calls.calls

    def leave(self, how: str) -> None:
        """Record that this rank makes no more calls."""
        self.compared_calls.leave(how)


class RecordedGroup(ComparedGroup):
    """Passes each call on to the group `inner` when all ranks make the same one.

    Thus a rank that skips a call is named at once, where the collective itself would hang.
    """

    def __init__(self, inner: Group, compared_calls: ComparedCalls) -> None:
        super().__init__(inner.name, inner.rank, inner.size, compared_calls)
        self._inner = inner

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        """See Group."""
        self.compared_calls.compare(CollectiveCall(reduction.value, purpose, len(values)), "")
        return self._inner.reduce(values, reduction, purpose)

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        """See Group."""
        self.compared_calls.compare(CollectiveCall("broadcast", purpose, len(values)), "")
        return self._inner.broadcast(values, purpose)

    def barrier(self, purpose: str) -> None:
        """See Group."""
        self.compared_calls.compare(CollectiveCall("barrier", purpose, 0), "")
        self._inner.barrier(purpose)


class LocalGroup(ComparedGroup):
    """A group whose ranks are threads of one process, so that one test can use a mesh of any size.

    The ranks exchange their values when their calls are compared.
    """

    def __init__(self, compared_calls: ComparedCalls) -> None:
        channel = compared_calls.channel
        super().__init__(channel.name, compared_calls.rank, channel.size, compared_calls)

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        """See Group."""
        fold = min if reduction is Reduction.MIN else max
        given = self._exchange(CollectiveCall(reduction.value, purpose, len(values)), values)
        return [fold(column) for column in zip(*given, strict=True)]

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        """See Group."""
        return self._exchange(CollectiveCall("broadcast", purpose, len(values)), values)[0]

    def barrier(self, purpose: str) -> None:
        """See Group."""
        self._exchange(CollectiveCall("barrier", purpose, 0), ())

    def _exchange(self, call: CollectiveCall, values: Sequence[int]) -> list[list[int]]:
        texts = self.compared_calls.compare(call, json.dumps([int(value) for value in values]))
        return [json.loads(text) for text in texts]
