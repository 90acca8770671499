"""The tree of a snapshot with its nodes named by the pages that lead to them, as `Driver.prompt` names pages."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import NodeView
from hicache.types import SHARED, Component

from .chains import tokens_of

Pages: TypeAlias = tuple[int, ...]
"""A prefix by its pages."""


def nodes(driver: Driver) -> dict[Pages, NodeView]:
    """Every node of the shared namespace, by the pages up to its end."""
    snapshot = driver.snapshot()
    named = ((_pages(driver, snapshot.prefix(number)), node) for number, node in enumerate(snapshot.nodes))
    return {pages: node for pages, node in named if node.namespace == SHARED}


def held(driver: Driver, component: str) -> dict[Pages, tuple[int, ...]]:
    """What is cached of a component, however the nodes are cut: by prefix the slots of its last page, or its state."""
    found: dict[Pages, tuple[int, ...]] = {}
    for pages, node in nodes(driver).items():
        slots = node.slots[component]
        if slots is not None:
            own = _own_prefixes(driver, component, pages, node)
            found.update(zip(own, map(tuple, slots.reshape(len(own), -1).tolist()), strict=True))
    return found


def locks(driver: Driver) -> Counter[tuple[str, Pages]]:
    """Lock counts above zero by component and prefix, page by page, however the nodes are cut."""
    found: Counter[tuple[str, Pages]] = Counter()
    for pages, node in nodes(driver).items():
        for component, count in node.locks.items():
            for prefix in _own_prefixes(driver, component, pages, node):
                found[component, prefix] = count
    return +found


def prefixes(*pages: int) -> set[Pages]:
    """All prefixes of some pages, the whole included."""
    return {pages[: count + 1] for count in range(len(pages))}


def _own_prefixes(driver: Driver, component: str, pages: Pages, node: NodeView) -> list[Pages]:
    """The prefixes that end in the node: one per page, and for MAMBA the node's end."""
    first = len(pages) if component == Component.MAMBA else node.start // driver.config.page_size + 1
    return [pages[:count] for count in range(first, len(pages) + 1)]


def _pages(driver: Driver, prefix: bytes) -> Pages:
    size, opening = driver.config.page_size, int(driver.config.bigram)
    tokens = tokens_of(prefix, bigram=driver.config.bigram)[opening:]
    return tuple((token - 1) // size for token in tokens[::size])
