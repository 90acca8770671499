"""Driver: calls a cache through its adapter, records the slots that it holds, and checks after every verb."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.prompts import aligned_count, cut, element_count, make_key, page_tokens
from hicache.testing.driving.requests import RequestVerbs
from hicache.testing.driving.storage import StorageTierVerbs
from hicache.testing.laws.conservation import require_pages
from hicache.testing.violation import violation
from hicache.types import (
    SHARED,
    Component,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    MatchResult,
    Namespace,
    Slots,
    Tier,
)


class Driver(RequestVerbs, StorageTierVerbs):
    """A scheduler and a model runner in one, over any adapter.

    Every verb raises InvariantError when the cache violates a law. Data must be written before it is inserted.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        super().__init__(adapter, config)
        self._receipts: list[tuple[Handle, int]] = []
        self._has_window = Component.SWA in config.components

    # Keys.

    def key(self, tokens: Iterable[int], namespace: Namespace = SHARED) -> Key:
        """Make a key from tokens."""
        return make_key(tokens, namespace)

    def prompt(self, pages: Sequence[int]) -> list[int]:
        """The tokens of exactly these whole pages: equal numbers give equal pages, unequal ones differ at once."""
        return page_tokens(pages, self.config)

    def elements(self, key: Key) -> int:
        """The number of elements of a key: its tokens, or with bigram keys one less."""
        return element_count(key, self.config)

    def aligned(self, key: Key) -> int:
        """The number of elements of a key, rounded down to whole pages."""
        return aligned_count(key, self.config)

    # Pools.

    def allocate(self, tokens: int) -> Slots | None:
        """Allocate slots of whole pages, which the caller then holds; None when short."""
        slots = self.adapter.allocate(tokens)
        if slots is not None:
            if len(slots) != tokens:
                raise violation("POOL-3", f"allocate({tokens})", f"{tokens} slots or None", f"{len(slots)} slots")
            require_pages(slots, self.config.page_size, f"allocate({tokens})")
            self.ledger.take(slots, self._fresh_partners(slots))
        self.verb_done()
        return slots

    def free(self, slots: Slots) -> None:
        """Free slots and their SWA partners."""
        self.adapter.free(slots)
        self.ledger.give(slots)
        self.verb_done()

    def release_window(self, slots: Slots) -> None:
        """Free the SWA partners of slots that the caller holds."""
        self.adapter.release_window(slots)
        self.ledger.drop_partners(slots)
        self.verb_done()

    def allocate_state(self) -> int | None:
        """Allocate a state slot, which the caller then holds; None when short."""
        return self._took_state(self.adapter.allocate_state())

    def fork_state(self, handle: Handle) -> int | None:
        """Copy a node's state to a new slot, which the caller then holds; None when short."""
        return self._took_state(self.adapter.fork_state(handle))

    def free_state(self, slot: int) -> None:
        """Free a state slot."""
        self.adapter.free_state(slot)
        self.ledger.give_state(slot)
        self.verb_done()

    # Model runner.

    def write(self, key: Key, slots: Slots, start: int) -> None:
        """Write the whole pages of a key from `start`, a page boundary, to every layer of KV, indexer and SWA."""
        self.contents.write(key, slots, start)

    def write_state(self, key: Key, slot: int) -> None:
        """Write the state after exactly this key."""
        self.contents.write_state(key, slot)

    # The tree.

    def match(self, key: Key, *, chunked: bool = False) -> MatchResult:
        """Find the longest cached prefix; check that its slots are whole pages with the right bytes."""
        found = self.adapter.match(key, chunked=chunked)
        indices = found.device_indices
        require_pages(indices, self.config.page_size, f"match of {self.elements(key)} elements")
        if len(indices) > self.aligned(key) or not indices.all():
            raise violation("MATCH-1", "match", f"at most {self.aligned(key)} slots above 0", indices.tolist())
        self._require_host_hits(key, found)
        self.contents.verify(key, indices)
        self.verb_done()
        return found

    def verify_state(self, key: Key, found: MatchResult) -> None:
        """Check that the state at the end of a match is that of the matched prefix, by a fork of it (MATCH-11).

        When no other state slot is free or evictable, the fork is impossible and nothing is checked.
        """
        matched = len(found.device_indices)
        if not self._has_states or not matched:
            return
        slot = self.fork_state(found.device_anchor)
        sizes = self.sizes(Tier.DEVICE).get(Component.MAMBA)
        if slot is not None:
            self.contents.verify_state(cut(key, matched, self.config), slot)
            self.free_state(slot)
        elif sizes is not None and sizes.free + sizes.evictable > 1:
            raise violation("MATCH-11", f"fork_state at {matched} elements", f"a slot, with {sizes}", None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int = 0, state: int | None = None, priority: int = 0
    ) -> InsertResult:
        """Give the slots of the key's whole pages to the tree; the first `shared` belong to the tree already."""
        result = self.adapter.insert(
            key, slots, shared=shared, window_start=window_start, state=state, priority=priority
        )
        self.ledger.give(slots[shared:])
        if result.state_adopted:
            self._gave_state(state)
        self._require_lengths(key, result)
        self.verb_done()
        return result

    def put(self, key: Key, *, window_start: int = 0, with_state: bool = True, priority: int = 0) -> InsertResult:
        """Compute and insert a prompt at once: match, lock, allocate the rest, write, insert, unlock."""
        found = self.match(key)
        shared = len(found.device_indices)
        receipt = self.lock(found.device_anchor)
        slots = self._slots_for(key, found.device_indices)
        released = min(-(-window_start // self.config.page_size) * self.config.page_size, len(slots))
        if self._has_window and released > shared:
            self.release_window(slots[shared:released])
        self.write(key, slots[shared:], shared)
        state = self._state_for(key) if with_state and self._has_states else None
        result = self.insert(key, slots, shared=shared, window_start=window_start, state=state, priority=priority)
        if state is not None and not result.state_adopted:
            self.free_state(state)
        self.unlock(receipt)
        return result

    def lock(self, handle: Handle) -> Handle:
        """Lock the path to a node; returns the receipt."""
        receipt = self.adapter.lock(handle)
        self._receipts.append((receipt, self.locks.acquire()))
        self.verb_done()
        return receipt

    def unlock(self, receipt: Handle) -> None:
        """Release the lock of a receipt."""
        self.adapter.unlock(receipt)
        index = next((index for index, (known, _) in enumerate(self._receipts) if known is receipt), None)
        if index is None:
            raise violation("LOCK-6", "unlock", "an error, as the receipt is not outstanding", receipt)
        self.locks.release(self._receipts.pop(index)[1])
        self.verb_done()

    def load(self, key: Key) -> MatchResult:
        """Match, load back what is only on the host, and wait for it; returns the match after the load.

        That match is not counted as a hit. Returns the first match when nothing can be loaded.
        """
        found = self.match(key)
        load = self.load_back(key, found)
        if load is None:
            return found
        self.drain()
        delivered = self.claim(load.ticket)
        again = self.match(key, chunked=True)
        expected = len(found.device_indices) + len(load.indices)
        if delivered is not None and len(again.device_indices) < expected:
            raise violation("FLOW-10", "match after a load", f"{expected} elements", len(again.device_indices))
        return again

    def evict(self, component: str, tokens: int) -> EvictResult:
        """Free at least `tokens` of a component's slots, or all evictable ones; check the result against the pools.

        Fewer may be freed when a node must be backed up first and cannot be; then the result says so.
        """
        before = self.sizes(Tier.DEVICE)
        result = self.adapter.evict(component, tokens)
        after = self.sizes(Tier.DEVICE)
        place = f"evict({component}, {tokens})"
        gained = {name: sizes.free - before[name].free for name, sizes in after.items()}
        if any(result.freed[name] != count for name, count in gained.items()):
            raise violation("EVICT-1", place, f"freed counts equal to the growth of the pools, {gained}", result)
        if after and not result.refused and result.freed[component] < tokens and after[component].evictable:
            raise violation("EVICT-1", place, f"more freed, as {after[component].evictable} are evictable", result)
        self.verb_done()
        return result

    def reset(self) -> None:
        """Remove every node. Raises ValueError while requests run, as their shared slots would be freed."""
        if self.running:
            raise ValueError(f"finish or abort the {len(self.running)} running requests before a reset")
        self.adapter.reset()
        self.forget()
        self._require_nothing_cached()
        self.verb_done()

    def forget(self) -> None:
        super().forget()
        self._receipts.clear()

    def _require_host_hits(self, key: Key, found: MatchResult) -> None:
        hit, size = found.host_hit_length, self.config.page_size
        room = 0 if found.best_match is found.device_anchor else self.aligned(key) - len(found.device_indices)
        if not 0 <= hit <= room or hit % size:
            raise violation("MATCH-12", "match", f"whole pages past the anchor, at most {room} elements", found)

    def _require_nothing_cached(self) -> None:
        if not self.has_snapshot:
            return
        snapshot = self.snapshot()
        transfers = snapshot.host.transfers if snapshot.host is not None else ()
        prefetches = snapshot.storage.fetches if snapshot.storage is not None else ()
        if snapshot.nodes or transfers or prefetches:
            left = f"{len(snapshot.nodes)} nodes, {len(transfers)} transfers, {len(prefetches)} prefetches"
            raise violation("EVICT-9", "reset", "nothing cached and nothing in flight", left)

    def _fresh_partners(self, slots: Slots) -> Slots | None:
        if not self._has_window:
            return None
        partners = self.adapter.partners(slots)
        if not partners.all() or len(np.unique(partners)) != len(partners):
            raise violation("POOL-5", "fresh slots", "distinct SWA partners above 0", partners.tolist())
        return partners

    def _took_state(self, slot: int | None) -> int | None:
        if slot is not None:
            self.ledger.take_state(slot)
        self.verb_done()
        return slot

    def _gave_state(self, state: int | None) -> None:
        if state is None:
            raise violation("INS-7", "insert without a state", "state_adopted False", True)
        self.ledger.give_state(state)

    def _require_lengths(self, key: Key, result: InsertResult) -> None:
        lengths = (result.prefix_length, result.accepted_length)
        if any(not 0 <= length <= self.aligned(key) or length % self.config.page_size for length in lengths):
            raise violation("INS-1", "insert", f"whole pages, at most {self.aligned(key)} elements", result)

    def _slots_for(self, key: Key, matched: Slots) -> Slots:
        missing = self.aligned(key) - len(matched)
        fresh = self.allocate(missing)
        if fresh is None:
            raise violation("EVICT-1", f"put of {self.aligned(key)} elements", f"{missing} more slots", None)
        return np.concatenate((matched, fresh))

    def _state_for(self, key: Key) -> int:
        state = self.allocate_state()
        if state is None:
            raise violation("EVICT-1", "put", "a slot for a state", None)
        self.write_state(cut(key, self.aligned(key), self.config), state)
        return state
