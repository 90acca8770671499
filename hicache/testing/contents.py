"""Contents: writes the pattern of a prefix into every pool and layer, as a model runner would, and checks it there."""

from __future__ import annotations

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.patterns import (
    Digests,
    as_numbers,
    chain,
    check_fill,
    element_bytes,
    fill,
    prefix_digests,
    seed,
    state_digest,
)
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import Component, Key, Pool, Slots


class Contents:
    """The pools of one adapter as a model sees them. Does nothing for an adapter whose pools cannot be read."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._config = config
        self._page_size = config.page_size
        self._readable = Capability.BYTES in adapter.capabilities
        self._has_window = Component.SWA in config.components and Capability.SWA in adapter.capabilities

    def write(self, key: Key, slots: Slots, start: int) -> None:
        """Compute the whole pages of a key from position `start` (a page boundary): KV, indexer, SWA partners."""
        if not self._readable:
            return
        first = start // self._page_size
        digests = self._digests(key)[first : first + len(slots) // self._page_size]
        slots = slots[: len(digests) * self._page_size]
        for pool in (Pool.KV, Pool.INDEXER):
            self._fill(pool, slots, digests, self._page_size)
        if self._has_window:
            partners, rows = self._paired_pages(slots)
            self._fill(Pool.SWA, partners, digests[rows], self._page_size)

    def write_state(self, key: Key, slot: int) -> None:
        """Compute the state after exactly this key."""
        if self._readable:
            digest = state_digest(key, self._page_size, self._config.bigram)
            self._fill(Pool.MAMBA, np.array([slot], dtype=np.int64), digest, 1)

    def verify(self, key: Key, slots: Slots) -> None:
        """Whole pages from the key's beginning hold its bytes: KV, indexer, and SWA in the last window (REQ-3)."""
        if self._has_window:
            self._require_window(slots)
        if not self._readable:
            return
        digests = self._digests(key)[: len(slots) // self._page_size]
        for pool in (Pool.KV, Pool.INDEXER):
            self._check(pool, slots, digests, self._page_size, "hit")
        if self._has_window and len(slots):
            first = self._window_start(len(slots)) // self._page_size
            partners, rows = self._paired_pages(slots[first * self._page_size :])
            self._check(Pool.SWA, partners, digests[first:][rows], self._page_size, "window of the hit")

    def verify_state(self, key: Key, slot: int) -> None:
        """A slot holds the state after exactly this key (REQ-3, MATCH-11)."""
        if self._readable:
            digest = state_digest(key, self._page_size, self._config.bigram)
            self._check(Pool.MAMBA, np.array([slot], dtype=np.int64), digest, 1, "state")

    def verify_tree(self, snapshot: Snapshot) -> None:
        """Every slot of every node holds the bytes of the node's prefix."""
        if not self._readable or not snapshot.nodes:
            return
        page_digests = _node_digests(snapshot, self._page_size * element_bytes(self._config.bigram))
        for component in self._config.components:
            is_state = component == Component.MAMBA
            held = [
                (slots, digests[-1:] if is_state else digests)
                for node, digests in zip(snapshot.nodes, page_digests, strict=True)
                if (slots := node.slots[component]) is not None
            ]
            if not held:
                continue
            slots = np.concatenate([slots for slots, _ in held])
            digests = as_numbers([digest for _, digests in held for digest in digests])
            for pool in _POOLS[component]:
                self._check(pool, slots, digests, 1 if is_state else self._page_size, "slots of the tree, in order")

    def _digests(self, key: Key) -> Digests:
        return prefix_digests(key, self._page_size, self._config.bigram)

    def _window_start(self, tokens: int) -> int:
        return max(0, tokens - (self._config.sliding_window_size or 0))

    def _require_window(self, slots: Slots) -> None:
        start = self._window_start(len(slots))
        partners = self._adapter.partners(slots[start:])
        if not partners.all():
            position = start + int((partners == 0).argmax())
            raise violation(
                "MATCH-3", f"hit of {len(slots)} tokens", "SWA data in the last window", f"none at {position}"
            )

    def _paired_pages(self, slots: Slots) -> tuple[Slots, Slots]:
        """The partners of those pages that have one, and which pages those are."""
        partners = self._adapter.partners(slots).reshape(-1, self._page_size)
        rows = np.flatnonzero(partners.all(axis=1))
        return partners[rows].reshape(-1), rows

    def _fill(self, pool: Pool, slots: Slots, digests: Digests, page_size: int) -> None:
        if not len(slots):
            return
        for layer in range(self._adapter.layers(pool)):
            data = fill(digests, page_size, layer, pool, self._adapter.slot_bytes(pool))
            self._adapter.write(pool, slots, layer, data)

    def _check(self, pool: Pool, slots: Slots, digests: Digests, page_size: int, place: str) -> None:
        if not len(slots):
            return
        for layer in range(self._adapter.layers(pool)):
            check_fill(self._adapter.read(pool, slots, layer), digests, page_size, layer, pool, place)


_POOLS: dict[str, tuple[Pool, ...]] = {
    Component.FULL.value: (Pool.KV, Pool.INDEXER),
    Component.SWA.value: (Pool.SWA,),
    Component.MAMBA.value: (Pool.MAMBA,),
}


def _node_digests(snapshot: Snapshot, page_bytes: int) -> list[list[bytes]]:
    digests: list[list[bytes]] = []
    for node in snapshot.nodes:
        previous = digests[node.parent][-1] if node.parent >= 0 else seed(node.namespace)
        digests.append(chain(previous, node.segment, page_bytes))
    return digests
