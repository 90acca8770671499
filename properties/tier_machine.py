"""TierMachine: the base of the machines of two tiers: transfers that advance, end or fail, evictions, and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar, TypeVar

from hypothesis import event
from hypothesis import strategies as st

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability, Pending
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Event, EventKind, Namespace, Tier, TransferKind

from .machine import CacheMachine
from .situation import Situation, situations_of
from .small_caches import with_hosts
from .write_policy_oracle import WritePolicyOracle

Item = TypeVar("Item")

PLACE = st.integers(0, 5)
"""Selects one of several items, modulo their number: the number depends on the timing of transfers, a draw must not."""

TIER = st.sampled_from([Tier.DEVICE, Tier.HOST])

COMPONENT = st.sampled_from([component.value for component in Component])

EVICTED_PAGES = st.sampled_from([1, 2, 3, 8])

FAILING = st.sampled_from([0, 0, 0, 1, 2])
"""How many of the transfers that an eviction waits for fail."""

ROUNDS = 12
"""Evictions of both tiers after which the cache must be empty."""


class Action(str, Enum):
    """What happens to transfers, or to a caller that waits for one."""

    STEP = "a step takes over what has ended, and starts what is queued"
    ADVANCE = "one transfer moves a layer"
    COMPLETE = "one transfer completes"
    REVERSE = "all transfers start and complete, the youngest first, without another step"
    FAIL = "one transfer fails"
    DRAIN = "a drain ends all transfers"
    CLAIM = "a caller that waits for a load claims it if it has ended"
    ABANDON = "a caller that waits for a load abandons it"


DrawnAction = tuple[Action, int, int]
"""An action, the transfer or caller that it concerns, and the parts that are done if it is a failure."""

DRAWN_ACTION = st.tuples(st.sampled_from([*Action, Action.STEP, Action.STEP]), PLACE, st.integers(0, 3))

ACTIONS = st.lists(DRAWN_ACTION, min_size=1, max_size=4)

SOON = st.lists(DRAWN_ACTION, max_size=3)
"""Actions right after a verb: left to the other rules, most transfers would not move before the run ends."""


class TierMachine(CacheMachine):
    """Moves transfers, and evicts on both tiers, each checked by the oracles. A subclass has the rules.

    `met`: the situations that the examples of a run reached.
    """

    executor: ClassVar[ExecutorKind]
    met: ClassVar[Counter[Situation]]

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        return with_hosts(super().caches(), self.executor)

    def opened(self, data: st.DataObject) -> None:
        assert self.config.host is not None, "this machine opens caches of two tiers"
        self.host = self.config.host
        self.events = EventReplay(self.config.page_size)
        self.begin_epoch()

    # Verbs. They are few, with many arguments: Hypothesis leaves some rules out of each run, and the situations that a
    # run must reach need several of them.

    def pass_time(self, actions: list[DrawnAction]) -> None:
        """Transfers advance, complete or fail, and callers that wait for loads claim or abandon them."""
        for action, place, parts in actions:
            self._pass(action, place, parts)

    def evict(self, tier: Tier, component: str, pages: int, failing: int) -> None:
        """Evict on a tier. `failing`: so many of the transfers that the eviction waits for fail."""
        name = component if component in self.components else Component.FULL.value
        if failing:
            self.fail_waits(failing)
        if tier is Tier.DEVICE:
            self._evict(name, self.slots_of(name, pages))
        else:
            self._evict_host(name, self.slots_of(name, pages))

    def step(self) -> None:
        """One step: it takes over what has ended, and starts what is queued."""
        self.driver.step()
        self.sync()

    def drain(self) -> None:
        """Drain: every transfer ends."""
        self.fail_waits(0)
        self.driver.drain()
        self.sync()
        self.write_policy.require_copies(self.driver.snapshot())

    # Hooks for subclasses.

    def begin_epoch(self) -> None:
        """The cache is empty, after its opening, a reset or a restart."""
        is_counted = Capability.COUNTERS in self.adapter_type.capabilities
        refusals = (lambda: self.adapter.counters()["backups_refused"]) if is_counted else None
        self.write_policy = WritePolicyOracle(self.host, refusals)

    def drop_device_copy(self) -> None:
        """Drain, and evict the device: what has a copy is then on the host alone, unless it is locked."""
        self.drain()
        self.evict(Tier.DEVICE, Component.FULL, 8, 0)

    def check_waiting(self, place: int) -> None:
        """A caller that waits for a load claims it if it has ended."""

    def abandon_waiting(self, place: int) -> None:
        """A caller that waits for a load abandons it."""

    def fail_waits(self, count: int) -> None:
        """Let so many of the next transfers fail that the cache waits for, if its executor is stepped."""
        if self.executor is ExecutorKind.STEPPED:
            self.adapter.fail_waits(count)
        if count:
            self.write_policy.failed()

    def moved(self, one: Pending) -> None:
        """A transfer moved."""

    def load_failed(self) -> None:
        """A load was made to fail."""

    def evicted(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """The device evicted."""

    def evicted_from_host(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        """The host evicted."""

    def record(self, situation: Situation) -> None:
        """Record that the run reached a situation."""
        self.met[situation] += 1
        event(situation.value)

    def observe(self, snapshot: Snapshot) -> None:
        super().observe(snapshot)
        self.write_policy.observe(snapshot, self.model.held[Tier.HOST])
        if self.config.events:
            self.events.observe(self.adapter.events(), snapshot)
        if self.write_policy.is_refused:
            self.record(Situation.BACKUP_REFUSED)
        for situation in set(situations_of(snapshot)):
            self.record(situation)

    def require_room(self, request: str, is_granted: bool, has_room: bool) -> None:
        """As in the base; but with write_back an allocation may fail, since a victim without a copy may stay."""
        may_stay = self.host.write_policy is WritePolicy.WRITE_BACK
        assert is_granted == has_room or (may_stay and not is_granted), f"POOL-3: {request}"

    def require_nothing_held(self) -> None:
        """FLOW-7: after a drain nothing is locked, under way or kept for readers, and both tiers can be evicted.

        To be called when everything was released.
        """
        self.drain()
        snapshot = self.driver.snapshot()
        assert snapshot.host is not None, "a machine of two tiers sees both"
        views: list[NodeView | HostNodeView] = [*snapshot.nodes, *snapshot.host.nodes]
        locked = [view.locks for view in views if any(view.locks.values())]
        assert not locked, f"FLOW-7: everything was released: expected no locks, got {locked}"
        left = [*snapshot.host.transfers, *(slots for slots in snapshot.host.kept.values() if len(slots))]
        assert not left, f"FLOW-7: expected no transfers and no slots kept for readers, got {left}"
        self._empty()

    # Internal.

    def _pass(self, action: Action, place: int, parts: int) -> None:
        if action is Action.DRAIN:
            self.drain()
        elif action is Action.CLAIM:
            self.check_waiting(place)
        elif action is Action.ABANDON:
            self.abandon_waiting(place)
        elif action is Action.STEP or self.executor is not ExecutorKind.STEPPED:
            self.step()
        elif action is Action.ADVANCE:
            self._move(place, lambda one: self.driver.advance(one.ticket))
        elif action is Action.REVERSE:
            self._reverse()
        elif action is Action.COMPLETE:
            self._move(place, lambda one: self.driver.complete(one.ticket))
        else:
            self._fail(place, parts)

    def _reverse(self) -> None:
        self.step()
        while self.driver.pending(*TransferKind):
            self._move(-1, lambda one: self.driver.complete(one.ticket))

    def _fail(self, place: int, parts: int) -> None:
        one = self._move(place, lambda one: self.driver.fail(one.ticket, parts % one.parts))
        if one is not None and one.kind is TransferKind.LOAD:
            self.load_failed()
        elif one is not None:
            self.write_policy.failed()
            self.record(Situation.BACKUP_FAILED)

    def _evict(self, component: str, tokens: int) -> None:
        before = self.driver.snapshot()
        result = self.driver.evict(component, tokens)
        after = self.driver.snapshot()
        self.write_policy.require_demotion(before, after)
        if self.write_policy.keeps_all(before):
            lost = self.model.gone(after)
            assert not lost + [result] * result.refused, (
                f"FLOW-8: the host has room for all: expected nothing lost or refused, got {result}, lost {lost}"
            )
        self.sync()
        self.evicted(component, tokens, before, after)
        if result.refused:
            self.record(Situation.EVICTION_REFUSED)

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
            return  # nodes without room on the host may stay
        snapshot = self.driver.snapshot()
        assert snapshot.host is not None, "a machine of two tiers sees both"
        for where, pools in (("device", snapshot.pools), ("host", snapshot.host.pools)):
            for component, pool in pools.items():
                free = len(pool.free)
                assert free == pool.capacity, (
                    f"FLOW-7: expected {pool.capacity} free {component} slots on the {where}, got {free}"
                )

    def _evict_all(self) -> None:
        """Evict both tiers. A node that cannot be backed up is dropped when its host copy is gone."""
        self.driver.evict(Component.FULL, self.config.capacity_tokens[Component.FULL])
        self.driver.evict_host(Component.FULL, self.host.capacity_tokens[Component.FULL])
        self.sync()

    def _move(self, place: int, call: Callable[[Pending], None]) -> Pending | None:
        """Move one transfer. Nothing becomes resident before a step takes it over (FLOW-2)."""
        if not self.driver.pending(*TransferKind):
            self.step()
        before = self.driver.pending(*TransferKind)
        one = pick(before, place)
        if one is None:
            return None
        call(one)
        differences = self.model.differences(self.driver.snapshot())
        assert not differences, f"FLOW-2: {one} moved and no step took it over: expected no change, got {differences}"
        pending = [other.ticket for other in self.driver.pending(*TransferKind)]
        older = [other.ticket for other in before[: before.index(one)] if other.kind is one.kind]
        if one.ticket not in pending and any(ticket in pending for ticket in older):
            self.record(Situation.OUT_OF_ORDER)
        self.moved(one)
        return one


def pick(items: Sequence[Item], place: int) -> Item | None:
    """The item at a place, modulo the number of items; None if there are none."""
    return items[place % len(items)] if items else None


Holder = tuple[Tier, str]
"""A component on a tier."""


class EventReplay:
    """The blocks on each tier, by the events so far."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._present: set[tuple[Holder, Namespace, str]] = set()
        self._seen = 0

    def observe(self, events: Sequence[Event], snapshot: Snapshot) -> None:
        """Apply the new events. No block is stored twice, and the log adds up to what the snapshot shows (EVENT-1)."""
        for change in events[self._seen :]:
            # Storage keeps blocks that are no longer in the tree: a snapshot cannot confirm them.
            if change.tier is not Tier.STORAGE:
                self._apply(change)
        self._seen = len(events)
        replayed = Counter(holder for holder, _, _ in self._present)
        held = self._held(snapshot)
        assert replayed == held, f"EVENT-1: expected the events to add up to {dict(held)} pages, got {dict(replayed)}"

    def _apply(self, change: Event) -> None:
        blocks = {((change.tier, change.component), change.namespace, block) for block in change.blocks}
        if change.kind is EventKind.STORED:
            assert not blocks & self._present, f"EVENT-1: stored twice: {change}"
            self._present |= blocks
        else:
            assert blocks <= self._present, f"EVENT-1: removed before it was stored: {change}"
            self._present -= blocks

    def _held(self, snapshot: Snapshot) -> Counter[Holder]:
        """The pages of each component on each tier."""
        held: Counter[Holder] = Counter()
        views: dict[Tier, Sequence[NodeView | HostNodeView]] = {Tier.DEVICE: snapshot.nodes}
        if snapshot.host is not None:
            views[Tier.HOST] = snapshot.host.nodes
        for tier, nodes in views.items():
            for component, slots in [pair for node in nodes for pair in node.slots.items()]:
                if slots is not None:
                    held[tier, component] += 1 if component == Component.MAMBA else len(slots) // self._page_size
        return held
