"""UnifiedRadixCache: match, insert, lock, evict. One thread owns it; only its executors move bytes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType

import numpy as np

from hicache.components.base import Insertion, Surroundings, TreeComponent
from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.components.locks import DEVICE, LockReceipt, Locks
from hicache.components.matching import Found, find
from hicache.components.registry import REGISTRY
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, KeyFormError, SlotError, StaleHandleError
from hicache.events import EventLog
from hicache.keys import RadixKey, chain_seed, hash_pages
from hicache.metrics import Counters
from hicache.parallel.agree import ALONE, Agreement
from hicache.parallel.terms import agreed_config
from hicache.pools.group import DevicePools
from hicache.pools.host import HostPools
from hicache.stacks import pool_specs
from hicache.tiers.device_room import DeviceRoom
from hicache.tiers.host_tier import HostTier, OpenExecutor
from hicache.tiers.lower_tiers import LowerTiers
from hicache.tiers.storage_tier import StorageTier, StorageWorld
from hicache.tree.node import Node
from hicache.types import (
    NO_SLOTS,
    Component,
    EvictResult,
    InsertResult,
    MatchResult,
    Namespace,
    Sizes,
    Slots,
    Tokens,
)


class UnifiedRadixCache:
    """A radix tree whose nodes hold the data of several components, on the device and, if configured, on the host.

    Lengths at this interface are in tokens, slots are int64 arrays of one entry per token, states are single slots.
    `open_executor`: who moves bytes between the tiers; needed with a host tier. `world`: what a storage tier works
    with. `agreement`: how the ranks that share the tree decide; all make the same calls in the same order.
    """

    def __init__(
        self,
        config: CacheConfig,
        open_executor: OpenExecutor | None = None,
        world: StorageWorld | None = None,
        agreement: Agreement = ALONE,
    ) -> None:
        # First of all, as whoever fails before it would be missed by the others.
        config = agreed_config(config, agreement)
        unknown = [name for name in config.components if name not in REGISTRY]
        if unknown:
            raise ConfigurationError(f"components {unknown} are unknown; known: {sorted(REGISTRY)}")
        self.config = config
        self.counters = Counters()
        specs = pool_specs(config)
        self.pools = DevicePools(config, specs)
        self.events = EventLog(config.events)
        bank = HostPools(config, specs) if config.host is not None else None
        self._ensemble = Ensemble(Surroundings(config, self.pools, bank, self.events, self.counters))
        self.tree = self._ensemble.tree
        self.locks = Locks(self._ensemble)
        self._components = self._ensemble.components
        self._by_name = self._ensemble.by_name
        self._has_states = Component.MAMBA in self._by_name
        self._units = {name: 1 if name == Component.MAMBA else config.page_size for name in self._by_name}
        self._no_host_hits = MappingProxyType(dict.fromkeys(list(self._by_name)[1:], 0))
        self._paged = [name for name, unit in self._units.items() if name != Component.MAMBA]
        self.host = (
            HostTier(config, self._ensemble, self.locks, self.pools, bank, self.counters, open_executor, agreement)
            if bank
            else None
        )
        self.storage = self._open_storage(self.host, world, agreement) if self.host and world else None
        self._lower = LowerTiers(self.host, self.storage, agreement)
        self._room = self.host.room if self.host else DeviceRoom(self._ensemble, self.pools, None)

    def key(self, tokens: Tokens, namespace: Namespace) -> RadixKey:
        """The whole pages of a prompt as this cache's key. Tokens: int32, [n]."""
        return RadixKey.of(tokens, namespace, self.config.page_size, self.config.bigram)

    def length(self, key: RadixKey) -> int:
        """How many tokens (pairs, with bigram keys) the key's whole pages cover."""
        return self.tree.pages_of(key) * self.config.page_size

    def match(self, key: RadixKey, chunked: bool) -> MatchResult:
        """The longest prefix at whose end every component is valid. `chunked`: looks again, so it is not a new hit."""
        found = find(self._ensemble, key)
        self._ensemble.touch(found.best, self._ensemble.tick())
        if not chunked:
            for node in found.path:
                node.hits += 1
            if self.host is not None:
                self.host.backups.used(found.anchor)
            if self.storage is not None:
                self.storage.used(found.best)
        return MatchResult(
            device_indices=self.pools.slots_of(
                _joined([node.values[FULL] for node in found.path[: found.anchor_steps]])
            ),
            device_anchor=found.anchor,
            best_match=found.best,
            host_hit_length=self._host_hit(self._components[FULL], found),
            component_host_hit_lengths=self._host_hits(found),
            branching_seqlen=self._branching(found),
        )

    def insert(self, key: RadixKey, slots: Slots, state: int | None, priority: int) -> InsertResult:
        """Hand over the slots of the key's whole pages: each is kept, or freed because the tree has that page already.

        `slots`: int64, [length(key)], in whole aligned pages; those that the caller shares with the tree may be among
        them. `state`: the MAMBA slot that holds the state after the last whole page, or None.
        Raises KeyFormError when slots and key differ in length.
        """
        if len(slots) != self.length(key):
            raise KeyFormError(f"{len(slots)} slots were given for {self.length(key)} tokens")
        now = self._ensemble.tick()
        pages = self.pools.pages_of(slots)
        window_start = self.pools.window_start(pages)
        insertion = Insertion(pages, [], window_start, state, now, priority, prefix_end=0, state_adopted=False)
        node, accepted_end = self._ensemble.lay(key, insertion)
        for refused in (insertion.duplicates(), pages[node.end :]):
            self._components[FULL].device.discard(refused)
        node.priority = max(node.priority, priority)
        self._ensemble.touch(node, now)
        if self.host is not None:
            self.host.backups.consider(node)
        if self.storage is not None:
            self.storage.used(node)
        self._ensemble.flush()
        page = self.config.page_size
        return InsertResult(insertion.prefix_end * page, accepted_end * page, node, insertion.state_adopted)

    def lock(self, node: Node) -> LockReceipt:
        """Protect all that a request reading up to the node's end needs.

        Raises StaleHandleError for a dead node, and for one that is on the host alone.
        """
        return self.locks.lock(node, DEVICE)

    def unlock(self, receipt: LockReceipt) -> None:
        """Undo what the lock of this receipt did. Raises ReceiptError unless it is outstanding, in this life."""
        self.locks.unlock(receipt, DEVICE)
        self._ensemble.flush()

    def evict(self, component: str, tokens: int) -> EvictResult:
        """Free at least so many of the component's slots (states for MAMBA), or all that is not locked.

        What has a copy on the host stays in the tree.
        """
        evicted = self._room.evict(component, -(-tokens // self._units[component]))
        freed = {name: self._by_name[name].device.dropped_pages * unit for name, unit in self._units.items()}
        self._ensemble.flush()
        return EvictResult(freed, evicted.victims, evicted.refused)

    def allocate(self, tokens: int) -> Slots | None:
        """Slots for whole pages, with SWA partners; evicts what is missing. None, with nothing evicted, when short.

        Raises ValueError when the number is no multiple of the page size.
        """
        pages, rest = divmod(tokens, self.config.page_size)
        if rest or pages < 0:
            raise ValueError(f"cannot allocate {tokens} tokens in pages of {self.config.page_size}")
        taken = self.pools.allocate(pages) if self._room.make(dict.fromkeys(self._paged, pages)) else None
        return None if taken is None else self.pools.slots_of(taken)

    def free(self, slots: Slots) -> None:
        """Take back slots that the caller holds, and their SWA partners. Otherwise SlotError, and nothing changes."""
        self.pools.free(self._of_caller(Component.FULL, self.pools.pages_of(slots)))

    def release_window(self, slots: Slots) -> None:
        """Take back the SWA partners alone of slots that the caller holds. Otherwise SlotError; nothing is changed."""
        self.pools.free_window(self._of_caller(Component.FULL, self.pools.pages_of(slots)))

    def allocate_state(self) -> int | None:
        """A slot for one MAMBA state; evicts one if need be. None when every state is locked or held."""
        if not self._room.make({Component.MAMBA: 1}):
            return None
        taken = self.pools.allocators[Component.MAMBA].allocate(1)
        return None if taken is None else int(taken[0])

    def free_state(self, slot: int) -> None:
        """Take back a state slot that the caller holds. Otherwise SlotError, and nothing is changed."""
        self.pools.free_states(self._of_caller(Component.MAMBA, np.array([slot], dtype=np.int64)))

    def fork_state(self, node: Node) -> int | None:
        """A slot of the caller's own with a copy of the node's state, or None when no slot can be had.

        Raises StaleHandleError when the node is gone or holds no state.
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

    def state_of(self, node: Node) -> int:
        """The slot of a node's state, which only the tree may write. Raises StaleHandleError when it holds none."""
        state = node.values[self._by_name[Component.MAMBA].index]
        if state is None:
            raise StaleHandleError(f"{node!r} holds no state")
        return int(state[0])

    def copy_state(self, source: int, target: int) -> None:
        """Copy a MAMBA state to another slot."""
        self.pools.copy_state(np.array([source], dtype=np.int64), np.array([target], dtype=np.int64))
        self.counters.states_copied += 1

    def slots_to(self, node: Node) -> Slots:
        """The FULL slots from the root to the node's end."""
        return self.pools.slots_of(_joined([step.values[FULL] for step in node.path()]))

    def page_hashes(self, key: RadixKey) -> list[str]:
        """The hash of each page of a key, in hex."""
        digests = hash_pages(key.data, self.tree.bytes_per_page, chain_seed(key.namespace))
        return [digest.hex() for digest in digests]

    def sizes(self) -> dict[str, Sizes]:
        """The size counters of each component on the device."""
        return {
            component.name: component.device.sizes(
                self._units[component.name], self.pools.allocators[component.name].free_pages
            )
            for component in self._components
        }

    def step(self) -> None:
        """Take over the transfers that have ended, and start those that are queued."""
        self._lower.step()

    def drain(self) -> None:
        """Wait until nothing is under way."""
        self._lower.drain()

    def close(self) -> None:
        """End what is under way, and give back threads, files and pinned memory."""
        self._lower.close()

    def reset(self) -> None:
        """Free all that the tree holds, on every tier. Receipts and tickets are refused from now on.

        Transfers are aborted; slots that callers hold stay theirs.
        """
        self._lower.abort()
        self.locks.clear()
        self._ensemble.clear()
        self._ensemble.flush()

    def _open_storage(self, host: HostTier, world: StorageWorld, agreement: Agreement) -> StorageTier:
        with ExitStack() as opened:
            opened.callback(host.close)
            storage = StorageTier(self.config, self._ensemble, self.locks, host, self.counters, world, agreement)
            opened.pop_all()
        return storage

    def _of_caller(self, component: str, pages: Slots) -> Slots:
        if self._by_name[component].device.owns(pages):
            raise SlotError(f"{component}: of pages {pages.tolist()} some are the tree's")
        return pages

    def _host_hits(self, found: Found) -> Mapping[str, int]:
        if found.best is found.anchor:
            return self._no_host_hits
        return {component.name: self._host_hit(component, found) for component in self._components[1:]}

    def _host_hit(self, component: TreeComponent, found: Found) -> int:
        return found.pages_on_host(component) * self._units[component.name]

    def _branching(self, found: Found) -> int | None:
        chunk = self.config.mamba_chunk_size
        if not self._has_states or chunk is None or self.host is not None:
            return None
        aligned = found.reached_end * self.config.page_size // chunk * chunk
        return aligned if aligned > found.anchor.end * self.config.page_size else None


def _joined(parts: list[Slots | None]) -> Slots:
    held = [part for part in parts if part is not None]
    return np.concatenate(held) if held else NO_SLOTS
