"""HostMachine: calls the verbs of a scheduler in any order on two tiers, and compares the answers with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability, Pending
from hicache.testing.driving.prompts import cut
from hicache.testing.models.tree import ExpectedInsert, ExpectedMatch
from hicache.testing.snapshot import Snapshot
from hicache.types import (
    NO_SLOTS,
    SHARED,
    Component,
    Handle,
    Key,
    MatchResult,
    Namespace,
    Slots,
    Tier,
    TransferKind,
    TransferPhase,
)

from .eviction_oracle import require_host_victims, require_victims
from .loads import ExpectedLoad, LoadTickets, loads_of, new_targets, require_answer
from .situation import Situation
from .small_caches import NAMESPACE, PAGES, PRIORITY, TAIL, USED
from .tier_machine import (
    ACTIONS,
    COMPONENT,
    EVICTED_PAGES,
    FAILING,
    PLACE,
    SOON,
    TIER,
    DrawnAction,
    TierMachine,
    pick,
)
from .uses import UseLog, hits_by_page, require_hits

FULL = Component.FULL.value

Prompt = tuple[list[int], Namespace]
"""The whole pages of a prompt by number, and its namespace."""

FIRST_PAGES = st.integers(1, 6)
"""How many pages of an earlier prompt."""

PASSED = st.integers(0, 6)
"""Pages before the window of a request."""

QUOTA = st.sampled_from([None, None, None, 1, 0])
"""The most pages that a load may bring; None: any number."""


class Hold(str, Enum):
    """What a caller may hold."""

    READER = "a prefix on the device, locked"
    HOST_READER = "a prefix on the host, locked"
    SLOTS = "slots"
    STATE = "a slot for a state"


HOLD = st.sampled_from(Hold)


class HostMachine(TierMachine):
    """The verbs of a scheduler over two tiers, each compared with the oracle.

    The cache is used before the first rule. `prompts`: the prompts so far. `tickets`: of loads. `readers`,
    `host_receipts`: receipts of locks. `held`: frees what a caller allocated. `stale`: calls that must be refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Prompt] = []
        self.tickets = LoadTickets()
        self.readers: list[Handle] = []
        self.host_receipts: list[Handle] = []
        self.held: list[Callable[[], None]] = []
        self.stale: list[Callable[[], object]] = []

    def opened(self, data: st.DataObject) -> None:
        super().opened(data)
        self.use(data.draw(USED, label="prompts that came before"))
        self.evict(Tier.DEVICE, FULL, data.draw(st.sampled_from([8, 1, 2, 0]), label="pages evicted since"), 0)

    # Rules of transfers and evictions: those of TierMachine.

    pass_time = rule(actions=ACTIONS)(TierMachine.pass_time)
    evict = rule(tier=TIER, component=COMPONENT, pages=EVICTED_PAGES, failing=FAILING)(TierMachine.evict)

    # Match and insert.

    @rule(place=PLACE, pages=FIRST_PAGES, chunked=st.booleans(), stepping=st.booleans())
    def match(self, place: int, pages: int, chunked: bool, stepping: bool) -> None:
        """A match finds what the oracle expects on each tier. The next step may queue backups of what it used."""
        key = self.earlier(place, pages)
        found, _ = self.find(key, chunked=chunked)
        if stepping:
            self.step()
        if stepping and not chunked:
            anchor = self.prefix(key, len(found.device_indices))
            self.write_policy.used(key.namespace, anchor, self.driver.snapshot())

    @rule(
        pages=PAGES,
        tail=TAIL,
        namespace=NAMESPACE,
        passed=PASSED,
        with_state=st.booleans(),
        priority=PRIORITY,
        soon=SOON,
    )
    def put(
        self,
        pages: list[int],
        tail: int,
        namespace: Namespace,
        passed: int,
        with_state: bool,
        priority: int,
        soon: list[DrawnAction],
    ) -> None:
        """A prompt is computed and inserted, if there is room for it. `passed`: pages before the request's window."""
        self.prompts.append((pages, namespace))
        self._put(self.key(pages, tail, namespace), passed, with_state, priority)
        self.pass_time(soon)

    @rule(place=PLACE, pages=FIRST_PAGES, passed=PASSED, with_state=st.booleans(), priority=PRIORITY)
    def put_again(self, place: int, pages: int, passed: int, with_state: bool, priority: int) -> None:
        """An earlier prompt is computed and inserted again."""
        self._put(self.earlier(place, pages), passed, with_state, priority)

    @rule(place=PLACE, kept=FIRST_PAGES, pages=PAGES, passed=PASSED, with_state=st.booleans(), priority=PRIORITY)
    def put_unmatched(
        self, place: int, kept: int, pages: list[int], passed: int, with_state: bool, priority: int
    ) -> None:
        """A prompt is computed in full, as if nothing of it were cached, and inserted without a match before.

        It has the first `kept` pages of an earlier prompt, and then others.
        """
        earlier, namespace = pick(self.prompts, place) or ([], SHARED)
        self.prompts.append(([*earlier[:kept], *pages][:6], namespace))
        key = self.key(self.prompts[-1][0], 0, namespace)
        fresh = self.take_slots(self.driver.aligned(key))
        if fresh is not None:
            self._insert(key, NO_SLOTS, fresh, self.pass_window(passed, 0, fresh), with_state, priority)

    def use(self, prompts: Sequence[Prompt]) -> None:
        """Insert prompts, match them as often as the write policy needs for a backup, and drain."""
        is_selective = self.host.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        for pages, namespace in prompts:
            self.prompts.append((pages, namespace))
            key = self.key(pages, 0, namespace)
            self._put(key, 0, with_state=True, priority=0)
            for _ in range(self.host.selective_hits if is_selective else 0):
                self.find(key)
        self.drain()

    def earlier(self, place: int, pages: int) -> Key:
        """The key of an earlier prompt, cut to so many pages."""
        earlier, namespace = pick(self.prompts, place) or ([], SHARED)
        return self.key(earlier[:pages], 0, namespace)

    def find(self, key: Key, *, chunked: bool = False) -> tuple[MatchResult, ExpectedMatch]:
        """Match a key. The match finds what the oracle expects, and changes only recency and hits."""
        expected = self.model.expected_match(key)
        reported, before = self.reported(), hits_by_page(self.driver.snapshot(), self.config.page_size)
        found = self.driver.match(key, chunked=chunked)
        after = self.driver.snapshot()
        anchor = len(found.device_indices)
        hits = {FULL: found.host_hit_length, **found.component_host_hit_lengths}
        assert anchor == expected.anchor, f"MATCH-5: expected the anchor at {expected.anchor} elements, got {anchor}"
        # A hit that is too long ends where some component does not validate it.
        clause_id = "MATCH-1" if hits[FULL] > expected.host_hits[FULL] else "MATCH-12"
        assert hits == expected.host_hits or self.departs("MATCH-12"), (
            f"{clause_id}: expected host hits {expected.host_hits}, got {hits}"
        )
        self.require_branching(key, found)
        self.require_refused(key, found)
        on_host, pages = expected.host_hits[FULL], self.driver.aligned(key)
        counts = {"match_device": expected.best - on_host, "match_host": on_host, "match_none": pages - expected.best}
        counts |= {f"refused_{name}": tokens for name, tokens in found.tokens_refused.items()}
        self.require_counted(reported, dict.fromkeys(counts, 0) if chunked else counts)
        assert self.model.agrees(after), (
            f"MATCH-9: expected no data to move in a match, got {self.model.differences(after)}"
        )
        best = (key.namespace, self.prefix(key, expected.best))
        require_hits(before, hits_by_page(after, self.config.page_size), None if chunked else best)
        self.uses.matched(*best, after, is_hit=not chunked)
        return found, expected

    def _put(self, key: Key, passed: int, with_state: bool, priority: int) -> None:
        found, _ = self.find(key)
        shared = len(found.device_indices)
        receipt = self.driver.lock(found.device_anchor)
        fresh = self.take_slots(self.driver.aligned(key) - shared)
        if fresh is not None:
            window_start = self.pass_window(passed, shared, fresh)
            self._insert(key, found.device_indices, fresh, window_start, with_state, priority)
        self.driver.unlock(receipt)
        self.sync()

    def _insert(
        self, key: Key, shared: Slots, fresh: Slots, window_start: int, with_state: bool, priority: int
    ) -> None:
        self.driver.write(key, fresh, len(shared))
        state = self.state_of(key) if with_state else None
        expected = self.model.insert(key, shared=len(shared), window_start=window_start, state=state is not None)
        slots = np.concatenate((shared, fresh))
        result = self.driver.insert(
            key, slots, shared=len(shared), window_start=window_start, state=state, priority=priority
        )
        if state is None and Component.MAMBA in self.components and self.departs("INS-3"):
            self.sync()
            return
        actual = ExpectedInsert(result.prefix_length, result.accepted_length, result.state_adopted)
        assert actual == expected, f"INS-1: expected the answer {expected}, got {actual}"
        snapshot = self.driver.snapshot()
        if result.state_adopted:
            self.cap_states(key, snapshot)
        lacking = self.model.lacking(snapshot, key)
        assert not lacking, f"INS-3: expected all data of the insert to be cached, lacking: {lacking}"
        self.sync()
        prefix = self.prefix(key, self.driver.aligned(key))
        self.uses.inserted(key.namespace, prefix, snapshot, priority)
        self.write_policy.used(key.namespace, prefix, snapshot)
        if state is not None and not result.state_adopted:
            self.driver.free_state(state)

    # Load. Each load delivers what its match found, exactly once.

    @rule(place=PLACE, pages=FIRST_PAGES, quota=QUOTA, pressure=st.booleans(), soon=SOON)
    def load_back(self, place: int, pages: int, quota: int | None, pressure: bool, soon: list[DrawnAction]) -> None:
        """A caller requests a load of a prompt. `pressure`: the device evicts first."""
        if pressure:
            self.evict(Tier.DEVICE, FULL, 8, 0)
        if not self._loadable(pages):
            self.drop_device_copy()
        key = pick(self._loadable(pages), place) or self.earlier(place, pages)
        found, expected = self.find(key)
        tokens = None if quota is None else quota * self.config.page_size
        before = self.driver.snapshot()
        load = self.driver.load_back(key, found, quota=tokens)
        self.sync()
        require_answer(load, expected, tokens, before, self.host)
        if load is None:
            self.record(Situation.LOAD_REFUSED)
            return
        self.tickets.granted(load.ticket, found.best_match, cut(key, expected.best, self.config), load.indices)
        self._overwrite_targets(before, expected)
        self.pass_time(soon)

    def claim(self, ticket: ExpectedLoad) -> None:
        """Claim a load that has ended. A load fails only if a transfer was made to fail."""
        if self.driver.load_phase(ticket.ticket) is TransferPhase.DONE:
            self._take_over(ticket)
            self.record(Situation.LOAD_DELIVERED)
        else:
            assert ticket.may_fail, (
                f"FLOW-10: no transfer failed: expected the load of {ticket.key} to be done, but it failed"
            )
            self.driver.claim(ticket.ticket)
            self.record(Situation.LOAD_FAILED)
        self.sync()
        self.forget(ticket)

    def abandon(self, ticket: ExpectedLoad) -> None:
        """Abandon a load."""
        if not self.driver.load_phase(ticket.ticket).has_ended:
            self.record(Situation.LOAD_ABANDONED)
        self.driver.abandon(ticket.ticket)
        self.sync()
        self.forget(ticket)

    def forget(self, ticket: ExpectedLoad) -> None:
        """The ticket was claimed or abandoned, or a reset came: from now on it is refused (FLOW-4)."""
        self.tickets.waiting.remove(ticket)
        verbs = (self.adapter.claim, self.adapter.abandon, self.adapter.load_phase)
        self.stale += [partial(verb, ticket.ticket) for verb in verbs]

    def _loadable(self, pages: int) -> list[Key]:
        """The earlier prompts that have data on the host alone."""
        keys = [self.earlier(other, pages) for other in range(len(self.prompts))]
        return [key for key in keys if any(self.model.expected_match(key).host_hits.values())]

    def _overwrite_targets(self, before: Snapshot, expected: ExpectedMatch) -> None:
        """Corrupt the slots that the load will fill: only a copy makes them valid."""
        self.record(Situation.LOAD if expected.host_hits[FULL] else Situation.LOAD_OF_OTHERS)
        after = self.driver.snapshot()
        for component in self.components:
            begun = new_targets(before, after, component)
            self.driver.contents.overwrite(component, begun)
            if len(begun) < expected.host_hits[component]:
                self.record(Situation.LOAD_SHARED)

    def _take_over(self, ticket: ExpectedLoad) -> None:
        """FLOW-10: the promised data is protected until it is locked, and is at the slots that the claim returns."""
        self.readers.append(self.driver.lock(ticket.node))
        found, _ = self.find(ticket.key)
        promised = self.driver.aligned(ticket.key)
        matched = len(found.device_indices)
        assert matched == promised, f"FLOW-10: expected the {promised} promised elements on the device, got {matched}"
        claimed = self.driver.claim(ticket.ticket)
        expected = found.device_indices[promised - len(ticket.indices) :]
        assert claimed is not None, "FLOW-4: the load is done: expected slots from its claim, got None"
        assert claimed.tolist() == expected.tolist(), (
            f"FLOW-10: expected the claim to return the tree's slots {expected}, got {claimed}"
        )

    # Lock, allocate, reset.

    @rule(hold=HOLD, place=PLACE, pages=FIRST_PAGES)
    def hold(self, hold: Hold, place: int, pages: int) -> None:
        """A caller locks what it found on a tier, or allocates slots or a state."""
        if hold is Hold.READER:
            self._read(self.earlier(place, pages))
        elif hold is Hold.HOST_READER:
            found, _ = self.find(self.earlier(place, pages))
            self.host_receipts.append(self.driver.lock_host(found.best_match))
        elif hold is Hold.SLOTS and (slots := self.take_slots(pages * self.config.page_size)) is not None:
            self.held.append(partial(self.driver.free, slots))
        elif hold is Hold.STATE and Component.MAMBA in self.components and (state := self.take_state()) is not None:
            self.held.append(partial(self.driver.free_state, state))
        self.sync()

    @rule(hold=HOLD, place=PLACE, is_early=st.booleans())
    def let_go(self, hold: Hold, place: int, is_early: bool) -> None:
        """A caller releases a lock, or its window alone, or frees what it allocated."""
        if hold is Hold.READER and self.readers and is_early and self.can(Component.SWA, Capability.EARLY_UNLOCK):
            # It may have been released before: then nothing changes.
            self.readers.append(self.driver.unlock_window(self.readers.pop(place % len(self.readers))))
            self.sync()
        elif hold is Hold.READER and self.readers:
            self._unlock(self.readers.pop(place % len(self.readers)), Tier.DEVICE)
        elif hold is Hold.HOST_READER and self.host_receipts:
            self._unlock(self.host_receipts.pop(place % len(self.host_receipts)), Tier.HOST)
        elif hold in (Hold.SLOTS, Hold.STATE) and self.held:
            self.held.pop(place % len(self.held))()

    @rule(prompts=USED)
    def reset(self, prompts: list[Prompt]) -> None:
        """Both tiers are emptied, and the cache is used anew. Receipts, tickets and handles from before are refused."""
        if Capability.RESET not in self.adapter_type.capabilities:
            return
        snapshot = self.driver.snapshot()
        if snapshot.host is not None and snapshot.host.transfers:
            self.record(Situation.RESET)
        self.fail_waits(0)
        self.driver.reset()
        self.stale += [partial(self.adapter.unlock, receipt) for receipt in self.readers]
        self.stale += [partial(self.adapter.unlock_host, receipt) for receipt in self.host_receipts]
        for ticket in list(self.tickets.waiting):
            self.forget(ticket)
            self.stale.append(partial(self.adapter.load_back, ticket.node, quota=None))
        self.readers, self.host_receipts, self.tickets = [], [], LoadTickets()
        self.begin_epoch()
        self.sync()
        assert not self.driver.snapshot().nodes, "EVICT-9: nothing is left after a reset"
        self.use(prompts)

    @rule(place=PLACE)
    def repeat(self, place: int) -> None:
        """A caller uses a receipt, ticket or handle that is no longer valid."""
        call = pick(self.stale, place)
        if call is not None:
            self.refuses(call)

    def _read(self, key: Key) -> None:
        """Lock a key on the device; also the node on the host alone where it ends, if the cache can."""
        found, expected = self.find(key)
        self.readers.append(self.driver.lock(found.device_anchor))
        if expected.host_hits[FULL] and self.can(FULL, Capability.DEMOTED_LOCKS):
            self.readers.append(self.driver.lock(found.best_match))
        elif expected.host_hits[FULL]:
            self.refuses(partial(self.adapter.lock, found.best_match))

    def _unlock(self, receipt: Handle, tier: Tier) -> None:
        if tier is Tier.DEVICE:
            self.driver.unlock(receipt)
        else:
            self.driver.unlock_host(receipt)
        self.sync()
        self.stale += [partial(verb, receipt) for verb in (self.adapter.unlock, self.adapter.unlock_host)]

    # Overridden hooks.

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.uses = UseLog(self.config, self.driver.adapter.recency_of(self.config))

    def observe(self, snapshot: Snapshot) -> None:
        super().observe(snapshot)
        self.uses.observe(snapshot)
        self.tickets.observe(bool(loads_of(snapshot)))

    def evicted(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        is_copied_first = self.host.write_policy is WritePolicy.WRITE_BACK
        if self.has_known_order(component) and not is_copied_first:
            require_victims(self.uses, before, after, component, tokens)

    def evicted_from_host(self, component: str, tokens: int, before: Snapshot, after: Snapshot) -> None:
        if not self.departs("EVICT-3", "EVICT-4", "EVICT-6", "EVICT-8", "MATCH-10", "MATCH-16"):
            require_host_victims(self.uses, before, after, component, tokens)

    def moved(self, one: Pending) -> None:
        for ticket in self.tickets.waiting if one.kind is TransferKind.LOAD else ():
            ready = self.driver.read_ready_layers(ticket.ticket)
            if any(0 < count < self.adapter.layers(pool) for pool, count in ready.items()):
                self.record(Situation.LAYERS_READ)

    def check_waiting(self, place: int) -> None:
        ticket = pick(self.tickets.waiting, place)
        if ticket is None:
            return
        if self.driver.load_phase(ticket.ticket).has_ended:
            self.claim(ticket)
        else:
            self.refuses(partial(self.adapter.claim, ticket.ticket))

    def abandon_waiting(self, place: int) -> None:
        ticket = pick(self.tickets.waiting, place)
        if ticket is not None:
            self.abandon(ticket)

    def load_failed(self) -> None:
        self.tickets.failed()

    def give_back(self) -> None:
        """Abandon every second load, claim the others after a drain, and release everything that is held."""
        for ticket in self.tickets.waiting[1::2]:
            self.abandon(ticket)
        self.drain()
        for ticket in list(self.tickets.waiting):
            self.claim(ticket)
        for receipt in self.readers:
            self._unlock(receipt, Tier.DEVICE)
        for receipt in self.host_receipts:
            self._unlock(receipt, Tier.HOST)
        for give_back in self.held:
            give_back()
        self.require_nothing_held()
