"""The cache as a snapshot shows it, as plain values that do not depend on where nodes are split."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.patterns import element_bytes
from hicache.testing.driving.prompts import page_numbers
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import SHARED, Component, Namespace, Slots, Tier

Value = TypeVar("Value")

Pages: TypeAlias = tuple[int, ...]
"""A prefix of the shared namespace by its pages, with the numbers that `Driver.prompt` takes."""

LockCounts: TypeAlias = Counter[tuple[str, Pages]]
"""Lock counts above zero by component and prefix, one entry for each page; for MAMBA one for each node."""

Place: TypeAlias = tuple[str, Namespace, bytes]
"""A component, a namespace, and all elements up to the end of a page; for MAMBA up to the end of a node."""


class TierViews(NamedTuple):
    """One node: its view on the device and its view on the host."""

    node: NodeView
    host: HostNodeView


def prefixes(*pages: int) -> set[Pages]:
    """All prefixes of some pages, the whole included."""
    return {pages[: count + 1] for count in range(len(pages))}


def nodes(driver: Driver) -> dict[Pages, NodeView]:
    """Every node of the shared namespace on the device, by the pages up to its end."""
    snapshot = driver.snapshot()
    return {pages: snapshot.nodes[row] for pages, row in _rows(driver, snapshot)}


def hits(driver: Driver) -> dict[Pages, int | None]:
    """Requests that matched each node."""
    return {pages: node.hits for pages, node in nodes(driver).items()}


def tier_views(driver: Driver) -> dict[Pages, TierViews]:
    """Every node of the shared namespace on both tiers, by the pages up to its end."""
    snapshot = driver.snapshot()
    assert snapshot.host is not None, f"{driver.config.name} has a host tier"
    host = snapshot.host.nodes
    return {pages: TierViews(snapshot.nodes[row], host[row]) for pages, row in _rows(driver, snapshot)}


def device_slots(driver: Driver, component: str) -> dict[Pages, tuple[int, ...]]:
    """What is cached of a component on the device: by prefix the slots of its last page, or of its state."""
    return _of_component(driver, residency(driver.snapshot(), driver.config), component)


def host_slots(driver: Driver, component: str) -> dict[Pages, tuple[int, ...]]:
    """What is cached of a component on the host: by prefix the host slots of its last page, or of its state."""
    return _of_component(driver, residency(driver.snapshot(), driver.config, Tier.HOST), component)


def components_on_device(driver: Driver, pages: Pages) -> set[str]:
    """The components that the device has at the end of some pages."""
    return {component for component in driver.config.components if pages in device_slots(driver, component)}


def components_on_host(driver: Driver, pages: Pages) -> set[str]:
    """The components that the host has at the end of some pages."""
    return {component for component in driver.config.components if pages in host_slots(driver, component)}


def residency(snapshot: Snapshot, config: CacheConfig, tier: Tier = Tier.DEVICE) -> dict[Place, tuple[int, ...]]:
    """The slots of each page and of each state that one tier caches, in all namespaces."""
    found: dict[Place, tuple[int, ...]] = {}
    for row, node in enumerate(_views(snapshot, tier)):
        for component, slots in node.slots.items():
            if slots is not None:
                places = _places(snapshot, row, component, config)
                found.update(zip(places, map(tuple, slots.reshape(len(places), -1).tolist()), strict=True))
    return found


def locks(driver: Driver) -> LockCounts:
    """Locks on the device: those of receipts, of requests, and of the cache's own transfers."""
    return _locks_by_pages(driver, lambda snapshot, row: snapshot.nodes[row].locks)


def device_locks(driver: Driver) -> LockCounts:
    """Locks on the device that receipts and requests hold."""
    return _locks_by_pages(driver, lambda shown, row: _less(shown.nodes[row].locks, _host_view(shown, row).pins))


def host_locks(driver: Driver) -> LockCounts:
    """Locks on the host that receipts hold."""

    def locks_of(snapshot: Snapshot, row: int) -> Mapping[str, int]:
        view = _host_view(snapshot, row)
        return _less(view.locks, view.host_pins)

    return _locks_by_pages(driver, locks_of)


def pins(driver: Driver, tier: Tier) -> LockCounts:
    """Locks on a tier that the cache holds for its own transfers."""

    def locks_of(snapshot: Snapshot, row: int) -> Mapping[str, int]:
        view = _host_view(snapshot, row)
        return view.pins if tier is Tier.DEVICE else view.host_pins

    return _locks_by_pages(driver, locks_of)


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


def free_device_slots(driver: Driver) -> dict[str, int]:
    """How many device slots of each component are free."""
    return {component: len(pool.free) for component, pool in driver.snapshot().pools.items()}


def free_host_slots(driver: Driver) -> dict[str, int]:
    """How many host slots of each component are free."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    return {component: len(pool.free) for component, pool in host.pools.items()}


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


def _host_view(snapshot: Snapshot, row: int) -> HostNodeView:
    assert snapshot.host is not None, "the cache has a host tier"
    return snapshot.host.nodes[row]


def _less(counts: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    return {component: count - own[component] for component, count in counts.items()}


def _places(snapshot: Snapshot, row: int, component: str, config: CacheConfig) -> list[Place]:
    """The prefixes that end in a node, the shortest first: one for each page, and for MAMBA the node's end."""
    node, prefix = snapshot.nodes[row], snapshot.prefix(row)
    count = 1 if component == Component.MAMBA else (node.end - node.start) // config.page_size
    lengths = len(prefix) - np.arange(count)[::-1] * config.page_size * element_bytes(config.bigram)
    return [(component, node.namespace, prefix[:length]) for length in lengths.tolist()]


def _pages(config: CacheConfig, prefix: bytes) -> Pages:
    return page_numbers(tokens_of_prefix(prefix, bigram=config.bigram), config)


def _rows(driver: Driver, snapshot: Snapshot) -> Iterator[tuple[Pages, int]]:
    for row, node in enumerate(snapshot.nodes):
        if node.namespace == SHARED:
            yield _pages(driver.config, snapshot.prefix(row)), row


def _by_pages(driver: Driver, found: Mapping[Place, Value]) -> Iterator[tuple[str, Pages, Value]]:
    """The entries of the shared namespace, with their prefixes by pages."""
    for (component, namespace, prefix), value in found.items():
        if namespace == SHARED:
            yield component, _pages(driver.config, prefix), value


def _of_component(
    driver: Driver, found: Mapping[Place, tuple[int, ...]], component: str
) -> dict[Pages, tuple[int, ...]]:
    own = {place: slots for place, slots in found.items() if place[0] == component}
    return {pages: slots for _, pages, slots in _by_pages(driver, own)}


def _locks_by_pages(driver: Driver, locks_of: Callable[[Snapshot, int], Mapping[str, int]]) -> LockCounts:
    found = lock_counts(driver.snapshot(), driver.config, locks_of)
    return Counter({(component, pages): count for component, pages, count in _by_pages(driver, found)})


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
