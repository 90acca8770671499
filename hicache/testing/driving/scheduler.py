"""Scheduler: the one order in which the kit calls the verbs of a cache for a request, for replays and for models.

The state machines need every order instead: they call the driver, verb by verb. `RequestManager` is the cache's own
scheduler, and shares no code with this one, so that each checks the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import numpy as np

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.kept import Kept
from hicache.testing.driving.prompts import cut, element_count
from hicache.testing.violation import violation
from hicache.types import (
    NO_SLOTS,
    Component,
    Handle,
    InsertResult,
    Key,
    MatchResult,
    Slots,
    TransferKind,
    TransferPhase,
)

ReadEarly = Callable[[Slots, Handle], None]
"""Reads the slots of a prefix, from its start to its end, while the load of a ticket runs."""

P = ParamSpec("P")
R = TypeVar("R")


class VerbCaller(Protocol):
    """Calls a verb of an adapter. A replay measures how long it takes."""

    def __call__(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the verb with these arguments."""


def call_verb(verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a verb and do nothing else."""
    return verb(*args, **kwargs)


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """A request that holds a lock and slots.

    `table`: its FULL slots in whole pages; the first `cached_tokens` belong to the tree, the others to the request.
    `node`: where the cached prefix ends. `receipt`: of the lock on it. `state`: the request's own MAMBA slot, if any.
    """

    key: Key
    table: Slots
    cached_tokens: int
    node: Handle
    receipt: Handle
    state: int | None

    def own_slots(self) -> Slots:
        """The slots that belong to the request alone."""
        return self.table[self.cached_tokens :]


class Scheduler:
    """Runs requests over the verbs of one cache.

    `call`: calls each verb. `loads_may_fail`: a failed load is not a violation, and the request goes on with what is
    on the device. `computed`: requests that are computed and still hold their slots; when slots run short, they are
    released, oldest first.
    """

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, *, call: VerbCaller = call_verb, loads_may_fail: bool
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._call = call
        self._kept = Kept(adapter, config)
        self._loads_may_fail = loads_may_fail
        self._has_states = Component.MAMBA in config.components
        executors = [tier.executor for tier in (config.host, config.storage) if tier is not None]
        self._is_stepped = ExecutorKind.STEPPED in executors
        self.computed: deque[ScheduledRequest] = deque()

    # Transfers.

    def step(self) -> None:
        """Let the cache apply the results of finished transfers, and start queued ones."""
        self._call(self._adapter.step)

    def advance(self) -> None:
        """End all stepped transfers, and let stepped storage do one batch of each request."""
        for one in self._adapter.pending() if self._is_stepped else ():
            move = self._adapter.complete if isinstance(one.kind, TransferKind) else self._adapter.advance
            self._call(move, one.ticket)

    def drain(self) -> None:
        """Wait until nothing is in flight, so that no transfer pins anything."""
        self._call(self._adapter.drain)

    def start_prefetch(self, key: Key) -> Handle | None:
        """Start to prefetch a prompt from storage; None when the prefetch is refused."""
        return self._call(self._adapter.prefetch, key)

    def check_prefetch(self, ticket: Handle) -> int | None:
        """The number of tokens that a prefetch loaded, or None while the request has to wait."""
        return self._call(self._adapter.check_prefetch, ticket)

    def end_prefetch(self, ticket: Handle) -> int:
        """Wait until nothing is in flight; returns the number of tokens that a prefetch loaded.

        Raises InvariantError when the request would have to wait on (FETCH-3).
        """
        self.drain()
        tokens = self.check_prefetch(ticket)
        if tokens is None:
            raise violation("FETCH-3", "check of a prefetch, with nothing in flight", "a number of tokens", tokens)
        return tokens

    # The life of a request.

    def match(self, key: Key, *, chunked: bool = False) -> MatchResult:
        """Find the longest cached prefix."""
        found = self._call(self._adapter.match, key, chunked=chunked)
        elements = element_count(key, self._config)
        self._kept.require(f"match of {elements} elements", key, len(found.device_indices), elements)
        return found

    def begin(self, key: Key, found: MatchResult, read_early: ReadEarly | None = None) -> ScheduledRequest:
        """Start a request on what a match found: lock it, and load back what only the host has.

        `read_early`: called once such a load was started. What it read counts if the request has as much cached.
        Raises InvariantError when less is loaded than was reported (FLOW-10).
        """
        receipt = self._call(self._adapter.lock, found.device_anchor)
        loaded = self._load(found, read_early)
        if loaded is None:
            slots = found.device_indices
            return ScheduledRequest(key, slots, len(slots), found.device_anchor, receipt, state=None)
        self._call(self._adapter.unlock, receipt)
        slots = np.concatenate((found.device_indices, loaded[0]))
        return ScheduledRequest(key, slots, len(slots), found.best_match, loaded[1], state=None)

    def grow(self, request: ScheduledRequest, tokens: int) -> bool:
        """Allocate the pages that a request of `tokens` tokens lacks; False, with no effect, when they do not fit."""
        missing = tokens - len(request.table)
        missing += -missing % self._config.page_size
        self._takes({Component.FULL: missing, Component.SWA: missing})
        slots = self.fit(lambda: self._call(self._adapter.allocate, missing))
        if slots is not None:
            request.table = np.concatenate((request.table, slots))
        return slots is not None

    def take_state(self, request: ScheduledRequest) -> bool:
        """Give a request a state of its own, a copy of that of its cached prefix; False when none is free."""
        self._takes({Component.MAMBA: 1})
        if request.cached_tokens:
            request.state = self.fit(lambda: self._call(self._adapter.fork_state, request.node))
        else:
            request.state = self.fit(lambda: self._call(self._adapter.allocate_state))
        return request.state is not None

    def insert(
        self, request: ScheduledRequest, end: int, write_state: Callable[[Key, int], None]
    ) -> InsertResult | None:
        """Insert the first `end` elements of a request, use the slots that the tree kept, and move the lock there.

        A cache of states gets one that `write_state` writes; None, with no effect, when no state is free for it. Raises
        InvariantError when a match does not find what was inserted (REQ-4).
        """
        key, state = cut(request.key, end, self._config), None
        if self._has_states:
            self._takes({Component.MAMBA: 1})
            state = self.fit(lambda: self._call(self._adapter.allocate_state))
            if state is None:
                return None
            write_state(key, state)
        result = self._call(
            self._adapter.insert,
            key,
            request.table[:end],
            shared=request.cached_tokens,
            window_start=0,
            state=state,
            priority=0,
        )
        if state is not None and not result.state_adopted:
            self._adapter.free_state(state)
        self._kept.inserted(key, result.accepted_length)
        kept = self.match(key, chunked=True).device_indices
        if not len(kept) == result.accepted_length == end:
            raise violation("REQ-4", f"match after the insert of {end} tokens", end, (len(kept), result))
        receipt = self._call(self._adapter.lock, result.node)
        self._call(self._adapter.unlock, request.receipt)
        request.node, request.receipt, request.cached_tokens = result.node, receipt, end
        request.table = np.concatenate((kept, request.table[end:]))
        return result

    def release(self, request: ScheduledRequest) -> None:
        """End a request at any point: unlock its prefix, and free what is not in the tree."""
        self._call(self._adapter.unlock, request.receipt)
        if len(request.own_slots()):
            self._call(self._adapter.free, request.own_slots())
        if request.state is not None:
            self._adapter.free_state(request.state)

    def release_oldest(self) -> None:
        """Release the oldest of the computed requests."""
        self.release(self.computed.popleft())

    def held_slots(self) -> Slots:
        """The FULL slots that the computed requests own."""
        return np.concatenate([NO_SLOTS, *(request.own_slots() for request in self.computed)])

    def fit(self, take: Callable[[], R | None]) -> R | None:
        """Take slots; while there are none, wait for transfers and release computed requests, oldest first."""
        taken = take()
        if taken is None and self._config.host is not None:
            # Nodes are pinned while they are backed up or loaded.
            self.drain()
            taken = take()
        while taken is None and self.computed:
            self.release_oldest()
            taken = take()
        return taken

    def _takes(self, slots: Mapping[str, int]) -> None:
        """A verb is about to take so many slots of each component."""
        self._kept.look()
        self._kept.takes(slots)

    def _load(self, found: MatchResult, read_early: ReadEarly | None) -> tuple[Slots, Handle] | None:
        """Load back from the host past the device anchor: the slots, and the receipt of the lock on the last node."""
        if self._config.host is None or not (found.host_hit_length or any(found.component_host_hit_lengths.values())):
            return None
        # The data to load must stay on the host while requests are released to make free slots.
        pinned = self._call(self._adapter.lock_host, found.best_match)
        self._takes({Component.FULL: found.host_hit_length, **found.component_host_hit_lengths})
        load = self.fit(lambda: self._call(self._adapter.load_back, found.best_match, quota=None))
        self._call(self._adapter.unlock_host, pinned)
        if load is None:
            return None
        if read_early is not None:
            self.step()
            read_early(np.concatenate((found.device_indices, load.indices)), load.ticket)
        self.drain()
        phase = self._adapter.load_phase(load.ticket)
        if phase is not TransferPhase.DONE:
            if not self._loads_may_fail:
                raise violation("FLOW-10", "a load, with nothing in flight", TransferPhase.DONE.value, phase.value)
            self._call(self._adapter.claim, load.ticket)
            return None
        # The claim releases the lock of the ticket.
        receipt = self._call(self._adapter.lock, found.best_match)
        slots = self._call(self._adapter.claim, load.ticket)
        if slots is None or len(slots) < found.host_hit_length:
            delivered = None if slots is None else f"{len(slots)} slots"
            raise violation("FLOW-10", "claim of a load", f"{found.host_hit_length} slots or more", delivered)
        return slots, receipt
