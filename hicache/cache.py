"""UnifiedRadixCache: every verb of the cache, and open_cache. One thread owns it; only executors move bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial, wraps
from inspect import Parameter, signature
from itertools import product
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar, cast

import numpy as np

from hicache.arguments import require_count, require_integer, require_type
from hicache.components.base import Insertion, TreeComponent
from hicache.components.component_tree import LockReceipt, Match
from hicache.config import (
    SINGLE_RANK,
    CacheConfig,
    EvictionPolicy,
    HostConfig,
    Layout,
    ModelShape,
    Recency,
    StorageConfig,
    Topology,
)
from hicache.errors import (
    ArgumentError,
    ConfigurationError,
    InterruptedVerbError,
    KeyFormError,
    RankError,
    SlotError,
    StaleHandleError,
)
from hicache.keys import RadixKey, chain_seed, hash_pages
from hicache.miss_log import MissLog
from hicache.opening import HostTier, Resources, Tiers, check_groups, open_parts
from hicache.optional_torch import torch
from hicache.parallel.agree import ALONE, Agreement
from hicache.parallel.group import Group
from hicache.pools.device import DevicePools
from hicache.pools.host import HostPools
from hicache.prometheus import CacheMetrics
from hicache.runtime import Runtime
from hicache.stats import PoolStats, Stats, StorageStats
from hicache.tiers.load_back import LoadBackTicket
from hicache.tiers.prefetch import Prefetch
from hicache.tiers.storage_tier import StorageTier
from hicache.transfer.queue import TransferQueue, complete_together
from hicache.tree.drawing import draw_tree
from hicache.tree.node import FULL, Node
from hicache.types import (
    NO_SLOTS,
    SHARED,
    Component,
    EvictResult,
    InsertResult,
    LoadBack,
    MatchResult,
    Namespace,
    NodeInfo,
    Sizes,
    Slots,
    Tier,
    TokenIds,
    TransferKind,
    TransferPhase,
)
from hicache.verbs import Turn, reads, timed, verb

T = TypeVar("T")
OpenT = TypeVar("OpenT", bound="Callable[..., UnifiedRadixCache]")


class UnifiedRadixCache:
    """A radix tree whose nodes have the data of several components on the device, on the host and in storage.

    `open` makes one. Lengths at this interface are in tokens, slots are int64 arrays of one entry per token, states are
    single slots. All ranks that share the tree make the same calls in the same order. Threads may call by turns; a verb
    that overlaps with another thread's raises OverlapError, and one after `close` ClosedError. After KeyboardInterrupt
    in the middle of a verb every verb but `reset` and `close` raises InterruptedVerbError. `liveness`: how long its
    verbs took at most. `turn`: whose turn it is. `epoch`: how often a reset was needed after an interruption.
    """

    def __init__(self, kept: Resources, tiers: Tiers) -> None:
        config = kept.config
        self.config = config
        self.clock = kept.runtime.clock
        self.liveness = kept.liveness
        self.counters = kept.counters
        self.events = kept.events
        self.pools = kept.pools
        self.turn = Turn()
        self.epoch = 0
        self._misses = MissLog(config.name, self.clock, self.counters.traffic)
        self._kept = kept
        self._agreement = kept.agreement
        self._units = {name: 1 if name == Component.MAMBA else config.page_size for name in tiers.tree.by_name}
        self._paged = [name for name in self._units if name != Component.MAMBA]
        # MAMBA is the last component: these are the others.
        self._stateless = len(self._paged)
        self._no_tokens = MappingProxyType(dict.fromkeys(list(self._units)[1:], 0))
        self._load_back_tokens = 0 if config.host is None else config.host.load_back_threshold_tokens
        self._backup_hits: int | None = None
        self._use(tiers)

    def _use(self, tiers: Tiers) -> None:
        self.tree = tiers.tree
        self.host = tiers.host
        self.storage = tiers.storage
        self._evictor = tiers.evictor
        self._by_name = tiers.tree.by_name
        if self.host is not None and self._backup_hits is not None:
            self.host.backups.min_hits = self._backup_hits
        self.turn.unfreed, self.turn.free = tiers.tree.unfreed, tiers.tree.free_dropped

    @classmethod
    def open(
        cls,
        config: CacheConfig,
        runtime: Runtime | None = None,
        agreement: Agreement = ALONE,
        tensors: Mapping[str, Sequence[torch.Tensor]] | None = None,
        metrics: CacheMetrics | None = None,
    ) -> UnifiedRadixCache:
        """Open an empty cache: allocate its pools, pin host memory, open executors and the storage backend.

        `runtime`: executors, backend and time, if not those that the configuration names. `tensors`: by pool, the
        device tensors that the caller owns, as PoolBuffers takes them; the cache allocates the others. `metrics`:
        exposes what the cache does until it is closed.
        """
        kept, tiers = open_parts(config, runtime, agreement, tensors, metrics)
        cache = cls(kept, tiers)
        if metrics is not None:
            metrics.add(cache, partial(stats_of, cache))
        return cache

    # Keys.

    @reads
    def key(self, tokens: TokenIds, namespace: Namespace | None = None) -> RadixKey:
        """The whole pages of a prompt as this cache's key. None is the namespace of all others.

        `tokens`: [n], a list, an array or a tensor in CPU memory, of integers from 0 to 2**31 - 1. KeyFormError names
        the first that is not such an id.
        """
        found = SHARED if namespace is None else namespace
        return RadixKey.of(tokens, found, self.config.page_size, self.config.bigram)

    @reads
    def length(self, key: RadixKey) -> int:
        """How many tokens (pairs, with bigram keys) the key's whole pages cover."""
        return self.tree.radix.page_count(key) * self.config.page_size

    @reads
    def page_hashes(self, key: RadixKey) -> list[str]:
        """The hash of each page of a key, in hex."""
        self.tree.radix.page_count(key)
        digests = hash_pages(key.data, self.tree.radix.bytes_per_page, chain_seed(key.namespace))
        return [digest.hex() for digest in digests]

    # The device tier.

    @verb
    def match(self, key: RadixKey, chunked: bool = False) -> MatchResult:
        """The longest prefix at whose end every component is valid. `chunked`: a repeated look-up is not a new hit."""
        require_type("chunked", chunked, bool)
        found = self.tree.match(key)
        self.tree.touch(found.best, self.tree.tick())
        result = MatchResult(
            device_indices=self._slots_of(found.path[: found.anchor_steps]),
            device_anchor=found.anchor,
            best_match=found.best,
            host_hit_length=self._host_hit(self.tree.components[FULL], found),
            component_host_hit_lengths=self._host_hits(found),
            branching_seqlen=self._branching_seqlen(found),
            tokens_refused=self._no_tokens if found.full_end == found.best.end else self._tokens_refused(found),
            full_kv_hit_length=found.full_end * self.config.page_size,
        )
        if not chunked:
            self._count_hit(key, found.path, result)
        return result

    @verb
    def count_hit(self, key: RadixKey, found: MatchResult) -> None:
        """Count what a `chunked` match found as a hit: its request is served. One that waits for room is none."""
        self._count_hit(key, found.best_match.path(), found)

    @verb
    def insert(self, key: RadixKey, slots: Slots, state: int | None = None, priority: int = 0) -> InsertResult:
        """Give the slots of the key's whole pages to the tree. It keeps each, or frees it because it has that page.

        `slots`: int64, [length(key)], in whole aligned pages; those that the caller shares with the tree may be among
        them. `state`: the MAMBA slot that has the state after the last whole page, or None.
        A state that the tree does not adopt stays the caller's.
        Raises KeyFormError when slots and key differ in length, SlotError for a slot that neither the caller has nor
        the tree at the same place, and for a state that the caller does not have.
        """
        pages, length = self.pools.pages_of(slots), self.length(key)
        if len(slots) != length:
            raise KeyFormError(f"{len(slots)} slots were given for {length} tokens")
        self.pools.allocators[Component.FULL].check_held(pages)
        if state is not None:
            self._own_state(state)
        priority = require_integer("priority", priority)
        now, window_start = self.tree.tick(), self.pools.window_start(pages)
        insertion = Insertion(pages, NO_SLOTS, window_start, state, now, priority, prefix_end=0, state_adopted=False)
        node, accepted_end = self.tree.insert(key, insertion)
        for refused in (insertion.duplicates, pages[node.end :]):
            self.tree.components[FULL].device.free_later(refused)
        node.priority = max(node.priority, priority)
        self.tree.touch(node, now)
        if self.host is not None:
            self.host.backups.consider(node)
        if self.storage is not None and self.storage.worker.is_attached:
            self.storage.writer.note_use(node)
        if insertion.state_adopted:
            self.tree.trim(node)
        page = self.config.page_size
        return InsertResult(insertion.prefix_end * page, accepted_end * page, node, insertion.state_adopted)

    @verb
    def lock(self, node: Node, with_state: bool = True) -> LockReceipt:
        """Protect on the device all that a request reading up to the node's end needs.

        Of a node that is on the host alone it protects what is there: its host data, and its path on the device.
        `with_state`: False leaves out the MAMBA state, for a reader that has a copy of it. Raises StaleHandleError for
        a node that is not in the tree.
        """
        components = None if require_type("with_state", with_state, bool) else self._stateless
        return self.tree.locks.lock(node, Tier.DEVICE, components)

    @verb
    def unlock(self, receipt: LockReceipt) -> None:
        """Undo a lock. Raises ReceiptError unless the receipt is outstanding and taken since the last reset."""
        self.tree.locks.unlock(receipt, Tier.DEVICE)

    @verb
    def unlock_window(self, receipt: LockReceipt) -> LockReceipt:
        """Undo the SWA part of a lock early, when its reader has left the window. FULL stays locked.

        The state at the window's end is unlocked too: it would keep the window there, and no match finds it without.
        Returns the receipt of what is left, which takes the place of this one; the same one when there was no window.
        Raises ReceiptError as `unlock`.
        """
        self._require_component(Component.SWA.value)
        return self.tree.locks.unlock_from(receipt, Tier.DEVICE, self._by_name[Component.SWA].index)

    @verb(waits=True)
    def evict(self, component: str, tokens: int) -> EvictResult:
        """Free at least so many of the component's slots (states for MAMBA), or all that is not locked.

        What has a copy on the host stays in the tree.
        """
        evicted = self._evictor.evict(component, self._units_of(component, tokens))
        freed = {name: self._by_name[name].device.dropped_pages * unit for name, unit in self._units.items()}
        return EvictResult(freed, evicted.victims, evicted.refused)

    @verb(waits=True)
    def allocate(self, tokens: int) -> Slots | None:
        """Slots for whole pages, with SWA partners; evicts what is missing. None when short.

        With write_back a part may have been evicted before a copy to the host failed.
        Raises ArgumentError when the page size does not divide the number.
        """
        pages, rest = divmod(require_count("tokens", tokens), self.config.page_size)
        if rest:
            raise ArgumentError(f"cannot allocate {tokens} tokens in pages of {self.config.page_size}")
        is_available = self._evictor.ensure_available(dict.fromkeys(self._paged, pages))
        taken = self.pools.allocate(pages) if is_available else None
        return None if taken is None else self.pools.slots_of(taken)

    @verb
    def free(self, slots: Slots) -> None:
        """Free slots that the caller has, and their SWA partners. Otherwise SlotError, and nothing changes."""
        self.pools.free(self._of_caller(Component.FULL, self.pools.pages_of(slots)))

    @verb
    def release_window(self, slots: Slots) -> None:
        """Free the SWA partners alone of slots that the caller has. Otherwise SlotError, and nothing changes."""
        self.pools.free_window(self._of_caller(Component.FULL, self.pools.pages_of(slots)))

    @verb(waits=True)
    def allocate_state(self) -> int | None:
        """A slot for one MAMBA state; evicts one if need be. None when every state is locked or a caller's."""
        self._require_component(Component.MAMBA.value)
        if not self._evictor.ensure_available({Component.MAMBA: 1}):
            return None
        taken = self.pools.allocators[Component.MAMBA].allocate(1)
        return None if taken is None else int(taken[0])

    @verb
    def free_state(self, slot: int) -> None:
        """Free a state slot that the caller has. Otherwise SlotError, and nothing changes."""
        self.pools.free_states(self._own_state(slot))

    @verb
    def fork_state(self, node: Node) -> int | None:
        """A slot of the caller's own with a copy of the node's state, or None when no slot is available.

        Raises StaleHandleError when the node is not in the tree or has no state.
        """
        state = self.state_of(node)
        receipt = self.lock(node)
        try:
            slot = self.allocate_state()
        finally:
            self.unlock(receipt)
        if slot is not None:
            self.copy_state(state, slot)
        return slot

    @reads
    def state_of(self, node: Node) -> int:
        """The slot of a node's state, which only the tree may write. Raises StaleHandleError when it has none."""
        self._require_component(Component.MAMBA.value)
        self.tree.require(node)
        state = node.device[self._by_name[Component.MAMBA].index].value
        if state is None:
            raise StaleHandleError(f"{node!r} has no state on the device")
        return int(state[0])

    @verb
    def copy_state(self, source: int, target: int) -> None:
        """Copy a MAMBA state to a slot that the caller has. Otherwise SlotError, and nothing changes."""
        self.pools.copy_state(self._held_state(source), self._own_state(target))
        self.counters.states_copied += 1

    @verb
    def copy_loaded_state(self, ticket: LoadBackTicket, layer: int, target: int) -> None:
        """Copy the state that a load-back brings, in a layer of the stack that may be read, to a slot of the caller.

        Raises SlotError, with nothing changed, for a slot that the caller does not have, and StaleHandleError when the
        layer may not be read.
        """
        own = self._own_state(target)
        if not self.wait_layer(ticket, layer):
            raise StaleHandleError(f"layer {layer} of the load-back of {ticket.node!r} may not be read")
        host = self._host_tier
        self.pools.copy_state_layer(host.load_backs.state_of(ticket), own, host.order[layer])
        self.counters.states_copied += layer == host.layers - 1

    @verb
    def take_freed(self) -> dict[str, Slots]:
        """The device slots that became free since the last call, by component, each as often as it did.

        For a caller whose own allocator has the memory behind these slots. The first call begins to note them.
        """
        freed = {name: allocator.take_freed() for name, allocator in self.pools.allocators.items()}
        return {name: self.pools.component_slots(name, pages) for name, pages in freed.items()}

    @reads
    def slots_to(self, node: Node, component: str = Component.FULL.value) -> Slots:
        """The slots of a component from the root to the node's end, without a use of them: int64 [tokens].

        "swa": the partners of the FULL slots, 0 where there is none; "mamba": the state at the node's end, or nothing.
        What is on the host alone is left out. Raises StaleHandleError when the node is not in the tree.
        """
        self.tree.require(node)
        self._require_component(component)
        if component == Component.MAMBA:
            state = NO_SLOTS if node.is_root else node.device[self._by_name[component].index].value
            return NO_SLOTS if state is None else state.copy()
        slots = self._slots_of(node.path())
        if component == Component.FULL:
            return slots
        page = self.config.page_size
        partners = self.pools.partners(self.pools.pages_of(slots))
        windows = self.pools.component_slots(component, partners)
        return np.where(np.repeat(partners, page) == 0, 0, windows)

    @reads
    def describe(self, node: Node) -> NodeInfo:
        """What a node stands for, without a use of it. Raises StaleHandleError when it is not in the tree."""
        self.tree.require(node)
        ids, page = np.frombuffer(node.key, dtype=np.int32), self.config.page_size
        tokens = np.append(ids[::2], ids[-1:]) if self.config.bigram else ids
        children = tuple(node.children.values())
        return NodeInfo(tokens, node.namespace, node.parent, children, node.start * page, node.pages * page)

    @reads
    def sizes(self) -> dict[str, Sizes]:
        """The size counters of each component on the device."""
        return self._sizes(Tier.DEVICE)

    # The host tier. Without one these verbs raise ConfigurationError.

    @verb(waits=True)
    def load_back(self, node: Node, quota: int | None = None) -> LoadBack | None:
        """Copy what a reader up to the node lacks to the device, if it is worth it and there is room.

        `quota`: FULL tokens that may be loaded. None, with no ticket, when there is nothing to copy or to join, too
        little, too much, no room, or a page that is on no tier. The path is protected until the load-back has ended;
        when it is done, the node is protected until the ticket is claimed. Raises StaleHandleError when the node is not
        in the tree.
        """
        host, page = self._host_tier, self.config.page_size
        threshold = -(-self._load_back_tokens // page)
        quota_pages = None if quota is None else require_count("quota", quota) // page
        started = host.load_backs.load_back(node, threshold, quota_pages)
        return None if started is None else LoadBack(self.pools.slots_of(started[0]), started[1])

    @reads
    def load_phase(self, ticket: LoadBackTicket) -> TransferPhase:
        """How far a load-back has come, as of the last step."""
        return self._host_tier.load_backs.phase(ticket)

    @reads
    def layers_done(self, ticket: LoadBackTicket) -> int:
        """How many layers of the stack have arrived of all that the ticket waits for; all of them once it has ended."""
        return self._host_tier.load_backs.layers_done(ticket, self._host_tier.layers)

    @reads
    @timed
    def wait_layer(self, ticket: LoadBackTicket, layer: int) -> bool:
        """Return when a layer of the stack has arrived, or the load-back has ended. Whether it may be read.

        On a GPU the current stream waits instead of the caller. False for a load-back that has failed or was not
        started by `step`, and until its end for one that brings a window to slots which the device has already.
        Layers that were read are of no use if the load-back fails after all.
        """
        host = self._host_tier
        if require_count("layer", layer) >= host.layers:
            raise ArgumentError(f"layer is {layer}, the stack has {host.layers}")
        return host.load_backs.wait_layer(ticket, layer)

    @verb
    def claim(self, ticket: LoadBackTicket) -> Slots | None:
        """The tree's slots for what was loaded, or None when it failed. The ticket protects nothing any more.

        Raises ReceiptError until the load-back has ended, and when the ticket was claimed or abandoned before.
        """
        pages = self._host_tier.load_backs.claim(ticket)
        return None if pages is None else self.pools.slots_of(pages)

    @verb
    def abandon(self, ticket: LoadBackTicket) -> None:
        """Cancel the ticket of a load-back. Raises ReceiptError when it was claimed or abandoned before."""
        self._host_tier.load_backs.cancel(ticket)

    @verb
    def backup(self, node: Node) -> bool:
        """Queue copies to the host of what of the path to a node is not there yet, with any policy and number of hits.

        False when some of it cannot be copied now. The next `step` starts them. Raises StaleHandleError when the node
        is not in the tree.
        """
        host = self._host_tier
        self.tree.require(node)
        return host.backups.back_up(node)

    @verb
    def set_thresholds(self, backup_hits: int | None = None, load_back_tokens: int | None = None) -> None:
        """Change from how many hits on a node is backed up, and below how many FULL tokens nothing is loaded back.

        None leaves a threshold unchanged. With write_back a node is backed up when it leaves the device, with any hits.
        """
        host = self._host_tier
        hits = None if backup_hits is None else require_count("backup_hits", backup_hits)
        tokens = None if load_back_tokens is None else require_count("load_back_tokens", load_back_tokens)
        if hits is not None:
            self._backup_hits = host.backups.min_hits = hits
        self._load_back_tokens = self._load_back_tokens if tokens is None else tokens

    @verb
    def lock_host(self, node: Node) -> LockReceipt:
        """Protect the node and its host data. Raises StaleHandleError when it is not in the tree."""
        self._require_host()
        return self.tree.locks.lock(node, Tier.HOST)

    @verb
    def unlock_host(self, receipt: LockReceipt) -> None:
        """Undo a host lock. Raises ReceiptError unless the receipt is outstanding and taken since the last reset."""
        self._require_host()
        self.tree.locks.unlock(receipt, Tier.HOST)

    @verb
    def evict_host(self, component: str, tokens: int) -> EvictResult:
        """Free at least so many of the component's host slots, or all that can be."""
        host = self._host_tier
        victims = host.evictor.evict(component, self._units_of(component, tokens))
        freed = {name: self._by_name[name].host.dropped_pages * unit for name, unit in self._units.items()}
        return EvictResult(freed, victims, refused=0)

    @reads
    def host_sizes(self) -> dict[str, Sizes]:
        """The size counters of each component on the host."""
        self._require_host()
        return self._sizes(Tier.HOST)

    # The storage tier. Without one these verbs raise ConfigurationError.

    @verb
    def prefetch(self, key: RadixKey) -> Prefetch | None:
        """Begin to read the stored pages of a key, past those in the tree, to the host; None when it is refused."""
        storage = self._storage_tier
        return storage.prefetches.prefetch(key) if storage.worker.is_attached else None

    @verb
    def check_prefetch(self, prefetch: Prefetch) -> int | None:
        """The tokens that a prefetch brought, which ends its ticket; None while the request should wait for it.

        Raises ReceiptError when the ticket has ended.
        """
        return self._storage_tier.prefetches.check(prefetch)

    @verb
    def abort_prefetch(self, prefetch: Prefetch) -> None:
        """Cancel the ticket of a prefetch. Raises ReceiptError when its ticket has ended."""
        self._storage_tier.prefetches.cancel(prefetch)

    @verb(waits=True, harmless=Exception)
    def attach_storage(self) -> bool:
        """Open the backend, on all ranks or on none; False when there is one, also an abandoned one in a call.

        Raises TimeoutError when it does not answer in time.
        """
        storage = self._storage_tier
        if storage.worker.is_attached or not storage.quarantine.is_empty:
            return False
        self._agreement.together(storage.attach, lambda _: storage.detach(), "attach")
        return True

    @verb(waits=True)
    def detach_storage(self) -> bool:
        """Close the backend; False while anything is under way, or when there is none."""
        storage = self._storage_tier
        if not storage.worker.is_attached or not self.is_idle:
            return False
        storage.detach()
        storage.writer.clear_marks()
        return True

    @verb(waits=True)
    def clear_storage(self) -> bool:
        """Remove all that the cache has in storage; False while anything is under way, or when a rank cannot."""
        storage = self._storage_tier
        if not self.is_idle or not self._agreement.every("clear", did=storage.clear()):
            return False
        storage.writer.note_cleared()
        return True

    # All tiers.

    @property
    @reads
    def is_idle(self) -> bool:
        """Whether nothing is under way between the tiers."""
        if self.storage is not None and (self.storage.prefetches.under_way or not self.storage.writer.is_idle):
            return False
        return self.host is None or not self.host.controller.under_way()

    @verb(waits=True)
    def step(self) -> None:
        """Take over what has ended on every rank, and start what waits. All of it is one agreement of the ranks."""
        host, storage = self.host, self.storage
        if host is None:
            return
        queues: list[TransferQueue[Any]] = [*host.controller.queues.values()]
        queues += [storage.reads, storage.writes] if storage else []
        is_late = storage is not None and storage.is_late
        votes, waiting = storage.prefetches.report() if storage else ([], "")
        acknowledge = partial(self._agreement.acknowledged, waiting=waiting)
        *still_wait, is_on_time = complete_together(queues, acknowledge, [*votes, int(not is_late)])
        host.backups.take_over()
        host.load_backs.take_over()
        host.backups.start_due()
        for kind in host.controller.queues:
            host.controller.start(kind)
        # The prefetches below need these slots.
        self.tree.free_dropped()
        if storage is None:
            return
        self.counters.storage_errors = storage.worker.errors
        self.counters.bytes_staged = storage.worker.bytes_staged
        storage.prefetches.note_votes(still_wait)
        if not is_on_time:
            storage.disown()
        storage.take_over()
        storage.writer.take_over()
        storage.prefetches.take_over()
        storage.writer.start_due()
        storage.writes.start()
        storage.reads.start()

    @verb(waits=True)
    def drain(self) -> None:
        """Step until nothing is under way, waiting for what runs."""
        self.step()
        while not self.is_idle:
            self._wait()
            self.step()

    @timed
    def reset(self) -> None:
        """Free all that the tree has, on device and host. Receipts and tickets are refused from now on.

        Transfers are aborted. Slots that callers have stay theirs. What is in storage stays there. After a verb was
        interrupted the cache is made anew over the same memory: then the slots and requests that callers have are void
        as well. Of several ranks none can do this alone: close the caches of all.
        """
        with self.turn.taken("reset") as was_interrupted:
            if was_interrupted:
                self._make_anew()
                return
            self._end_transfers()
            self.tree.reset()
            if self.storage is not None:
                self.storage.quarantine.keep_dropped()

    @timed
    def close(self) -> None:
        """End what is under way, and give back threads, files and pinned memory, also if a part of it raises.

        Memory that a backend may be using, because it does not answer, is given back when it answers. From then on
        verbs raise ClosedError; closing again does nothing. What was counted can still be read.
        """
        if self.turn.is_closed:
            return
        with self.turn.taken("close") as was_interrupted, ExitStack() as closing:
            closing.callback(self.turn.close)
            if self._kept.metrics is not None:
                # Entered first, so that it is called last: what the end of the tiers counts is exposed too.
                closing.callback(self._kept.metrics.remove, self)
            if self.host is not None:
                if self.storage is None:
                    closing.callback(self.host.pools.close)
                else:
                    closing.callback(self.storage.close, self.host.pools.close)
                    if not was_interrupted:
                        closing.callback(self.storage.reset)
                closing.callback(self.host.controller.close)
                if not was_interrupted:
                    closing.callback(self.host.controller.reset)

    def __repr__(self) -> str:
        """Its components and pages, and of each tier what is free; or that it is closed."""
        tiers = "closed" if self.turn.is_closed else "; ".join(self._tiers_in_words())
        return f"UnifiedRadixCache({'+'.join(self.config.components)}, page_size={self.config.page_size}; {tiers})"

    @reads
    def draw(self, most: int = 100) -> str:
        """The tree as text: a line for each node, at most so many, with its tokens, and its data on device and host.

        A letter is a component: F for FULL, S for SWA, M for MAMBA. ■ is there, ○ is being copied to there, † is not
        there though FULL is, · is not there. [■] is locked. Beside another thread's verb it may fail.
        """
        stride = 2 if self.config.bigram else 1
        return draw_tree(self.tree.radix.root, list(self._by_name), stride, require_count("most", most))

    @reads
    def __enter__(self) -> UnifiedRadixCache:  # noqa: PYI034 - 3.10 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the verbs have in common.

    def _tiers_in_words(self) -> Iterator[str]:
        """Such as `device: 48 of 64 full, 3 of 4 mamba free`."""
        capacities = {Tier.DEVICE: self.config.capacity_tokens}
        if self.config.host is not None:
            capacities[Tier.HOST] = self.config.host.capacity_tokens
        for tier, capacity in capacities.items():
            free = [f"{one.free} of {capacity[name]} {name}" for name, one in self._sizes(tier).items()]
            yield f"{tier.value}: {', '.join(free)} free"
        if self.storage is not None:
            yield f"storage: {self.storage.name}{'' if self.storage.worker.is_attached else ', detached'}"

    @property
    def _host_tier(self) -> HostTier:
        return _required(self.host, self.config, "host")

    @property
    def _storage_tier(self) -> StorageTier:
        return _required(self.storage, self.config, "storage")

    def _require_host(self) -> None:
        _required(self.host, self.config, "host")

    def _require_component(self, component: object) -> None:
        if not isinstance(component, str) or component not in self._by_name:
            wanted = (*self.config.components, component)
            raise ConfigurationError(
                f"{self.config.name} has no component {component!r}: open the cache with components={wanted}"
            )

    def _make_anew(self) -> None:
        """An empty cache over the same memory. What the books say of the old one may be wrong.

        Raises InterruptedVerbError, so that the reset can be tried again, while a backend may be using the memory.
        """
        have_ended = self.host is None or self.host.controller.close()
        if self.storage is not None:
            have_ended = self.storage.close_executors() and have_ended
        if not have_ended:
            raise InterruptedVerbError(
                "reset: the storage backend has not answered: reset the cache later, or close it"
            )
        self.epoch += 1
        self.tree.report_removed()
        self.pools.reset()
        if self.host is not None:
            self.host.pools.reset()
        with ExitStack() as opened:
            self._use(Tiers.over(self._kept, opened))
            opened.pop_all()

    def _wait(self) -> None:
        """Return when all that runs has ended on this rank. Storage jobs are waited for from the oldest on."""
        if self.host is not None:
            for kind in TransferKind:
                self.host.controller.wait(kind)
        if self.storage is not None:
            jobs = [(job, queue) for queue in (self.storage.reads, self.storage.writes) for job in queue.running]
            for job, queue in sorted(jobs, key=lambda pair: pair[0].number):
                queue.wait_for(job)

    def _end_transfers(self) -> None:
        """End what is under way, and free what was on its way."""
        if self.storage is not None:
            # Whether anything runs is the same on every rank, and so is whether they ask each other.
            if self.storage.is_running and not self._has_stopped(self.storage):
                self.storage.disown()
            self.storage.reset()
        if self.host is not None:
            for transfer in self.host.controller.reset():
                is_backup = transfer.kind is TransferKind.BACKUP
                (self.host.backups.free_target if is_backup else self.host.load_backs.free_target)(transfer)
            self.host.backups.reset()
            self.host.load_backs.reset()

    def _has_stopped(self, storage: StorageTier) -> bool:
        """Stop all calls of the backend. Whether they have ended on every rank; after one was lost, on this one."""
        has_stopped = storage.stop()
        try:
            return self._agreement.every("reset", did=has_stopped)
        except RankError:
            # No verb goes on together any more, and this rank must be able to free what it has.
            return has_stopped

    def _sizes(self, tier: Tier) -> dict[str, Sizes]:
        on_host = tier is Tier.HOST
        pools = self._host_tier.pools if on_host else self.pools
        return {
            name: (component.host if on_host else component.device).sizes(
                self._units[name], pools.allocators[name].free_pages
            )
            for name, component in self._by_name.items()
        }

    def _units_of(self, component: str, tokens: int) -> int:
        """The pages of a component (states for MAMBA) that so many of its slots need."""
        self._require_component(component)
        return -(-require_count("tokens", tokens) // self._units[component])

    def _own_state(self, slot: int) -> Slots:
        """A state slot that the caller has, as an array of one. Raises SlotError for any other."""
        return self._of_caller(Component.MAMBA, self._held_state(slot))

    def _held_state(self, slot: int) -> Slots:
        """A state slot that is not free, as an array of one. Raises SlotError for any other."""
        self._require_component(Component.MAMBA.value)
        states = self.pools.allocators[Component.MAMBA]
        if require_count("state", slot) > states.capacity_pages:
            raise SlotError(f"state {slot} is not in 1..{states.capacity_pages}")
        state = np.array([slot], dtype=np.int64)
        states.check_held(state)
        return state

    def _of_caller(self, component: str, pages: Slots) -> Slots:
        if self._by_name[component].device.owned(pages):
            raise SlotError(f"{component}: of pages {pages.tolist()} some are the tree's")
        return pages

    def _slots_of(self, path: Sequence[Node]) -> Slots:
        pages = [value for node in path if (value := node.device[FULL].value) is not None]
        return self.pools.slots_of(np.concatenate(pages) if pages else NO_SLOTS)

    def _count_hit(self, key: RadixKey, path: Sequence[Node], found: MatchResult) -> None:
        for node in path:
            node.hit_count += 1
        if self.host is not None:
            self.host.backups.note_use(found.device_anchor)
        if self.storage is not None and self.storage.worker.is_attached:
            self.storage.writer.note_use(found.best_match)
        traffic, hit = self.counters.traffic, found.best_match.end * self.config.page_size
        # Past the anchor FULL may be on the device too, where a window or a state has to be loaded.
        traffic.tokens_matched_device += hit - found.host_hit_length
        traffic.tokens_matched_host += found.host_hit_length
        asked = len(key.data) // self.tree.radix.bytes_per_page * self.config.page_size
        traffic.tokens_missed += asked - hit
        if found.tokens_refused is not self._no_tokens:
            for name, tokens in found.tokens_refused.items():
                traffic.tokens_refused[name] += tokens
            self._misses.consider()

    def _host_hits(self, found: Match) -> Mapping[str, int]:
        if found.best is found.anchor:
            return self._no_tokens
        return {component.name: self._host_hit(component, found) for component in self.tree.components[1:]}

    def _host_hit(self, component: TreeComponent, found: Match) -> int:
        return found.pages_on_host(component) * self._units[component.name]

    def _tokens_refused(self, found: Match) -> Mapping[str, int]:
        pages = found.refused_pages(len(self._units))
        return {name: count * self.config.page_size for name, count in zip(self._no_tokens, pages, strict=True)}

    def _branching_seqlen(self, found: Match) -> int | None:
        chunk = self.config.mamba_chunk_size
        if Component.MAMBA not in self._by_name or chunk is None:
            return None
        aligned = found.reached_end * self.config.page_size // chunk * chunk
        return aligned if aligned > found.best.end * self.config.page_size else None


def stats_of(cache: UnifiedRadixCache) -> Stats:
    """What a cache says of itself. Any thread may ask, also once the cache is closed."""
    config, host, storage = cache.config, cache.host, cache.storage
    tiers: list[tuple[Tier, DevicePools | HostPools]] = [(Tier.DEVICE, cache.pools)]
    queues: dict[str, tuple[int, int]] = {}
    if host is not None:
        tiers.append((Tier.HOST, host.pools))
        queues = {kind.value: host.controller.lengths(kind) for kind in TransferKind}
    of_storage = None
    if storage is not None:
        queues |= {"storage_read": storage.reads.lengths, "storage_write": storage.writes.lengths}
        worker, abandoned = storage.worker, len(cache.liveness.abandoned)
        of_storage = StorageStats(storage.name, worker.errors_by_verb, abandoned, worker.breaker)
    pools: list[PoolStats] = []
    for (tier, of_tier), name in product(tiers, config.components):
        allocator, unit = of_tier.allocators[name], 1 if name == Component.MAMBA else config.page_size
        free = allocator.free_pages
        pools.append(PoolStats(tier, name, free * unit, (allocator.capacity_pages - free) * unit))
    return Stats(config, cache.counters, pools, queues, of_storage)


def _required(tier: T | None, config: CacheConfig, name: str) -> T:
    if tier is None:
        raise ConfigurationError(
            f"{config.name} has no {name} tier: open the cache with {name}={name.title()}Config(…)"
        )
    return tier


def _over_config(call: OpenT) -> OpenT:
    """Give `open_cache` the fields of its configuration as keywords, where the caller does not give them."""
    known = tuple(one.name for one in signature(call).parameters.values() if one.kind is Parameter.KEYWORD_ONLY)

    @wraps(call)
    def opened(config: CacheConfig | None = None, **given: Any) -> UnifiedRadixCache:
        if config is not None and not isinstance(config, CacheConfig):
            raise ConfigurationError(
                f"config must be a CacheConfig or None, got {config!r}; read_config reads a file, JSON or a mapping"
            )
        unknown = sorted(given.keys() - set(known))
        if unknown:
            raise ConfigurationError(f"open_cache has no argument {unknown[0]!r}; known: {' '.join(known)}")
        kept = {} if config is None else {one.name: getattr(config, one.name) for one in fields(config)}
        return call(**kept | given)

    return cast("OpenT", opened)


@_over_config
def open_cache(  # noqa: PLR0913 - its keywords are the fields of a configuration
    config: CacheConfig | None = None,
    *,
    capacity_tokens: int | Mapping[str, int] | None = None,
    page_size: int = 1,
    components: tuple[str, ...] = ("full",),
    sliding_window_size: int | None = None,
    mamba_chunk_size: int | None = None,
    policy: EvictionPolicy = EvictionPolicy.LRU,
    bigram: bool = False,
    events: bool = False,
    model: ModelShape | None = None,
    device: str = "cpu",
    layout: Layout = Layout.LAYER_FIRST,
    topology: Topology = SINGLE_RANK,
    host: HostConfig | None = None,
    storage: StorageConfig | None = None,
    recency: Recency = Recency.USED,
    mamba_checkpoint_interval: int | None = None,
    mamba_max_states_per_path: int | None = None,
    groups: Mapping[str, Group] | None = None,
    tensors: Mapping[str, Sequence[torch.Tensor]] | None = None,
    metrics: CacheMetrics | None = None,
) -> UnifiedRadixCache:
    """Open an empty cache. The cache is a context manager that closes itself.

    `config`: how; the keywords are its fields, in its place or on top of it: CacheConfig says what they mean.
    `capacity_tokens`: device tokens by component (for MAMBA: states), or their number where FULL is the only component.
    `groups`: by axis, the ranks that share the tree, as open_groups makes them for the same topology: each opens its
    cache, and opening succeeds on all ranks or on none; then RankError names the rank that failed. `tensors`: see
    UnifiedRadixCache.open. `metrics`: a CacheMetrics, which exposes to Prometheus what the cache and its collectives
    do. Raises ConfigurationError, naming the field and its value, for what cannot be served.
    """
    assert config is None, "its fields are keywords here"
    if capacity_tokens is None:
        raise ConfigurationError("open_cache needs capacity_tokens, such as 65536 or {'full': 65536, 'swa': 8192}")
    sizes = {Component.FULL.value: capacity_tokens} if isinstance(capacity_tokens, int) else capacity_tokens
    opened = CacheConfig(
        sizes, page_size, components, sliding_window_size, mamba_chunk_size, policy, bigram, events,
        model, device, layout, topology, host, storage, recency, mamba_checkpoint_interval, mamba_max_states_per_path,
    )  # fmt: skip
    for name, table in {"groups": groups, "tensors": tensors}.items():
        if table is not None and not isinstance(table, Mapping):
            raise ConfigurationError(f"{name} must be a table or None, got {table!r}")
    if metrics is not None and not isinstance(metrics, CacheMetrics):
        raise ConfigurationError(f"metrics must be a CacheMetrics or None, got {metrics!r}")
    check_groups(opened.topology, groups or {})
    agreement = Agreement(metrics.measured_groups(groups or {}, opened.topology) if metrics else groups or {})
    opening = partial(UnifiedRadixCache.open, opened, agreement=agreement, tensors=tensors, metrics=metrics)
    return agreement.together(opening, UnifiedRadixCache.close, "open")
