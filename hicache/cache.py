"""UnifiedRadixCache: match, insert, lock, evict, allocate. One thread owns it; nothing in here waits or does I/O."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hicache.components.base import FULL, Insertion, Surroundings, TreeComponent
from hicache.components.ensemble import Ensemble
from hicache.components.registry import REGISTRY
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError, KeyFormError, ReceiptError, SlotError, StaleHandleError
from hicache.events import EventLog
from hicache.keys import RadixKey, chain_seed, hash_pages
from hicache.metrics import Counters
from hicache.pools.group import DevicePools
from hicache.stacks import pool_specs
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, EvictResult, InsertResult, MatchResult, Namespace, Sizes, Slots, Tokens


@dataclass(frozen=True, slots=True, eq=False)
class LockReceipt:
    """What `lock` took: the node, and what each component must know to give it back."""

    node: Node
    marks: tuple[int, ...]


class UnifiedRadixCache:
    """A radix tree whose nodes hold the data of several components, on the device.

    Lengths at this interface are in tokens, slots are int64 arrays of one entry per token, states are single slots.
    """

    def __init__(self, config: CacheConfig) -> None:
        unknown = [name for name in config.components if name not in REGISTRY]
        if unknown:
            raise ConfigurationError(f"components {unknown} are unknown; known: {sorted(REGISTRY)}")
        self.config = config
        self.counters = Counters()
        self.pools = DevicePools(config, pool_specs(config))
        self.events = EventLog(config.events)
        self._ensemble = Ensemble(Surroundings(config, self.pools, self.events, self.counters))
        self.tree = self._ensemble.tree
        self._components = self._ensemble.components
        self._by_name = self._ensemble.by_name
        self._has_states = Component.MAMBA in self._by_name
        self._paged = [component for component in self._components if component.name != Component.MAMBA]
        self._units = {name: 1 if name == Component.MAMBA else config.page_size for name in self._by_name}
        self._no_host_hits = MappingProxyType(dict.fromkeys(list(self._by_name)[1:], 0))
        self._receipts: set[LockReceipt] = set()
        self._now = 0

    def key(self, tokens: Tokens, namespace: Namespace) -> RadixKey:
        """The whole pages of a prompt as this cache's key. Tokens: int32, [n]."""
        return RadixKey.of(tokens, namespace, self.config.page_size, self.config.bigram)

    def length(self, key: RadixKey) -> int:
        """How many tokens (pairs, with bigram keys) the key's whole pages cover."""
        return self.tree.pages_of(key) * self.config.page_size

    def match(self, key: RadixKey, chunked: bool) -> MatchResult:
        """The longest prefix at whose end every component is valid. `chunked`: looks again, so it is not a new hit."""
        validators = self._ensemble.validators()
        best = self.tree.root
        parts: list[Slots | None] = []
        matched = reached_end = 0
        for node in self.tree.walk(key):
            parts.append(node.values[FULL])
            # Every validator sees every node, also after another refused it: SWA counts its run (sglang#25277).
            valid = valid_but_last = True
            for validate in validators:
                valid_but_last, valid = valid, validate(node) and valid
            if valid:
                best, matched = node, len(parts)
            elif valid_but_last:
                reached_end = node.end
        self._now += 1
        self._ensemble.touch(best, self._now)
        best.hits += not chunked
        return MatchResult(
            device_indices=self.pools.slots_of(_joined(parts[:matched])),
            device_anchor=best,
            best_match=best,
            host_hit_length=0,
            component_host_hit_lengths=self._no_host_hits,
            branching_seqlen=self._branching(reached_end, best.end),
        )

    def insert(self, key: RadixKey, slots: Slots, state: int | None, priority: int) -> InsertResult:
        """Hand over the slots of the key's whole pages: each is kept, or freed because the tree has that page already.

        `slots`: int64, [length(key)], in whole aligned pages; those that the caller shares with the tree may be among
        them. `state`: the MAMBA slot that holds the state after the last whole page, or None.
        Raises KeyFormError when slots and key differ in length.
        """
        if len(slots) != self.length(key):
            raise KeyFormError(f"{len(slots)} slots were given for {self.length(key)} tokens")
        self._now += 1
        pages = self.pools.pages_of(slots)
        window_start = self.pools.window_start(pages)
        insertion = Insertion(pages, [], window_start, state, self._now, priority, state_adopted=False)
        prefix_end, node, accepted_end = self._ensemble.lay(key, insertion)
        for refused in (insertion.duplicates(), pages[node.end :]):
            self._components[FULL].discard(refused)
        node.priority = max(node.priority, priority)
        self._ensemble.touch(node, self._now)
        self._ensemble.flush()
        page = self.config.page_size
        return InsertResult(prefix_end * page, accepted_end * page, node, insertion.state_adopted)

    def lock(self, node: Node) -> LockReceipt:
        """Protect all that a request reading up to the node's end needs. Raises StaleHandleError for a dead node."""
        if not node.alive:
            raise StaleHandleError(f"{node!r} is in the tree no more")
        receipt = LockReceipt(node, tuple([component.acquire(node) for component in self._components]))
        self._receipts.add(receipt)
        return receipt

    def unlock(self, receipt: LockReceipt) -> None:
        """Undo what the lock of this receipt did. Raises ReceiptError unless it is outstanding, in this life."""
        if receipt not in self._receipts:
            raise ReceiptError(f"{receipt!r} was released before, or is not a receipt of this cache")
        self._receipts.remove(receipt)
        for component, mark in zip(self._components, receipt.marks, strict=True):
            component.release(receipt.node, mark)
        self._ensemble.settle(receipt.node)
        self._ensemble.flush()

    def evict(self, component: str, tokens: int) -> EvictResult:
        """Free at least so many of the component's slots (states for MAMBA), or all that is not locked."""
        target = self._by_name[component]
        wanted = -(-tokens // self._units[component])
        victims = 0
        while target.dropped_pages < wanted and (node := target.queue.pop()) is not None:
            self._ensemble.evict(node, target)
            victims += 1
        freed = {name: self._by_name[name].dropped_pages * unit for name, unit in self._units.items()}
        self._ensemble.flush()
        return EvictResult(freed, victims, refused=0)

    def allocate(self, tokens: int) -> Slots | None:
        """Slots for whole pages, with SWA partners; evicts what is missing. None, with nothing evicted, when short.

        Raises ValueError when the number is no multiple of the page size.
        """
        pages, rest = divmod(tokens, self.config.page_size)
        if rest or pages < 0:
            raise ValueError(f"cannot allocate {tokens} tokens in pages of {self.config.page_size}")
        taken = self.pools.allocate(pages) if self._make_room(self._paged, pages) else None
        return None if taken is None else self.pools.slots_of(taken)

    def free(self, slots: Slots) -> None:
        """Take back slots that the caller holds, and their SWA partners. Otherwise SlotError, and nothing changes."""
        self.pools.free(self._of_caller(Component.FULL, self.pools.pages_of(slots)))

    def release_window(self, slots: Slots) -> None:
        """Take back the SWA partners alone of slots that the caller holds. Otherwise SlotError; nothing is changed."""
        self.pools.free_window(self._of_caller(Component.FULL, self.pools.pages_of(slots)))

    def allocate_state(self) -> int | None:
        """A slot for one MAMBA state; evicts one if need be. None when every state is locked or held."""
        if not self._make_room([self._by_name[Component.MAMBA]], 1):
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
        state = node.values[self._by_name[Component.MAMBA].index]
        if state is None:
            raise StaleHandleError(f"{node!r} holds no state")
        receipt = self.lock(node)
        slot = self.allocate_state()
        self.unlock(receipt)
        if slot is not None:
            self.copy_state(int(state[0]), slot)
        return slot

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
        """The size counters of each component."""
        return {component.name: self._sizes(component) for component in self._components}

    def step(self) -> None:
        """Take over the transfers that have finished. Nothing moves between tiers while there is one tier."""

    def reset(self) -> None:
        """Free all that the tree holds. Receipts are refused from now on; slots that callers hold stay theirs."""
        self._receipts.clear()
        self._ensemble.clear()
        self._ensemble.flush()

    def _of_caller(self, component: str, pages: Slots) -> Slots:
        if self._by_name[component].owns(pages):
            raise SlotError(f"{component}: of pages {pages.tolist()} some are the tree's")
        return pages

    def _make_room(self, targets: list[TreeComponent], pages: int) -> bool:
        allocators = self.pools.allocators
        for target in targets:
            if allocators[target.name].free_pages + target.evictable_pages < pages:
                return False
        for target in targets:
            missing = pages - allocators[target.name].free_pages
            if missing > 0:
                self.evict(target.name, missing * self._units[target.name])
        return True

    def _branching(self, reached_end: int, matched_end: int) -> int | None:
        chunk = self.config.mamba_chunk_size
        if not self._has_states or chunk is None:
            return None
        aligned = reached_end * self.config.page_size // chunk * chunk
        return aligned if aligned > matched_end * self.config.page_size else None

    def _sizes(self, component: TreeComponent) -> Sizes:
        unit, allocator = self._units[component.name], self.pools.allocators[component.name]
        return Sizes(component.evictable_pages * unit, component.protected_pages * unit, allocator.free_pages * unit)


def _joined(parts: list[Slots | None]) -> Slots:
    held = [part for part in parts if part is not None]
    return np.concatenate(held) if held else NO_SLOTS
