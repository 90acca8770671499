"""HostTierVerbs: the scheduler's use of the host tier: evict, lock and load back."""

from __future__ import annotations

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.base import DriverBase
from hicache.testing.driving.open_load import OpenLoad
from hicache.testing.driving.prompts import aligned_count, cut
from hicache.testing.laws.candidates import host_candidates
from hicache.testing.laws.conservation import require_pages
from hicache.testing.patterns import element_bytes, elements_of
from hicache.testing.snapshot import Snapshot, TransferView
from hicache.testing.violation import violation
from hicache.types import (
    Component,
    EvictResult,
    Handle,
    Key,
    LoadBack,
    MatchResult,
    Slots,
    Tier,
    TransferKind,
    TransferPhase,
)


class HostTierVerbs(DriverBase):
    """Evicts and locks on the host, and loads back from it. Checks the bytes that a load delivers."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        super().__init__(adapter, config)
        self._host_receipts: list[tuple[Handle, int, int]] = []
        self._has_states = Component.MAMBA in config.components

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        """Free `tokens` of a component's host slots or more, or all evictable ones; check the result."""
        before = self.sizes(Tier.HOST)
        result = self.adapter.evict_host(component, tokens)
        gained = {name: sizes.free - before[name].free for name, sizes in self.sizes(Tier.HOST).items()}
        place = f"evict_host({component}, {tokens})"
        if any(result.freed[name] != count for name, count in gained.items()):
            raise violation("EVICT-1", place, f"freed counts equal to the growth of the host pools, {gained}", result)
        has_own_rule = "EVICT-8" in self.adapter.departures
        left = host_candidates(self.snapshot(), component) if self.has_snapshot and not has_own_rule else []
        if left and result.freed[component] < tokens:
            raise violation("EVICT-8", place, f"more freed, as nodes {left} can still be evicted", result)
        self.verb_done()
        return result

    def lock_host(self, handle: Handle) -> Handle:
        """Lock a node and its host data; returns the receipt."""
        receipt = self.adapter.lock_host(handle)
        self._host_receipts.append((receipt, self.locks.acquire(), self.host_locks.acquire()))
        self.verb_done()
        return receipt

    def unlock_host(self, receipt: Handle) -> None:
        """Release the lock of `lock_host`."""
        self.adapter.unlock_host(receipt)
        index = next((index for index, (known, _, _) in enumerate(self._host_receipts) if known is receipt), None)
        if index is None:
            raise violation("LOCK-6", "unlock_host", "an error, as the receipt is not outstanding", receipt)
        _, owner, host_owner = self._host_receipts.pop(index)
        self.locks.release(owner)
        self.host_locks.release(host_owner)
        self.verb_done()

    def load_back(self, key: Key, found: MatchResult, *, quota: int | None = None) -> LoadBack | None:
        """Load to the device what a match of the key found on the host; None when the load is refused."""
        self.overwrite_free_slots()
        known = len(self._loads_in_flight())
        load = self.adapter.load_back(found.best_match, quota=quota)
        if load is not None:
            self.loads[id(load.ticket)] = self._loading(key, found, load)
        elif len(self._loads_in_flight()) != known:
            raise violation("HOST-5", "a refused load", f"{known} loads in flight", len(self._loads_in_flight()))
        self.verb_done()
        return load

    def load_phase(self, ticket: Handle) -> TransferPhase:
        """The phase of a load; check that it never goes back and ends only once."""
        load = self.loads[id(ticket)]
        load.record_phase(self.adapter.load_phase(ticket))
        return load.phase

    def claim(self, ticket: Handle) -> Slots | None:
        """Finish a load that has ended and check the bytes of the whole prefix; None when the load failed.

        The load's own lock is released: lock the node before.
        """
        phase = self.load_phase(ticket)
        slots = self.adapter.claim(ticket)
        load = self.loads.pop(id(ticket))
        if (slots is None) != (phase is TransferPhase.FAILED):
            raise violation("FLOW-4", f"claim of a load that is {phase.value}", "slots, or None when it failed", slots)
        if slots is not None:
            self._require_delivery(load, slots)
        elif not self.failures:
            raise violation("FLOW-10", "claim without an injected failure", f"{len(load.indices)} slots", phase.value)
        self.verb_done()
        return slots

    def abandon(self, ticket: Handle) -> None:
        """Give up a load: no caller waits for it."""
        self.adapter.abandon(ticket)
        del self.loads[id(ticket)]
        self.verb_done()

    def _loading(self, key: Key, found: MatchResult, load: LoadBack) -> OpenLoad:
        before, place = found.device_indices, f"load_back of {aligned_count(key, self.config)} elements"
        require_pages(load.indices, self.config.page_size, place)
        slots = np.concatenate((before, load.indices))
        if len(np.unique(slots)) != len(slots) or not slots.all():
            raise violation("HOST-4", place, "distinct slots above 0", slots.tolist())
        if not len(before) + found.host_hit_length <= len(slots) <= aligned_count(key, self.config):
            reported = f"{len(before)} on the device, {found.host_hit_length} on the host alone"
            raise violation("FLOW-10", place, f"at least what the match found: {reported}", f"{len(slots)} elements")
        prefix = cut(key, len(slots), self.config)
        phase = self.adapter.load_phase(load.ticket)
        return OpenLoad(load.ticket, prefix, before, load.indices, phase, {})

    def _require_delivery(self, load: OpenLoad, slots: Slots) -> None:
        require_pages(slots, self.config.page_size, f"claim of {len(load.indices)} slots")
        if len(slots) != len(load.indices):
            raise violation("FLOW-10", "claim", f"{len(load.indices)} slots", f"{len(slots)} slots")
        self.contents.verify(load.key, np.concatenate((load.before, slots)))
        if self._has_states and self.has_snapshot:
            snapshot = self.snapshot()
            row = self._row_of(load.key, snapshot)
            if row is None or snapshot.nodes[row].slots[Component.MAMBA] is None:
                raise violation("FLOW-10", f"claim of {len(load.slots)} elements", "a state at their end", None)

    def _state_of(self, key: Key) -> int | None:
        """The tree's device slot for the state of exactly this prefix, loaded or being loaded, or None."""
        snapshot = self.snapshot()
        row = self._row_of(key, snapshot)
        if row is None:
            return None
        state = snapshot.nodes[row].slots[Component.MAMBA]
        below = snapshot.host.nodes[row].slots[Component.MAMBA] if snapshot.host is not None else None
        for load in self._loads_in_flight() if state is None and below is not None else ():
            if Component.MAMBA in load.host and (load.host[Component.MAMBA] == below).all():
                state = load.device[Component.MAMBA]
        return None if state is None else int(state[0])

    def _row_of(self, key: Key, snapshot: Snapshot) -> int | None:
        """The row of the node that ends where the key's whole pages end, or None."""
        end, size = aligned_count(key, self.config), element_bytes(self.config.bigram)
        elements = elements_of(key, self.config.bigram)[: end * size]
        for row, node in enumerate(snapshot.nodes):
            if node.end == end and node.namespace == key.namespace and snapshot.prefix(row) == elements:
                return row
        return None

    def _loads_in_flight(self) -> list[TransferView]:
        host = self.snapshot().host if self.has_snapshot else None
        return [] if host is None else [one for one in host.transfers if one.kind is TransferKind.LOAD]

    def forget(self) -> None:
        super().forget()
        self._host_receipts.clear()
