"""Contents: writes the pattern of a prefix into every pool and layer, as a model runner would, and checks it there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.laws.conservation import all_slots
from hicache.testing.patterns import (
    Digests,
    Place,
    as_numbers,
    chain,
    check_fill,
    element_bytes,
    fill,
    prefix_digests,
    seed,
    state_digest,
)
from hicache.testing.snapshot import NodeView, Snapshot
from hicache.testing.violation import violation
from hicache.types import Component, Key, Pool, Slots

BATCH_ELEMENTS = 1 << 16
"""Elements of the tree whose bytes are compared at a time."""


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
            self._check(pool, slots, digests, self._page_size, lambda row: f"position {row} of a hit")
        if self._has_window and len(slots):
            first = self._window_start(len(slots)) // self._page_size
            partners, rows = self._paired_pages(slots[first * self._page_size :])
            self._check(
                Pool.SWA, partners, digests[first:][rows], self._page_size, lambda row: f"window slot {row} of a hit"
            )

    def verify_state(self, key: Key, slot: int) -> None:
        """A slot holds the state after exactly this key (REQ-3, MATCH-11)."""
        if self._readable:
            digest = state_digest(key, self._page_size, self._config.bigram)
            self._check(
                Pool.MAMBA,
                np.array([slot], dtype=np.int64),
                digest,
                1,
                lambda _: f"state after {len(key.tokens)} tokens",
            )

    def verify_tree(self, snapshot: Snapshot) -> None:
        """Every slot of every node holds the bytes of the node's prefix."""
        if not self._readable:
            return
        for nodes, digests in _batches(snapshot, self._page_size * element_bytes(self._config.bigram)):
            for component in self._config.components:
                self._verify_nodes(component, nodes, digests)

    def _verify_nodes(self, component: str, nodes: Sequence[NodeView], digests: Sequence[Sequence[bytes]]) -> None:
        is_state = component == Component.MAMBA
        slots: list[Slots] = []
        expected: list[bytes] = []
        for node, own in zip(nodes, digests, strict=True):
            if (held := node.slots[component]) is not None:
                slots.append(held)
                expected += own[-1:] if is_state else own
        page_size = 1 if is_state else self._page_size
        for pool in _POOLS[component]:
            self._check(
                pool, all_slots(slots), as_numbers(expected), page_size, lambda row: _node_at(nodes, component, row)
            )

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

    def _check(self, pool: Pool, slots: Slots, digests: Digests, page_size: int, place: Place) -> None:
        if not len(slots):
            return
        for layer in range(self._adapter.layers(pool)):
            check_fill(self._adapter.read(pool, slots, layer), digests, page_size, layer, pool, place)


_POOLS: dict[str, tuple[Pool, ...]] = {
    Component.FULL.value: (Pool.KV, Pool.INDEXER),
    Component.SWA.value: (Pool.SWA,),
    Component.MAMBA.value: (Pool.MAMBA,),
}


def _batches(snapshot: Snapshot, page_bytes: int) -> Iterator[tuple[list[NodeView], list[list[bytes]]]]:
    """Some nodes at a time, in order, each with the digests of its pages."""
    last: list[bytes] = []
    nodes: list[NodeView] = []
    digests: list[list[bytes]] = []
    elements = 0
    for node in snapshot.nodes:
        own = chain(last[node.parent] if node.parent >= 0 else seed(node.namespace), node.segment, page_bytes)
        last.append(own[-1])
        nodes.append(node)
        digests.append(own)
        elements += node.end - node.start
        if elements >= BATCH_ELEMENTS:
            yield nodes, digests
            nodes, digests, elements = [], [], 0
    if nodes:
        yield nodes, digests


def _node_at(nodes: Sequence[NodeView], component: str, row: int) -> str:
    """Which node, and where in it, a row of the nodes' joined slots is."""
    for node in nodes:
        count = 0 if (slots := node.slots[component]) is None else len(slots)
        if row < count:
            return f"node of elements {node.start}..{node.end} of {node.namespace}, its slot {row} of {count}"
        row -= count
    raise IndexError(f"row {row} lies past the last of {len(nodes)} nodes")
