"""The cache as a snapshot shows it, as plain values that do not depend on where nodes are split."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.driving.patterns import element_bytes
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Namespace, Slots, Tier

Pages: TypeAlias = tuple[int, ...]
"""A prefix of the shared namespace by its pages, with the numbers that `Driver.prompt` takes."""

LockCounts: TypeAlias = Counter[tuple[str, Pages]]
"""Lock counts above zero by component and prefix, one entry for each page; for MAMBA one for each node."""

Place: TypeAlias = tuple[str, Namespace, bytes]
"""A component, a namespace, and all elements up to the end of a page; for MAMBA up to the end of a node."""


def prefixes(*pages: int) -> set[Pages]:
    """All prefixes of some pages, the whole included."""
    return {pages[: count + 1] for count in range(len(pages))}


def residency(snapshot: Snapshot, config: CacheConfig, tier: Tier = Tier.DEVICE) -> dict[Place, tuple[int, ...]]:
    """The slots of each page and of each state that one tier caches, in all namespaces."""
    found: dict[Place, tuple[int, ...]] = {}
    for row, node in enumerate(_views(snapshot, tier)):
        for component, slots in node.slots.items():
            if slots is not None:
                places = _places(snapshot, row, component, config)
                found.update(zip(places, map(tuple, slots.reshape(len(places), -1).tolist()), strict=True))
    return found


def lock_counts(
    snapshot: Snapshot, config: CacheConfig, locks_of: Callable[[Snapshot, int], Mapping[str, int]] | None = None
) -> dict[Place, int]:
    """Lock counts above zero in all namespaces. `locks_of`: which locks of a row; by default all of the device."""
    return {
        place: count
        for row, node in enumerate(snapshot.nodes)
        for component, count in (node.locks if locks_of is None else locks_of(snapshot, row)).items()
        if count > 0
        for place in _places(snapshot, row, component, config)
    }


def free_slots(snapshot: Snapshot) -> dict[str, set[int]]:
    """The free device slots of each component."""
    return {component: set(pool.free.tolist()) for component, pool in snapshot.pools.items()}


def snapshot_values(snapshot: Snapshot) -> tuple[object, ...]:
    """Everything: each node with its slots, locks and hits, the free slots, and the host tier if there is one."""
    on_device = {
        (node.namespace, snapshot.prefix(row)): (node.start, _plain(node.slots), dict(node.locks), node.hits)
        for row, node in enumerate(snapshot.nodes)
    }
    return on_device, free_slots(snapshot), _host_values(snapshot)


def device_ownership(snapshot: Snapshot, config: CacheConfig) -> tuple[object, ...]:
    """What is cached, locked and free on the device. Recency, hits and the ends of nodes are left out."""
    return residency(snapshot, config), lock_counts(snapshot, config), free_slots(snapshot)


def tokens_of_prefix(prefix: bytes, *, bigram: bool) -> list[int]:
    """The tokens of a prefix as a snapshot gives it: 4 bytes little-endian each, or pairs that overlap by one token."""
    tokens: list[int] = np.frombuffer(prefix, dtype="<i4").tolist()
    return [tokens[0], *tokens[1::2]] if bigram and tokens else tokens


def page_hash_chain(tokens: Sequence[int], page_size: int, *, bigram: bool) -> list[str]:
    """The hash of each whole page without a namespace: SHA-256 of the previous digest and of the page, in hex."""
    elements = list(pairwise(tokens)) if bigram else [(token,) for token in tokens]
    hashes: list[str] = []
    digest = b""
    for start in range(0, len(elements) - page_size + 1, page_size):
        page = b"".join(struct.pack("<I", token) for pair in elements[start : start + page_size] for token in pair)
        digest = hashlib.sha256(digest + page).digest()
        hashes.append(digest.hex())
    return hashes


def _views(snapshot: Snapshot, tier: Tier) -> Sequence[NodeView | HostNodeView]:
    if tier is Tier.DEVICE:
        return snapshot.nodes
    assert snapshot.host is not None, "the cache has a host tier"
    return snapshot.host.nodes


def _places(snapshot: Snapshot, row: int, component: str, config: CacheConfig) -> list[Place]:
    """The prefixes that end in a node, the shortest first: one for each page, and for MAMBA the node's end."""
    node, prefix = snapshot.nodes[row], snapshot.prefix(row)
    count = 1 if component == Component.MAMBA else (node.end - node.start) // config.page_size
    lengths = len(prefix) - np.arange(count)[::-1] * config.page_size * element_bytes(config.bigram)
    return [(component, node.namespace, prefix[:length]) for length in lengths.tolist()]


def _host_values(snapshot: Snapshot) -> tuple[object, ...]:
    """The host tier: nodes, transfers under way, free slots, and slots that are kept for readers."""
    host = snapshot.host
    if host is None:
        return ()
    on_host = {
        (node.namespace, snapshot.prefix(row)): (_plain(view.slots), view.locks, view.pins, view.host_pins)
        for row, (node, view) in enumerate(zip(snapshot.nodes, host.nodes, strict=True))
    }
    transfers = [(one.kind, _plain(one.device), _plain(one.host)) for one in host.transfers]
    free = {component: set(pool.free.tolist()) for component, pool in host.pools.items()}
    return on_host, transfers, free, _plain(host.kept)


def _plain(slots: Mapping[str, Slots | None]) -> dict[str, list[int] | None]:
    return {component: None if own is None else own.tolist() for component, own in slots.items()}
