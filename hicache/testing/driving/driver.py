"""Driver: a scheduler and a model runner in one, over any adapter. It checks the whole cache after every verb."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import Admission, CacheAdapter, Capability, Pending
from hicache.testing.contract import clauses_not_checked
from hicache.testing.driving.block_view import BlockView
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.kept import Kept
from hicache.testing.driving.ledger import Ledger, LockBook
from hicache.testing.driving.prompts import aligned_count, cut, element_count, make_key, page_tokens
from hicache.testing.driving.running import OpenLoad, OpenPrefetch, RunningRequest
from hicache.testing.driving.tree_view import TreeView
from hicache.testing.driving.view import View
from hicache.testing.geometry import Publish, geometry_of
from hicache.testing.laws.slots import require_pages
from hicache.testing.processes import end_if_forked
from hicache.testing.snapshot import BlockSnapshot, Snapshot, TransferView
from hicache.testing.violation import ViolationError, handle_text, violation
from hicache.types import (
    SHARED,
    Component,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    LoadBack,
    MatchResult,
    Namespace,
    Sizes,
    Slots,
    StopPolicy,
    StorageKind,
    Tier,
    TransferKind,
    TransferPhase,
)


class Driver:
    """Calls a cache through its adapter, and remembers what it holds.

    Every verb raises InvariantError when the cache violates a law. Data must be written before it is inserted.
    `operations`: verbs called so far. `check_every`: everything is checked after this many verbs; 0: only by `check()`.
    `running`: the running requests; `preempted`: those to resume; `loads` and `prefetches`: those that a caller waits
    for; `pinned`: what each pin keeps; all by the identity of their handle, ticket or receipt. `failures`: how many
    transfers the test let fail. `may_miss`: an admission may find less than is cached, as hashes collide.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self.config = config
        self.operations = 0
        self.check_every = 1
        self.failures = 0
        self.may_miss = False
        self.locks = LockBook(config.components, Tier.DEVICE)
        self.host_locks = LockBook(config.components, Tier.HOST)
        self.running: dict[int, RunningRequest] = {}
        self.preempted: dict[int, RunningRequest] = {}
        self.pinned: dict[int, Key] = {}
        self.loads: dict[int, OpenLoad] = {}
        self.prefetches: dict[int, OpenPrefetch] = {}
        self._receipts: list[tuple[Handle, dict[LockBook, int]]] = []
        self._has_window = Component.SWA in config.components
        self._has_states = Component.MAMBA in config.components
        self._process = os.getpid()
        self.open(adapter)

    def open(self, adapter: CacheAdapter) -> None:
        """Use this cache, which is empty."""
        self.adapter = adapter
        self.ledger = Ledger(self.config)
        self.contents = Contents(adapter, self.config)
        self.kept = Kept(adapter, self.config)
        self.geometry = geometry_of(self.config)
        self.view = self._view_of(adapter)

    def _view_of(self, adapter: CacheAdapter) -> View:
        shows_tree = adapter.profile == "tree" and Capability.SNAPSHOT in adapter.capabilities
        if Capability.TABLES in adapter.capabilities and not shows_tree:
            return BlockView(adapter, self.config, lambda: self.operations, checks_computed=True)
        return TreeView(adapter, self.config, self.ledger, self.locks, self.host_locks, self.contents)

    def forget(self) -> None:
        """Drop all receipts and tickets: they are not valid in a new epoch."""
        self.locks.clear()
        self.host_locks.clear()
        self.loads.clear()
        self.prefetches.clear()
        self._receipts.clear()

    def snapshot(self) -> Snapshot:
        """The state of the whole cache now."""
        return self.adapter.snapshot()

    def block_snapshot(self) -> BlockSnapshot:
        """The state of a whole cache of blocks now."""
        return self.adapter.block_snapshot()

    def check(self) -> None:
        """Raise InvariantError unless every law holds and every byte is right."""
        self.view.check(self.running.values(), is_awaited=bool(self.loads or self.prefetches))

    def verb_done(self, verb: str = "a verb") -> None:
        """Count a verb, and check everything when it is due. `verb`: its name, for the message of a violation."""
        self.view.verb = verb
        end_if_forked(self._process)
        for prefetch in self.prefetches.values():
            prefetch.record_length(self.cached_length_of(prefetch.key))
        self.operations += 1
        self._require_pinned()
        if self.check_every and self.operations % self.check_every == 0:
            self.check()

    def overwrite_free_slots(self) -> None:
        """Overwrite all free device slots: a load often gets the slots that its data had before the eviction."""
        if self.config.host is not None:
            self.view.overwrite_blank()

    @property
    def has_snapshot(self) -> bool:
        """Whether the adapter declares SNAPSHOT."""
        return self.view.is_shown

    @property
    def shows_blocks(self) -> bool:
        """Whether the adapter has a BlockSnapshot, with or without chunks, and not the snapshot of a tree."""
        return self.view.shows_blocks

    def sizes(self, tier: Tier) -> Mapping[str, Sizes]:
        """The size counters of a tier; empty without SIZES."""
        if Capability.SIZES not in self.adapter.capabilities:
            return {}
        return self.adapter.sizes() if tier is Tier.DEVICE else self.adapter.host_sizes()

    # Keys.

    def key(self, tokens: Iterable[int], namespace: Namespace = SHARED) -> Key:
        """Make a key from tokens."""
        return make_key(tokens, namespace)

    def prompt(self, pages: Sequence[int]) -> list[int]:
        """The tokens of exactly these whole pages: equal numbers give equal pages, unequal ones similar pages."""
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
        self._takes({Component.FULL: tokens, Component.SWA: tokens})
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
        windows = self._partners_of(slots)
        self.adapter.free(slots)
        self.ledger.give(slots)
        self.kept.gives({Component.FULL: len(slots), Component.SWA: windows})
        self.verb_done()

    def release_window(self, slots: Slots) -> None:
        """Free the SWA partners of slots that the caller holds."""
        windows = self._partners_of(slots)
        self.adapter.release_window(slots)
        self.ledger.drop_partners(slots)
        self.kept.gives({Component.SWA: windows})
        self.verb_done()

    def allocate_state(self) -> int | None:
        """Allocate a state slot, which the caller then holds; None when short."""
        self._takes({Component.MAMBA: 1})
        return self._took_state(self.adapter.allocate_state())

    def fork_state(self, handle: Handle) -> int | None:
        """Copy a node's state to a new slot, which the caller then holds; None when short."""
        self._takes({Component.MAMBA: 1})
        return self._took_state(self.adapter.fork_state(handle))

    def free_state(self, slot: int) -> None:
        """Free a state slot."""
        self.adapter.free_state(slot)
        self.ledger.give_state(slot)
        self.kept.gives({Component.MAMBA: 1})
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
        self._require_kept("match", key, len(indices), self.elements(key))
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
        self.kept.inserted(key, result.accepted_length)
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
        return self._took_lock(self.adapter.lock(handle))

    def lock_without_state(self, handle: Handle) -> Handle:
        """Lock the path to a node, but not its MAMBA state; returns the receipt."""
        return self._took_lock(self.adapter.lock_without_state(handle), without=(Component.MAMBA,))

    def unlock_window(self, receipt: Handle) -> Handle:
        """Release the SWA part of a lock; returns the receipt of the rest."""
        left = self.adapter.unlock_window(receipt)
        owners = self._owners_of(receipt, "unlock_window")
        for book, owner in owners.items():
            book.release_window(owner)
        self._receipts.append((left, owners))
        self.verb_done()
        return left

    def unlock(self, receipt: Handle) -> None:
        """Release the lock of a receipt."""
        self.adapter.unlock(receipt)
        self._gave_lock(receipt, "unlock")

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
        self.kept.evicted(result.freed)
        self.verb_done()
        return result

    def reset(self) -> None:
        """Remove every node. Raises ValueError while requests run, as their shared slots would be freed."""
        self._require(Capability.RESET)
        if self.running:
            raise ValueError(f"finish or abort the {len(self.running)} running requests before a reset")
        self.adapter.reset()
        self.forget()
        self.kept.emptied({name: len(slots) for name, slots in self.ledger.held().items()})
        self.view.require_nothing_cached()
        self.verb_done()

    # Requests. The model's part is to write what a request computes before the cache can take it.

    def slot_tokens(self, tokens: int) -> int:
        """For how many tokens an admission of a prompt of so many takes slots: its own, and those that it reserves."""
        return tokens + self.adapter.reserved_tokens(tokens)

    def lookup(self, key: Key) -> int:
        """How many elements of a prompt are cached; with a snapshot, checked against what the tiers have (MATCH-1)."""
        cached = self.adapter.lookup(key)
        expected = self.cached_length_of(key) if self.has_snapshot else cached
        if cached % self.config.page_size or cached != expected:
            raise violation("MATCH-1", f"lookup of {self.elements(key)} elements", f"{expected} of them cached", cached)
        if self.config.host is None:
            self._require_kept("lookup", key, cached, self.elements(key))
        self.verb_done("lookup")
        return cached

    def cached_length_of(self, key: Key) -> int:
        """The number of elements that a match of the key finds on all tiers, by the oracle; 0 without a snapshot."""
        return self.view.cached_length(key)

    def admit(self, key: Key) -> Admission | None:
        """Start a request and check the bytes of its table and state; None when it does not fit."""
        return self._admitted(key, lambda: self.adapter.admit(key))

    def _admitted(self, key: Key, admit: Callable[[], Admission | None]) -> Admission | None:
        self.overwrite_free_slots()
        hit = self.view.expected_admission(key, is_alone=not self.running)
        self.kept.look()
        admission = admit()
        if admission is None:
            self._refused()
        else:
            if hit is not None:
                self._require_hit(key, hit, admission)
            self._require_admitted(key, admission)
            self._start(key, admission)
        self.verb_done("admit")
        return admission

    def _refused(self) -> None:
        """A request was not admitted, or not extended."""
        self.kept.refused()
        self.view.refused()

    def resume(self, request: Handle) -> Admission | None:
        """The admission of a request that was loading, with its bytes checked, or None while it loads.

        Fewer tokens than at the first admission may be cached only after a failed load. A request that was preempted is
        admitted again, and checked as a new one with all its tokens.
        """
        if (preempted := self.preempted.get(id(request))) is not None:
            again = self._admitted(preempted.key, lambda: self.adapter.resume(request))
            if again is not None:
                del self.preempted[id(request)]
            return again
        running = self.running[id(request)]
        admission = self.adapter.resume(request)
        if admission is not None:
            if admission.loading:
                raise violation("FLOW-4", "resume", "a request that does not load, or None", "one that is loading")
            cached = aligned_count(running.computed(), self.config)
            if admission.cached_tokens > cached or (admission.cached_tokens < cached and not self.failures):
                raise violation("FLOW-10", "resume", f"{cached} cached tokens, as admitted", admission.cached_tokens)
            self.locks.renew(running.owner)
            running.is_early = running.is_early and admission.cached_tokens == cached
            self._take(running, admission)
        self.verb_done("resume")
        return admission

    def wait_request_layer(self, request: Handle, pool: str, layer: int) -> bool:
        """Wait for one layer of what a request loads, and read its cached prefix in this layer of the pool.

        Needs REQUEST_LAYERS. False, with nothing read, where the request cannot read it. Raises InvariantError when
        bytes are wrong (HOST-6).
        """
        running = self.running[id(request)]
        can_read = self.adapter.wait_request_layer(request, pool, layer)
        if can_read and pool not in self.contents.state_pools:
            slots = running.table[: aligned_count(running.computed(), self.config)]
            read = partial(self.contents.verify_layer, pool, running.computed(), slots)
            _read_ready(read, layer, TransferPhase.RUNNING)
        elif can_read and running.state is not None:
            # What was computed meanwhile has moved the state on, and a second wait brings nothing back.
            reached = running.key if running.is_early else running.computed()
            read = partial(self.contents.verify_state_layer, pool, reached, running.state)
            _read_ready(read, layer, TransferPhase.RUNNING)
        self.verb_done()
        return can_read

    def compute_early(self, request: Handle) -> None:
        """Compute all tokens of a request that waits for its load, after it has waited for each layer."""
        running = self.running[id(request)]
        start = aligned_count(running.computed(), self.config)
        self.contents.write(running.key, running.table[start : aligned_count(running.key, self.config)], start)
        if running.state is not None:
            self.contents.write_state(running.key, running.state)
        running.is_early = True

    def extend(self, request: Handle, tokens: Iterable[int]) -> Slots | None:
        """Compute all tokens so far and append more; returns the longer table, or None when it does not fit."""
        running = self._ready(request)
        self.view.compute(running, len(running.key.tokens))
        added = np.array(list(tokens), dtype=np.int32)
        self.kept.look()
        table = self.adapter.extend(request, added)
        self.kept.grows(0 if table is None else len(table) - len(running.table))
        if table is None:
            self._require_no_room(len(running.key.tokens) + len(added))
            self._refused()
        else:
            running.key = replace(running.key, tokens=np.concatenate((running.key.tokens, added)))
            self._renew_table(running, table)
            self.view.schedule(running)
        self.verb_done("extend")
        return table

    def checkpoint(self, request: Handle, computed_tokens: int) -> Slots:
        """Compute and cache a chunk, and check the bytes of the table, which may have other slots then."""
        running = self._ready(request)
        self.view.compute(running, computed_tokens)
        self._takes({Component.MAMBA: 1})
        self._renew_table(running, self.adapter.checkpoint(request, computed_tokens))
        self.view.verify(running)
        if self.geometry.publish is not Publish.REQUEST:
            self._cached(running)
        self.verb_done("checkpoint")
        return running.table

    def finish(self, request: Handle) -> None:
        """Compute all tokens, cache the whole pages, and release the rest."""
        running = self._ready(request)
        self.view.compute(running, len(running.key.tokens))
        self.adapter.finish(request)
        self._cached(running)
        self._end(running, "finish")

    def abort(self, request: Handle) -> None:
        """Release everything that the request holds, also while it loads or is preempted."""
        self.adapter.abort(request)
        if self.preempted.pop(id(request), None) is None:
            self._end(self.running[id(request)], "abort")
        else:
            self.verb_done("abort")

    def preempt(self, request: Handle) -> None:
        """Release everything that a running request holds, until `resume` admits it again."""
        running = self._ready(request)
        self.adapter.preempt(request)
        self.preempted[id(request)] = running
        self._end(running, "preempt")

    def pin(self, key: Key) -> Handle:
        """Pin what is cached of a prompt. Until `unpin` it must be found after each verb (LOCK-13)."""
        tokens = self.adapter.lookup(key)
        receipt = self.adapter.pin(key)
        self.pinned[id(receipt)] = cut(key, tokens, self.config)
        self.verb_done()
        return receipt

    def unpin(self, receipt: Handle) -> None:
        """Remove a pin."""
        del self.pinned[id(receipt)]
        self.adapter.unpin(receipt)
        self.verb_done()

    def _require_pinned(self) -> None:
        for key in self.pinned.values():
            found = self.adapter.lookup(key)
            if found < self.elements(key):
                raise violation("LOCK-13", "lookup of a pinned prompt", f"{self.elements(key)} tokens", found)

    # The host tier.

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        """Free `tokens` of a component's host slots or more, or all evictable ones; check the result."""
        before = self.sizes(Tier.HOST)
        result = self.adapter.evict_host(component, tokens)
        gained = {name: sizes.free - before[name].free for name, sizes in self.sizes(Tier.HOST).items()}
        place = f"evict_host({component}, {tokens})"
        if any(result.freed[name] != count for name, count in gained.items()):
            raise violation("EVICT-1", place, f"freed counts equal to the growth of the host pools, {gained}", result)
        has_own_rule = "EVICT-8" in clauses_not_checked(self.adapter.profile, self.adapter.departures)
        left = () if has_own_rule else self.view.evictable_on_host(component)
        if left and result.freed[component] < tokens:
            raise violation("EVICT-8", place, f"more freed, as nodes {left} can still be evicted", result)
        self.verb_done()
        return result

    def lock_host(self, handle: Handle) -> Handle:
        """Lock a node and its host data; returns the receipt."""
        return self._took_lock(self.adapter.lock_host(handle), on_host=True)

    def unlock_host(self, receipt: Handle) -> None:
        """Release the lock of `lock_host`."""
        self.adapter.unlock_host(receipt)
        self._gave_lock(receipt, "unlock_host")

    def load_back(self, key: Key, found: MatchResult, *, quota: int | None = None) -> LoadBack | None:
        """Load to the device what a match of the key found on the host; None when the load is refused."""
        self.overwrite_free_slots()
        self._takes({Component.FULL: found.host_hit_length, **found.component_host_hit_lengths})
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

    # Transfers. Bytes may move at any time; residency changes only when a finished transfer is applied.

    def step(self) -> None:
        """Apply the results of finished transfers, and start the queued ones."""
        self.adapter.step()
        self._update_loads()
        self.verb_done("step")

    def pending(self, *kinds: TransferKind | StorageKind) -> Sequence[Pending]:
        """The transfers and requests to storage that a test can advance, of these kinds or of all, oldest first."""
        pending = self.adapter.pending()
        for one in pending:
            if one.parts < 1 or not 0 <= one.units_done < one.units:
                raise violation(
                    _progress_clause(one), "pending", "at least one part, and fewer units done than all", one
                )
        return [one for one in pending if one.kind in kinds] if kinds else pending

    def advance(self, ticket: Handle) -> None:
        """Copy one more layer of a pending transfer, or let storage do one more batch of a request."""
        before = self._pending(ticket)
        self._move("advance", lambda: self.adapter.advance(ticket))
        after = self._pending(ticket)
        if before is not None and after is not None and after.units_done != before.units_done + 1:
            expected, actual = (
                f"{done} of {before.units} units done" for done in (before.units_done + 1, after.units_done)
            )
            raise violation(_progress_clause(before), f"advance of a {before.kind.value}", expected, actual)
        self.verb_done()

    def complete(self, ticket: Handle) -> None:
        """Do all that remains of a pending transfer or request to storage."""
        self._move("complete", lambda: self.adapter.complete(ticket))
        self._require_end("complete", ticket)
        self.verb_done()

    def fail(self, ticket: Handle, parts_done: int) -> None:
        """End a pending transfer after its first parts; the other parts fail."""
        self.failures += 1
        self.kept.lost()
        self._move("fail", lambda: self.adapter.fail(ticket, parts_done))
        self._require_end("fail", ticket)
        self.verb_done()

    def complete_all(self) -> None:
        """Complete all pending transfers, oldest first, and apply their results. Storage does not answer."""
        for one in self.pending(*TransferKind):
            self.complete(one.ticket)
        self.step()

    def layer_ready(self, ticket: Handle, pool: str, layer: int) -> bool:
        """Whether the target slots of a load can be read in one layer of one pool."""
        return self.adapter.layer_ready(ticket, pool, layer)

    def read_ready_layers(self, ticket: Handle) -> Mapping[str, int]:
        """Read the whole prefix of a load in each readable layer, and in no other; returns how many layers, by pool.

        Raises InvariantError when bytes are wrong (HOST-6), when a layer is no longer readable, or when the load has
        ended and a layer of the stack is not readable (HOST-9). Nothing is read of a load that failed.
        """
        load, phase = self.loads[id(ticket)], self.load_phase(ticket)
        if phase is TransferPhase.FAILED:
            return {}
        for pool, read in self._readers(load).items():
            layers = range(self.adapter.layers(pool))
            ready = frozenset(layer for layer in layers if self.adapter.layer_ready(ticket, pool, layer))
            load.record_ready(pool, ready)
            if phase is TransferPhase.DONE and len(ready) < len(layers):
                raise violation("HOST-9", f"layers of {pool} after a load", sorted(layers), sorted(ready))
            for layer in sorted(ready):
                _read_ready(read, layer, phase)
        return {pool: len(ready) for pool, ready in load.ready.items()}

    def wait_layer(self, ticket: Handle, pool: str, layer: int) -> None:
        """Wait for one layer of a load that was started, and read the whole prefix in this layer of the pool (HOST-6).

        Needs LAYER_WAITS. Raises InvariantError when bytes are wrong. Nothing is read of a load that failed.
        """
        load = self.loads[id(ticket)]
        self.adapter.wait_layer(ticket, pool, layer)
        if (phase := self.load_phase(ticket)) is not TransferPhase.FAILED:
            _read_ready(self._readers(load)[pool], layer, phase)
        self.verb_done()

    def drain(self) -> None:
        """Wait for all transfers to finish, and apply their results; then no prefetch has host slots unless awaited."""
        self.adapter.drain()
        self._update_loads()
        waiting = list(self._in_flight())
        if waiting:
            raise violation("FLOW-4", "drain", "nothing in flight", waiting)
        self.verb_done("drain")
        if not self.prefetches:
            self.view.require_no_prefetch()

    # The storage tier.

    def prefetch(self, key: Key) -> Handle | None:
        """Start to prefetch a prompt from storage; None, with no effect, when the prefetch is refused."""
        before = self.view.storage_state().held
        ticket = self.adapter.prefetch(key)
        if ticket is not None:
            self.prefetches[id(ticket)] = OpenPrefetch(ticket, key, self.cached_length_of(key), set())
        elif (held := self.view.storage_state().held) != before:
            raise violation("FETCH-1", "a refused prefetch", before, held)
        self.verb_done()
        return ticket

    def check_prefetch(self, ticket: Handle) -> int | None:
        """The number of tokens that a prefetch loaded, checked against what a match gained; None while it runs."""
        prefetch = self.prefetches[id(ticket)]
        tokens = self.adapter.check_prefetch(ticket)
        if tokens is not None:
            del self.prefetches[id(ticket)]
            self._require_gain(prefetch, tokens)
        elif self.config.storage is not None and self.config.storage.stop_policy is StopPolicy.BEST_EFFORT:
            raise violation("FETCH-3", "check of a prefetch with best_effort", "a result at once", None)
        self.verb_done()
        return tokens

    def abort_prefetch(self, ticket: Handle) -> None:
        """Cancel a prefetch: no caller waits for it."""
        self.adapter.abort_prefetch(ticket)
        del self.prefetches[id(ticket)]
        self.verb_done()

    def attach_storage(self) -> bool:
        """Open the configured backend again; False when a backend is attached."""
        return self._operate("attach_storage", self.adapter.attach_storage)

    def detach_storage(self) -> bool:
        """Close the backend; False while requests are in flight, or when none is attached."""
        return self._operate("detach_storage", self.adapter.detach_storage)

    def clear_storage(self) -> bool:
        """Remove the cache's objects; False while requests are in flight."""
        return self._operate("clear_storage", self.adapter.clear_storage)

    def storage_keys(self, pool: str, key: Key) -> list[str]:
        """The object key of each whole page of a key in one pool; checks that they are distinct."""
        keys = list(self.adapter.storage_keys(pool, key))
        pages = aligned_count(key, self.config) // self.config.page_size
        if len(keys) != pages or len(set(keys)) != pages:
            raise violation("STORE-1", f"storage_keys of {pool}", f"{pages} distinct keys", keys)
        return keys

    def advance_clock(self, seconds: float) -> None:
        """Advance the clock of the cache."""
        self.adapter.advance_clock(seconds)
        self.verb_done()

    def restart(self) -> None:
        """Close the cache, also with transfers in flight, and open another one on the same storage."""
        self.adapter.close()
        self.open(self.open_again())
        self.forget()
        self.running.clear()
        self.verb_done()

    def open_again(self) -> CacheAdapter:
        """Another cache with the same configuration and storage."""
        return type(self.adapter)(self.config)

    def _require(self, capability: Capability) -> None:
        """Skip the rest of a test that needs a capability which only this verb needs."""
        if capability not in self.adapter.capabilities:
            pytest.skip(f"{type(self.adapter).__name__} does not declare {capability.name}: {capability.value}")

    # Checks of pools and of the tree.

    def _require_host_hits(self, key: Key, found: MatchResult) -> None:
        hit, size = found.host_hit_length, self.config.page_size
        room = 0 if found.best_match is found.device_anchor else self.aligned(key) - len(found.device_indices)
        if not 0 <= hit <= room or hit % size:
            raise violation("MATCH-12", "match", f"whole pages past the anchor, at most {room} elements", found)

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

    def _took_lock(self, receipt: Handle, *, without: Collection[str] = (), on_host: bool = False) -> Handle:
        """Record a receipt, which may protect data on both tiers where a node on the host alone can be locked."""
        demoted = self.config.host is not None and Capability.DEMOTED_LOCKS in self.adapter.capabilities
        books = [self.locks, self.host_locks] if on_host or demoted else [self.locks]
        self._receipts.append((receipt, {book: book.acquire(without=without) for book in books}))
        self.verb_done()
        return receipt

    def _gave_lock(self, receipt: Handle, verb: str) -> None:
        for book, owner in self._owners_of(receipt, verb).items():
            book.release(owner)
        self.verb_done()

    def _owners_of(self, receipt: Handle, verb: str) -> dict[LockBook, int]:
        """Forget a receipt; returns its owners in the lock books."""
        index = next((index for index, (known, _) in enumerate(self._receipts) if known is receipt), None)
        if index is None:
            raise violation("LOCK-6", verb, "an error, as the receipt is not outstanding", handle_text(receipt))
        return self._receipts.pop(index)[1]

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

    # Checks of requests.

    def _start(self, key: Key, admission: Admission) -> None:
        running = RunningRequest(admission.request, key, admission.table, None, self.locks.acquire(), 0, awaited=None)
        running.reserved_until = self.slot_tokens(len(key.tokens))
        self._take(running, admission)
        self.running[id(admission.request)] = running

    def _take(self, running: RunningRequest, admission: Admission) -> None:
        """Record an admission; check the bytes of the cached prefix unless it is still loading."""
        cached, most = admission.cached_tokens, aligned_count(running.key, self.config)
        if not 0 <= cached <= most or cached % self.config.page_size:
            raise violation("REQ-4", "admit", f"whole pages, at most {most} cached tokens", cached)
        copied, rest = admission.copied_tokens, self.elements(running.key) - self.geometry.recomputed_tokens - cached
        if copied and not 0 < copied <= rest:
            raise violation("MATCH-21", f"admit with {cached} cached tokens", f"at most {rest} copied tokens", copied)
        if (admission.state is not None) != (Component.MAMBA in self.config.components):
            raise violation("MATCH-11", "admit", "a state of its own exactly when there is MAMBA", admission.state)
        computed = running.key if running.is_early else cut(running.key, cached + copied, self.config)
        running.state, running.computed_tokens = admission.state, len(computed.tokens)
        running.kv_tokens = running.computed_tokens
        running.awaited = cached if admission.loading else None
        self.view.set_table(running, admission.table)
        if admission.loading:
            return
        self.view.verify_hit(running)
        self.view.schedule(running)

    def _ready(self, request: Handle) -> RunningRequest:
        """A request that can compute. Raises ValueError for one that waits for a load."""
        running = self.running[id(request)]
        if running.is_loading:
            raise ValueError(f"a request of {len(running.key.tokens)} tokens waits for a load: resume it first")
        return running

    def _renew_table(self, running: RunningRequest, table: Slots) -> None:
        """Take over the table that a verb of a running request returned."""
        self.locks.renew(running.owner)
        self.view.set_table(running, table)

    def _end(self, running: RunningRequest, verb: str) -> None:
        del self.running[id(running.request)]
        self.locks.release(running.owner)
        self.verb_done(verb)

    # Checks of the host tier and of transfers.

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
        if self._has_states and self.has_snapshot and self.view.state_of(load.key, in_flight=False) is None:
            raise violation("FLOW-10", f"claim of {len(load.slots)} elements", "a state at their end", None)

    def _loads_in_flight(self) -> list[TransferView]:
        return [one for one in self.view.transfers() if one.kind is TransferKind.LOAD]

    def _readers(self, load: OpenLoad) -> dict[str, Callable[[int], None]]:
        """The function that reads one layer, by pool."""
        readers: dict[str, Callable[[int], None]] = {}
        for pool in self.contents.prefix_pools:
            readers[pool] = partial(self.contents.verify_layer, pool, load.key, load.slots)
        state = self.view.state_of(load.key, in_flight=True) if self._has_states and self.has_snapshot else None
        if state is not None:
            for pool in self.contents.state_pools:
                readers[pool] = partial(self.contents.verify_state_layer, pool, load.key, int(state[0]))
        return readers

    def _update_loads(self) -> None:
        for load in self.loads.values():
            load.record_phase(self.adapter.load_phase(load.ticket))

    def _in_flight(self) -> Iterator[str]:
        """Descriptions of what is in flight."""
        for load in self.loads.values():
            if not load.phase.has_ended:
                yield f"a load that is {load.phase.value}"
        for transfer in self.view.transfers():
            yield f"a {transfer.kind.value}"
        executors = [tier.executor for tier in (self.config.host, self.config.storage) if tier is not None]
        if ExecutorKind.STEPPED in executors:
            yield from (f"a pending {one.kind.value}" for one in self.adapter.pending())

    def _pending(self, ticket: Handle) -> Pending | None:
        return next((one for one in self.pending() if one.ticket == ticket), None)

    def _move(self, verb: str, call: Callable[[], None]) -> None:
        before = self.view.residency()
        call()
        if self.view.residency() != before:
            raise violation("FLOW-2", verb, "residency unchanged until a step applies the transfer", "a change")

    def _require_end(self, verb: str, ticket: Handle) -> None:
        one = self._pending(ticket)
        if one is not None:
            raise violation("FLOW-4", verb, f"a {one.kind.value} that has ended", one)

    # Checks of the storage tier.

    def _operate(self, verb: str, call: Callable[[], bool]) -> bool:
        before = self.view.storage_state()
        is_done = call()
        after = self.view.storage_state()
        if after.held != before.held:
            raise violation("FLOW-12", f"{verb}, which answered {is_done}", before.held, after.held)
        if is_done and verb != "detach_storage" and any(after.marks):
            raise violation("FLOW-12", verb, "no node marked as stored", after.marks)
        if not is_done and after.marks != before.marks:
            raise violation("FLOW-12", f"{verb}, which did nothing", f"marks {before.marks}", after.marks)
        self.verb_done()
        return is_done

    # Checks of what must still be cached.

    def _takes(self, slots: Mapping[str, int]) -> None:
        """A verb is about to take so many slots of each component."""
        self.kept.look()
        self.kept.takes(slots)

    def _partners_of(self, slots: Slots) -> int:
        """How many of these slots have a partner."""
        return int(np.count_nonzero(self.adapter.partners(slots))) if self._has_window and len(slots) else 0

    def _cached(self, running: RunningRequest) -> None:
        """A request has cached what it computed. Its last whole page may have no state, and no longer its window."""
        computed = running.computed()
        is_whole = not (self._has_states or self._has_window)
        self.kept.inserted(computed, aligned_count(computed, self.config) if is_whole else 0)

    def _require_kept(self, verb: str, key: Key, found: int, limit: int) -> None:
        if not self.may_miss:
            self.kept.require(f"{verb} of {self.elements(key)} elements", key, found, limit)

    def _require_admitted(self, key: Key, admission: Admission) -> None:
        if admission.loading:
            # What it loads needs room too.
            self.kept.lost()
        elif self.kept.grows(len(admission.table) - admission.cached_tokens):
            limit = max(0, self.elements(key) - self.geometry.recomputed_tokens)
            # A hit that goes on inside a page may have no state at the end of its whole pages.
            if not (self._has_states and admission.copied_tokens):
                pages = (admission.cached_tokens + admission.copied_tokens) // self.config.page_size
                self._require_kept("admission", key, pages * self.config.page_size, limit)

    def _require_no_room(self, tokens: int) -> None:
        """An extension to so many tokens was refused. What other requests reserve is not known, nor what moves."""
        is_alone = (
            len(self.running) == len(self.locks) == 1
            and not self.pinned
            and not any(map(len, self.ledger.held().values()))
        )
        if is_alone and self.config.host is None:
            self.kept.require_no_room(f"extension to {tokens} tokens of the only request", tokens)

    def _require_gain(self, prefetch: OpenPrefetch, tokens: int) -> None:
        # Several prefetches may end in one step and evict each other's pages, so that the gain of one is never visible.
        if self.has_snapshot and not self.prefetches:
            prefetch.record_length(self.cached_length_of(prefetch.key))
            prefetch.require_gain(tokens)

    def _require_hit(self, key: Key, hit: int, admission: Admission) -> None:
        # The oracle of blocks knows no state inside a block, where a hit with a copied part may end.
        is_more = admission.cached_tokens > hit and not (self._has_states and admission.copied_tokens)
        if is_more or (admission.cached_tokens < hit and not self.may_miss):
            place = f"admission of {len(key.tokens)} tokens"
            raise violation("MATCH-1", place, f"{hit} cached tokens", admission.cached_tokens)


def _progress_clause(one: Pending) -> str:
    """The clause by which a transfer or a request to storage moves unit by unit."""
    return "FLOW-2" if isinstance(one.kind, TransferKind) else "FETCH-3"


def _read_ready(read: Callable[[int], None], layer: int, phase: TransferPhase) -> None:
    """Read a layer of a load that the cache says is ready. HOST-6: until the load has ended, wrong bytes are too early.

    The bytes of a load that has ended are wrong for another reason, and stay REQ-3.
    """
    try:
        read(layer)
    except ViolationError as error:
        if phase is TransferPhase.DONE or error.clause != "REQ-3":
            raise
        place = f"a layer that is ready while the load is {phase.value}, {error.place}"
        raise violation("HOST-6", place, error.expected, error.actual) from error
