"""Charts that chance draws: any that a cache can be brought to be as, in one of the ways that `charts.draw` knows."""

from __future__ import annotations

from random import Random

from .charts import LETTERS, Chart

MOST_NODES = 4
LENGTHS = (1, 1, 2)
"""Pages of a node. A prompt of the longest chart fits twice into each pool of a standard configuration."""

PRESENT = 0.6
"""How probable it is that a node has a component where it has the one before."""


def drawn_chart(chance: Random, components: tuple[str, ...]) -> Chart:
    """A chart: either tier has FULL data of some first nodes, and of the rest it has some, its last node whole."""
    nodes = chance.randint(1, MOST_NODES)
    depths = [nodes, chance.randint(0, nodes)]
    chance.shuffle(depths)
    device_depth, host_depth = depths
    device = _drawn_tier(chance, components, device_depth, is_whole=device_depth > host_depth)
    host = _drawn_tier(chance, components, host_depth, is_whole=True)
    return tuple(
        "".join(LETTERS[name in _at(device, number), name in _at(host, number)] for name in components)
        + chance.choice(["", "", "2"])
        for number in range(nodes)
    )


def _drawn_tier(chance: Random, components: tuple[str, ...], depth: int, *, is_whole: bool) -> list[frozenset[str]]:
    """What each node has on one tier. `is_whole`: the last of them has all components."""
    tier = [_drawn_node(chance, components) for _ in range(depth)]
    return [*tier[:-1], frozenset(components)] if is_whole and tier else tier


def _drawn_node(chance: Random, components: tuple[str, ...]) -> frozenset[str]:
    """A component is there only where those of higher rank are."""
    depth = 1
    while depth < len(components) and chance.random() < PRESENT:
        depth += 1
    return frozenset(components[:depth])


def _at(tier: list[frozenset[str]], number: int) -> frozenset[str]:
    return tier[number] if number < len(tier) else frozenset()
