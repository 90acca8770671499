"""Contents: writes the pattern of a prefix to every pool and layer, as a model runner does, and checks it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability, PageBytes
from hicache.testing.driving.patterns import (
    Digests,
    Place,
    as_numbers,
    chain,
    check_fill,
    element_bytes,
    fill,
    of_shard,
    prefix_digests,
    seed,
    shard_of,
    state_digest,
)
from hicache.testing.driving.pools import component_of, is_shared, pools_of, rows, tokens_per_row, with_entry
from hicache.testing.laws.slots import all_slots
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.testing.violation import violation
from hicache.types import Component, Key, Slots

BATCH_ELEMENTS = 1 << 16
"""The number of elements of the tree whose bytes are compared at a time."""

NOISE = 0xA5
"""The byte that unused slots are overwritten with."""

Read = Callable[[str, Slots, int], PageBytes]
"""Reads the bytes of some slots in one layer of one pool."""


class Contents:
    """Writes and checks the pools of one adapter. Does nothing for an adapter whose pools cannot be read."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._config = config
        self._page_size = config.page_size
        self._readable = Capability.BYTES in adapter.capabilities
        self._shards = {
            pool: shard_of(config.topology, is_shared=is_shared(config, pool)) for pool in component_of(config)
        }
        self._has_window = Component.SWA in config.components and Capability.SWA in adapter.capabilities
        self._windows = pools_of(config, Component.SWA) if self._has_window else ()
        self.prefix_pools = (*pools_of(config, Component.FULL), *self._windows)
        self.state_pools = pools_of(config, Component.MAMBA)

    def write(self, key: Key, slots: Slots, start: int) -> None:
        """Write the whole pages of a key from position `start` (a page boundary): KV, sidecars, SWA partners."""
        if not self._readable:
            return
        first = start // self._page_size
        digests = self._digests(key)[first : first + len(slots) // self._page_size]
        slots = slots[: len(digests) * self._page_size]
        for pool in pools_of(self._config, Component.FULL):
            own = with_entry(self._config, pool, np.arange(first, first + len(digests)))
            self._fill(pool, _pages(slots, own, self._page_size), digests[own], self._page_size)
        if self._has_window:
            partners, paired = self._paired_pages(slots)
            for pool in self._windows:
                self._fill(pool, partners, digests[paired], self._page_size)

    def write_state(self, key: Key, slot: int) -> None:
        """Write the state after exactly this key."""
        if self._readable:
            digest = state_digest(key, self._page_size, self._config.bigram)
            for pool in self.state_pools:
                self._fill(pool, np.array([slot], dtype=np.int64), digest, 1)

    def overwrite(self, component: str, slots: Slots) -> None:
        """Overwrite slots that nothing uses, so that their old bytes cannot pass for newly loaded ones."""
        if self._readable and len(slots):
            for pool in pools_of(self._config, component):
                own = rows(self._config, pool, slots)
                for layer in range(self._adapter.layers(pool)):
                    noise = np.full((len(own), self._adapter.slot_bytes(pool)), NOISE, dtype=np.uint8)
                    self._adapter.write(pool, own, layer, noise)

    def verify(self, key: Key, slots: Slots, *, is_own: bool = False) -> None:
        """Check the bytes of whole pages from the key's start: KV, sidecars, and SWA in the last window (REQ-3).

        `is_own`: a running request reads them, which was given them with their window. Otherwise they are a hit.
        """
        if self._has_window and is_own:
            self._require_own_window(slots)
        elif self._has_window:
            self._require_window(slots)
        if self._readable and len(slots):
            digests = self._digests(key)
            for pool in self.prefix_pools:
                for layer in range(self._adapter.layers(pool)):
                    self._check_prefix(pool, slots, digests, layer)

    def verify_layer(self, pool: str, key: Key, slots: Slots, layer: int) -> None:
        """Check one layer of one pool, as a reader does that follows a load layer by layer."""
        if pool in self._windows:
            self._require_window(slots)
        if self._readable and len(slots):
            self._check_prefix(pool, slots, self._digests(key), layer)

    def verify_state(self, key: Key, slot: int) -> None:
        """Check that a slot holds the state after exactly this key (REQ-3, MATCH-11)."""
        if self._readable:
            for pool in self.state_pools:
                for layer in range(self._adapter.layers(pool)):
                    self.verify_state_layer(pool, key, slot, layer)

    def verify_state_layer(self, pool: str, key: Key, slot: int, layer: int) -> None:
        """Check one layer of one pool of a state."""
        if self._readable:
            data = self._adapter.read(pool, np.array([slot], dtype=np.int64), layer)
            digest = self._own(pool, state_digest(key, self._page_size, self._config.bigram))
            check_fill(data, digest, 1, layer, pool, lambda _: f"state after {len(key.tokens)} tokens")

    def verify_tree(self, snapshot: Snapshot) -> None:
        """Check that every slot of every node, on every tier, holds the bytes of the node's prefix."""
        if not self._readable:
            return
        host = () if snapshot.host is None else snapshot.host.nodes
        for first, digests in _batches(snapshot, self._page_size * element_bytes(self._config.bigram)):
            nodes = snapshot.nodes[first : first + len(digests)]
            below = host[first : first + len(digests)]
            for component in self._config.components:
                self._verify_nodes(component, nodes, nodes, digests, self._adapter.read)
                if below:
                    self._verify_nodes(component, nodes, below, digests, self._adapter.read_host)

    def _verify_nodes(
        self,
        component: str,
        nodes: Sequence[NodeView],
        views: Sequence[NodeView | HostNodeView],
        digests: Sequence[Sequence[bytes]],
        read: Read,
    ) -> None:
        is_state = component == Component.MAMBA
        slots: list[Slots] = []
        expected: list[bytes] = []
        places: list[int] = []
        for node, view, own in zip(nodes, views, digests, strict=True):
            if (found := view.slots[component]) is not None:
                slots.append(found)
                expected += own[-1:] if is_state else own
                places += range(node.start // self._page_size, node.start // self._page_size + len(own))
        if not slots:
            return
        joined, numbers, page_size = all_slots(slots), as_numbers(expected), 1 if is_state else self._page_size
        for pool in pools_of(self._config, component):
            tokens = tokens_per_row(self._config, pool)
            own_pages = np.arange(len(numbers)) if is_state else with_entry(self._config, pool, np.array(places))
            held = self._own(pool, numbers[own_pages])
            own_rows = rows(self._config, pool, _pages(joined, own_pages, page_size))
            place = partial(_node_at, nodes, views, component, own_pages, page_size, tokens)
            for layer in range(self._adapter.layers(pool)):
                check_fill(read(pool, own_rows, layer), held, page_size // tokens, layer, pool, place)

    def _own(self, pool: str, digests: Digests) -> Digests:
        """The digests of these pages for this rank's shard."""
        return of_shard(digests, self._shards[pool])

    def _digests(self, key: Key) -> Digests:
        return prefix_digests(key, self._page_size, self._config.bigram)

    def _check_prefix(self, pool: str, slots: Slots, digests: Digests, layer: int) -> None:
        digests = digests[: len(slots) // self._page_size]
        place: Place = _place_of_hit
        if pool in self._windows:
            first = self._window_start(len(slots)) // self._page_size
            slots, paired = self._paired_pages(slots[first * self._page_size :])
            digests, place = digests[first:][paired], _place_in_window
        else:
            with_own = with_entry(self._config, pool, np.arange(len(digests)))
            slots, digests = _pages(slots, with_own, self._page_size), digests[with_own]
        own, size = self._own(pool, digests), self._page_size // tokens_per_row(self._config, pool)
        check_fill(self._adapter.read(pool, rows(self._config, pool, slots), layer), own, size, layer, pool, place)

    def _window_start(self, tokens: int) -> int:
        return max(0, tokens - (self._config.sliding_window_size or 0))

    def _require_window(self, slots: Slots) -> None:
        position = self._lost_in_window(slots)
        if position is not None:
            place = f"hit of {len(slots)} tokens"
            raise violation("MATCH-3", place, "SWA data in the last window", f"none at {position}")

    def _require_own_window(self, slots: Slots) -> None:
        position = self._lost_in_window(slots)
        if position is not None:
            place = f"a running request of {len(slots)} tokens"
            raise violation("REQ-3", place, "SWA data in the last window", f"none at {position}")

    def _lost_in_window(self, slots: Slots) -> int | None:
        """The first position in the last window without SWA data, or None."""
        start = self._window_start(len(slots))
        partners = self._adapter.partners(slots[start:])
        return None if partners.all() else start + int((partners == 0).argmax())

    def _paired_pages(self, slots: Slots) -> tuple[Slots, Slots]:
        """The partners of those pages that have one, and the indices of these pages."""
        partners = self._adapter.partners(slots).reshape(-1, self._page_size)
        rows = np.flatnonzero(partners.all(axis=1))
        return partners[rows].reshape(-1), rows

    def _fill(self, pool: str, slots: Slots, digests: Digests, page_size: int) -> None:
        if not len(slots):
            return
        size = page_size // tokens_per_row(self._config, pool)
        for layer in range(self._adapter.layers(pool)):
            own = self._own(pool, digests)
            data = fill(own, size, layer, pool, self._adapter.slot_bytes(pool))
            self._adapter.write(pool, rows(self._config, pool, slots), layer, data)


def _pages(slots: Slots, pages: Slots, page_size: int) -> Slots:
    """The slots of some of these pages, by their numbers."""
    return slots.reshape(-1, page_size)[pages].reshape(-1)


def _place_of_hit(row: int) -> str:
    return f"position {row} of a hit"


def _place_in_window(row: int) -> str:
    return f"window slot {row} of a hit"


def _batches(snapshot: Snapshot, page_bytes: int) -> Iterator[tuple[int, list[list[bytes]]]]:
    """The nodes in order, in batches: the row of the batch's first node, and per node the digests of its pages."""
    last: list[bytes] = []
    digests: list[list[bytes]] = []
    first = elements = 0
    for number, node in enumerate(snapshot.nodes, start=1):
        own = chain(last[node.parent] if node.parent >= 0 else seed(node.namespace), node.segment, page_bytes)
        last.append(own[-1])
        digests.append(own)
        elements += node.end - node.start
        if elements >= BATCH_ELEMENTS:
            yield first, digests
            first, digests, elements = number, [], 0
    if digests:
        yield first, digests


def _node_at(
    nodes: Sequence[NodeView],
    views: Sequence[NodeView | HostNodeView],
    component: str,
    pages: Slots,
    page_size: int,
    tokens: int,
    row: int,
) -> str:
    """Name the node and the slot of one row, each of so many tokens, of the joined pages.

    `views`: the nodes on the tier in question. `pages`: those that were read, of all pages of these nodes.
    """
    number, offset = divmod(row * tokens, page_size)
    row = int(pages[number]) * page_size + offset
    for node, view in zip(nodes, views, strict=True):
        count = 0 if (slots := view.slots[component]) is None else len(slots)
        if row < count:
            where = "" if view is node else " on the host"
            return f"node of elements {node.start}..{node.end} of {node.namespace}{where}, its slot {row} of {count}"
        row -= count
    raise IndexError(f"row {row} lies past the last of {len(nodes)} nodes")
