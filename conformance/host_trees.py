"""The host tier of a snapshot with its nodes named by the pages that lead to them, and whose locks are whose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import HostNodeView, NodeView
from hicache.types import SHARED, Component, Tier

from .chains import tokens_of
from .trees import Pages

Count: TypeAlias = Counter[tuple[str, Pages]]
"""Locks above zero by component and prefix, page by page, however the nodes are cut."""


class View(NamedTuple):
    """One node as each tier shows it."""

    node: NodeView
    below: HostNodeView


def views(driver: Driver) -> dict[Pages, View]:
    """Every node of the shared namespace as each tier shows it, by the pages up to its end."""
    snapshot, size = driver.snapshot(), driver.config.page_size
    assert snapshot.host is not None, f"{driver.config.name} has a host tier"
    found: dict[Pages, View] = {}
    for row, (node, below) in enumerate(zip(snapshot.nodes, snapshot.host.nodes, strict=True)):
        if node.namespace == SHARED:
            tokens = tokens_of(snapshot.prefix(row), bigram=driver.config.bigram)[int(driver.config.bigram) :]
            found[tuple((token - 1) // size for token in tokens[::size])] = View(node, below)
    return found


def held_below(driver: Driver, component: str) -> dict[Pages, tuple[int, ...]]:
    """What is on the host of a component: by prefix the host slots of its last page, or of its state."""
    found: dict[Pages, tuple[int, ...]] = {}
    for pages, view in views(driver).items():
        slots = view.below.slots[component]
        if slots is not None:
            own = _own(driver, component, pages, view.node)
            found.update(zip(own, map(tuple, slots.reshape(len(own), -1).tolist()), strict=True))
    return found


def host_locks(driver: Driver) -> Count:
    """Locks on the host that receipts hold."""
    return _by_page(driver, lambda view: _less(view.below.locks, view.below.host_pins))


def device_locks(driver: Driver) -> Count:
    """Locks on the device that receipts and requests hold."""
    return _by_page(driver, lambda view: _less(view.node.locks, view.below.pins))


def pins(driver: Driver, tier: Tier) -> Count:
    """Locks on a tier that the cache holds for its own transfers."""
    return _by_page(driver, lambda view: view.below.pins if tier is Tier.DEVICE else view.below.host_pins)


def free_below(driver: Driver) -> dict[str, int]:
    """Free host slots of each component."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    return {component: len(pool.free) for component, pool in host.pools.items()}


def _by_page(driver: Driver, locks_of: Callable[[View], Mapping[str, int]]) -> Count:
    found: Count = Counter()
    for pages, view in views(driver).items():
        for component, count in locks_of(view).items():
            for prefix in _own(driver, component, pages, view.node):
                found[component, prefix] = count
    return +found


def _less(locks: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    return {component: count - own[component] for component, count in locks.items()}


def _own(driver: Driver, component: str, pages: Pages, node: NodeView) -> list[Pages]:
    """The prefixes that end in the node: one per page, and for MAMBA the node's end."""
    first = len(pages) if component == Component.MAMBA else node.start // driver.config.page_size + 1
    return [pages[:count] for count in range(first, len(pages) + 1)]
