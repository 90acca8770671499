"""TierMachine: what machines of two tiers share: transfers that go on, end or fail at any moment, and pressure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar, TypeVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.host_verbs import PendingTransfer
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Tier, TransferKind

from .event_replay import EventReplay
from .machine import CacheMachine
from .situation import Situation, situations_of
from .tiny import with_hosts
from .write_promises import WritePromises

Item = TypeVar("Item")

PLACE = st.integers(0, 5)
"""Which one of several, counted round: what there is depends on when transfers end, and what is drawn may not."""

TIER = st.sampled_from([Tier.DEVICE, Tier.HOST])

COMPONENT = st.sampled_from([component.value for component in Component])

ROUNDS = 12
"""Evictions after which nothing may be left."""


class Moment(str, Enum):
    """What happens while time passes."""

    STEP = "what has ended is taken over, and what waits begins"
    ADVANCE = "one moves a layer"
    COMPLETE = "one moves all that is left"
    REVERSE = "all begin and end, the youngest first, and none is taken over"
    FAIL = "one fails"
    DRAIN = "all end, and are taken over"
    CLAIM = "somebody who waits looks how it stands"
    ABANDON = "somebody who waits is gone"


Instant = tuple[Moment, int, int]
"""What happens at once, to which of several, and how many parts of it arrive, where it fails."""

INSTANT = st.tuples(st.sampled_from([*Moment, Moment.STEP, Moment.STEP]), PLACE, st.integers(0, 3))

SOON = st.lists(INSTANT, max_size=3)
"""What happens next: left to chance, most of what was begun would not move before the run is over."""


class TierMachine(CacheMachine):
    """Drives transfers and evictions on both tiers. `met`: the situations that the examples of a run came to."""

    executor: ClassVar[ExecutorKind]
    met: ClassVar[Counter[Situation]]

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        return with_hosts(super().caches(), self.executor)

    def opened(self, data: st.DataObject) -> None:
        assert self.config.host is not None, "this machine opens caches of two tiers"
        self.host = self.config.host
        self.events = EventReplay(self.config.page_size)
        self.begin_life()

    # Rules are few, and say what in their arguments: Hypothesis leaves some rules out of each run, and what a run must
    # meet takes several of them.

    @rule(instants=st.lists(INSTANT, min_size=1, max_size=4))
    def pass_time(self, instants: list[Instant]) -> None:
        """Transfers go on: any of them, as far as anybody likes, to any end; and who waits for them does so or not."""
        for moment, place, parts in instants:
            self._pass(moment, place, parts)

    @rule(tier=TIER, component=COMPONENT, pages=st.sampled_from([1, 2, 3, 8]), failing=st.sampled_from([0, 0, 0, 1, 2]))
    def evict(self, tier: Tier, component: str, pages: int, failing: int) -> None:
        """Room is made on a tier; so many of the transfers that the cache then waits for fail."""
        name = component if component in self.components else Component.FULL.value
        if failing:
            self.fail_waits(failing)
        if tier is Tier.DEVICE:
            self._evict(name, self.slots_of(name, pages))
        else:
            self._evict_host(name, self.slots_of(name, pages))

    def step(self) -> None:
        """What has ended is taken over, and what waits begins."""
        self.driver.step()
        self.sync()

    def drain(self) -> None:
        """All that is under way ends."""
        self.fail_waits(0)
        self.driver.drain()
        self.sync()
        self.promises.require_copies(self.driver.snapshot())

    # For those who inherit.

    def begin_life(self) -> None:
        """The cache is empty, and nothing was promised."""
        is_told = Capability.COUNTERS in self.adapter_type.capabilities
        refusals = (lambda: self.adapter.counters()["backups_refused"]) if is_told else None
        self.promises = WritePromises(self.host, refusals)

    def strand(self) -> None:
        """What was copied is on the host alone from now on, if nobody holds it on the device."""
        self.drain()
        self.evict(Tier.DEVICE, Component.FULL, 8, 0)

    def look_after(self, place: int) -> None:
        """Somebody who waits for a load looks how it stands, and takes over what has come."""

    def give_up(self, place: int) -> None:
        """Somebody who waits for a load is gone."""

    def fail_waits(self, count: int) -> None:
        """So many of the transfers fail that the cache waits for next, where a test may choose so."""
        if self.executor is ExecutorKind.STEPPED:
            self.adapter.fail_waits(count)
        if count:
            self.promises.failed()

    def moved(self, one: PendingTransfer) -> None:
        """A transfer moved."""

    def load_failed(self) -> None:
        """A load was made to fail."""

    def evicted(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """Room was made on the device."""

    def evicted_from_host(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """Room was made on the host."""

    def reached(self, situation: Situation) -> None:
        """The run came to a situation that it was meant to meet."""
        self.met[situation] += 1
        event(situation.value)

    def sync(self) -> None:
        snapshot = self.driver.snapshot()
        self.model.sync(snapshot)
        self.promises.look(snapshot, self.model.held[Tier.HOST])
        if self.config.events:
            self.events.look(self.adapter.events(), snapshot)
        if self.promises.is_refused:
            self.reached(Situation.BACKUP_REFUSED)
        for situation in set(situations_of(snapshot)):
            self.reached(situation)

    def require_room(self, request: str, is_granted: bool, has_room: bool) -> None:
        """The same, but what cannot be backed up may stay."""
        may_stay = self.host.write_policy is WritePolicy.WRITE_BACK
        assert is_granted == has_room or (may_stay and not is_granted), f"POOL-3: {request}"

    def require_nothing_held(self) -> None:
        """FLOW-7: with every queue drained nothing is locked, under way or kept, and all of both tiers can be evicted.

        To be called when everything was given back.
        """
        self.drain()
        snapshot = self.driver.snapshot()
        assert snapshot.host is not None, "a machine of two tiers sees both"
        views: list[NodeView | HostNodeView] = [*snapshot.nodes, *snapshot.host.nodes]
        locked = [view.locks for view in views if any(view.locks.values())]
        assert not locked, f"FLOW-7: everything was given back, locked are {locked}"
        left = [*snapshot.host.transfers, *(slots for slots in snapshot.host.kept.values() if len(slots))]
        assert not left, f"FLOW-7: nothing is under way and nobody waits, left are {left}"
        self._empty()

    # Inside.

    def _pass(self, moment: Moment, place: int, parts: int) -> None:
        if moment is Moment.DRAIN:
            self.drain()
        elif moment is Moment.CLAIM:
            self.look_after(place)
        elif moment is Moment.ABANDON:
            self.give_up(place)
        elif moment is Moment.STEP or self.executor is not ExecutorKind.STEPPED:
            self.step()
        elif moment is Moment.ADVANCE:
            self._move(place, lambda one: self.driver.advance(one.ticket))
        elif moment is Moment.REVERSE:
            self._reverse()
        elif moment is Moment.COMPLETE:
            self._move(place, lambda one: self.driver.complete(one.ticket))
        else:
            self._fail(place, parts)

    def _reverse(self) -> None:
        self.step()
        while self.driver.pending():
            self._move(-1, lambda one: self.driver.complete(one.ticket))

    def _fail(self, place: int, parts: int) -> None:
        one = self._move(place, lambda one: self.driver.fail(one.ticket, parts % one.parts))
        if one is not None and one.kind is TransferKind.LOAD:
            self.load_failed()
        elif one is not None:
            self.promises.failed()
            self.reached(Situation.BACKUP_FAILED)

    def _evict(self, component: str, tokens: int) -> None:
        before = self.driver.snapshot()
        result = self.driver.evict(component, tokens)
        after = self.driver.snapshot()
        self.promises.require_demotion(before, after)
        if self.promises.keeps_all(before):
            lost = self.model.gone(after)
            assert not lost + [result] * result.refused, f"FLOW-8: the host has room for all, {result}: {lost}"
        self.sync()
        self.evicted(component, tokens, before, after)
        if result.refused:
            self.reached(Situation.EVICTION_REFUSED)

    def _evict_host(self, component: str, tokens: int) -> None:
        before = self.driver.snapshot()
        self.driver.evict_host(component, tokens)
        after = self.driver.snapshot()
        self.sync()
        self.evicted_from_host(component, tokens, before, after)

    def _empty(self) -> None:
        for _ in range(ROUNDS):
            self._evict_all()
            if not self.driver.snapshot().nodes:
                break
        if self.departs("EVICT-7"):
            return  # what has no room on the host may stay
        snapshot = self.driver.snapshot()
        assert snapshot.host is not None, "a machine of two tiers sees both"
        for where, pools in (("device", snapshot.pools), ("host", snapshot.host.pools)):
            for component, pool in pools.items():
                free = len(pool.free)
                assert free == pool.capacity, f"FLOW-7: {free} of {pool.capacity} {component} slots free on the {where}"

    def _evict_all(self) -> None:
        """A node that is too large for the host, or that failed too often, goes when nothing else is left of it."""
        self.driver.evict(Component.FULL, self.config.capacity_tokens[Component.FULL])
        self.driver.evict_host(Component.FULL, self.host.capacity_tokens[Component.FULL])
        self.sync()

    def _move(self, place: int, act: Callable[[PendingTransfer], None]) -> PendingTransfer | None:
        """Move one transfer. Bytes may be there, but nothing is resident before it is taken over (FLOW-2)."""
        if not self.driver.pending():
            self.step()
        before = self.driver.pending()
        one = pick(before, place)
        if one is None:
            return None
        act(one)
        differences = self.model.differences(self.driver.snapshot())
        assert not differences, f"FLOW-2: {one} moved, and was not taken over: {differences}"
        pending = [other.ticket for other in self.driver.pending()]
        older = [other.ticket for other in before[: before.index(one)] if other.kind is one.kind]
        if one.ticket not in pending and any(ticket in pending for ticket in older):
            self.reached(Situation.OUT_OF_ORDER)
        self.moved(one)
        return one


def pick(items: Sequence[Item], place: int) -> Item | None:
    """One of some items, counted round; None when there is none."""
    return items[place % len(items)] if items else None
