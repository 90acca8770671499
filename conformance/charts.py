"""Charts: on which tier each component of each node of one prompt is, in a few letters, and how to get there.

A node is one letter for each component, in rank order: `B` on both tiers, `D` on the device alone, `H` on the host
alone, `-` on neither; and its length, if that is not one page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from hicache.testing.driving.driver import Driver

from .host_trees import held_below
from .trees import held
from .verbs import FULL, MAMBA, SWA, evict_all, key_of, offer

Chart: TypeAlias = tuple[str, ...]
"""The nodes from the root down."""

DEVICE, HOST = "BD", "BH"
"""The letters of what is on a tier."""

LETTERS = {(True, True): "B", (True, False): "D", (False, True): "H", (False, False): "-"}
"""By what is on the device, and on the host."""


def ends(chart: Chart) -> list[int]:
    """The page after each node."""
    lengths = [int(node.lstrip("BDH-") or 1) for node in chart]
    return [sum(lengths[: number + 1]) for number in range(len(chart))]


def pages_of(chart: Chart) -> list[int]:
    """The prompt that a chart speaks of, by its pages."""
    return list(range(1, ends(chart)[-1] + 1))


def draw(driver: Driver, chart: Chart) -> None:
    """Bring an empty cache with write_through to be as a chart says. What is on the device alone waits to be copied.

    Where a tier has a new leaf it has all components of it; what the host has of a node the device may lack in part.
    """
    checked_every, driver.check_every = driver.check_every, 0
    depth = _depth(chart, HOST)
    if depth:
        _cache(driver, chart[:depth], HOST)
        driver.drain()
        evict_all(driver, FULL)
    if _depth(chart, DEVICE) > depth:
        _cache(driver, chart, DEVICE)
    else:
        _add(driver, chart[: _depth(chart, DEVICE)], DEVICE, range(_depth(chart, DEVICE)))
    driver.check_every = checked_every
    driver.check()
    drawn = read(driver, chart)
    assert drawn == chart, f"INS-3, INS-4, EVICT-7: the scene is {chart}, got {drawn}"


def read(driver: Driver, chart: Chart) -> Chart:
    """How a cache is, with nodes that end where those of a chart do; a node is as its last page."""
    found = [(held(driver, name), held_below(driver, name)) for name in driver.config.components]
    pages = pages_of(chart)
    nodes = []
    for end, node in zip(ends(chart), chart, strict=True):
        prefix = tuple(pages[:end])
        letters = [LETTERS[prefix in device, prefix in host] for device, host in found]
        nodes.append("".join(letters) + node.lstrip("BDH-"))
    return tuple(nodes)


def _depth(chart: Chart, tier: str) -> int:
    """How many nodes have FULL data on a tier."""
    return sum(node[0] in tier for node in chart)


def _cache(driver: Driver, chart: Chart, tier: str) -> None:
    """Cache a prompt that is new as a whole: its end with all components, the rest with what a tier has of it."""
    last = len(chart) - 1
    starts = [0, *ends(chart)]
    offer(driver, pages_of(chart), passed=starts[last])
    for end in ends(chart):
        driver.match(key_of(driver, pages_of(chart)[:end]), chunked=True)
    _add(driver, chart, tier, range(last))


def _add(driver: Driver, chart: Chart, tier: str, numbers: Iterable[int]) -> None:
    """Compute nodes anew, each as the end of a request whose window has left all before it."""
    starts = [0, *ends(chart)]
    for number in numbers:
        has_window, has_state = (_has(driver, chart[number], component, tier) for component in (SWA, MAMBA))
        end = starts[number + 1]
        offer(driver, pages_of(chart)[:end], passed=starts[number] if has_window else end, with_state=has_state)


def _has(driver: Driver, node: str, component: str, tier: str) -> bool:
    components = driver.config.components
    return component in components and node[components.index(component)] in tier
