"""Residency cases: where each component of each node of a prompt is, and what a match must find there.

A residency is written in a few letters. A node has one letter for each component, in their order: `B` on both tiers,
`D` on the device alone, `H` on the host alone, `-` on neither; then its length in pages, if that is not 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

from hicache.testing.models.tree import ExpectedMatch, Model
from hicache.types import MatchResult

from .scenario import FULL, MAMBA, SWA, Scenario

Residency: TypeAlias = tuple[str, ...]
"""The nodes of one prompt, from the root down."""

DEVICE, HOST = "BD", "BH"
"""The letters of a component that is on a tier."""

LETTERS = {(True, True): "B", (True, False): "D", (False, True): "H", (False, False): "-"}
"""The letter of a component, by whether it is on the device and whether it is on the host."""


def node_ends(residency: Residency) -> list[int]:
    """The number of pages up to the end of each node."""
    lengths = [int(node.lstrip("BDH-") or 1) for node in residency]
    return [sum(lengths[: number + 1]) for number in range(len(residency))]


def prompt_pages(residency: Residency) -> list[int]:
    """The prompt of a residency, by its pages."""
    return list(range(1, node_ends(residency)[-1] + 1))


def build_residency(driver: Scenario, residency: Residency) -> None:
    """Bring an empty cache with write_through to a residency. The backup of what is on the device alone stays queued.

    A new leaf is inserted with all of its components. The device may lack components of a node that the host has.
    """
    checked_every, driver.check_every = driver.check_every, 0
    depth = _full_depth(residency, HOST)
    if depth:
        _cache(driver, residency[:depth], HOST)
        driver.drain()
        driver.evict_all(FULL)
    if _full_depth(residency, DEVICE) > depth:
        _cache(driver, residency, DEVICE)
    else:
        _add(driver, residency[: _full_depth(residency, DEVICE)], DEVICE, range(_full_depth(residency, DEVICE)))
    driver.check_every = checked_every
    driver.check()
    built = read_residency(driver, residency)
    assert built == residency, f"INS-3, INS-4, EVICT-7: expected the residency {residency}, got {built}"


def read_residency(driver: Scenario, residency: Residency) -> Residency:
    """The residency of a cache, with the node ends of another one. A node has the letters of its last page."""
    found = [(driver.device_slots(name), driver.host_slots(name)) for name in driver.config.components]
    pages = prompt_pages(residency)
    nodes = []
    for end, node in zip(node_ends(residency), residency, strict=True):
        prefix = tuple(pages[:end])
        letters = [LETTERS[prefix in device, prefix in host] for device, host in found]
        nodes.append("".join(letters) + node.lstrip("BDH-"))
    return tuple(nodes)


MAX_NODES = 4
"""Nodes of a random residency. Its longest prompt fits twice into each pool of a standard configuration."""

PROBABILITY_PRESENT = 0.6
"""The probability that a node has a component if it has the component before."""


def random_residency(rng: Random, components: tuple[str, ...]) -> Residency:
    """A residency that can be built: each tier has FULL data of the first nodes, and new leaves have all components."""
    nodes = rng.randint(1, MAX_NODES)
    depths = [nodes, rng.randint(0, nodes)]
    rng.shuffle(depths)
    device_depth, host_depth = depths
    device = _random_tier(rng, components, device_depth, is_whole=device_depth > host_depth)
    host = _random_tier(rng, components, host_depth, is_whole=True)
    return tuple(
        "".join(LETTERS[name in _at(device, number), name in _at(host, number)] for name in components)
        + rng.choice(["", "", "2"])
        for number in range(nodes)
    )


WINDOW_PAGES = 2
"""The window of the cases with SWA, in pages."""


class ResidencyCase(NamedTuple):
    """A residency, and what a match of its first `nodes` finds, in pages. `hits`: on the host alone, by component."""

    residency: Residency
    nodes: int
    anchor: int
    best: int
    hits: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'.'.join(self.residency)}:{self.nodes}"

    @property
    def pages(self) -> list[int]:
        """The prompt."""
        return prompt_pages(self.residency)[: node_ends(self.residency)[self.nodes - 1]]

    def expected(self, driver: Scenario) -> ExpectedMatch:
        """What a match of the prompt must find, in elements."""
        size = driver.config.page_size
        components = driver.config.components
        hits = {name: pages * driver.unit(name) for name, pages in zip(components, self.hits, strict=True)}
        return ExpectedMatch(self.anchor * size, self.best * size, hits)


FULL_ALONE = (
    ResidencyCase(("B", "B", "B"), 3, anchor=3, best=3, hits=(0,)),
    ResidencyCase(("B", "B", "H"), 3, anchor=2, best=3, hits=(1,)),
    ResidencyCase(("B", "H", "H2"), 3, anchor=1, best=4, hits=(3,)),
    ResidencyCase(("B", "H", "H2"), 2, anchor=1, best=2, hits=(1,)),
    ResidencyCase(("H", "H", "H"), 3, anchor=0, best=3, hits=(3,)),
    ResidencyCase(("B", "D"), 2, anchor=2, best=2, hits=(0,)),
    ResidencyCase(("D",), 1, anchor=1, best=1, hits=(0,)),
)

WITH_WINDOW = (
    ResidencyCase(("BB", "BB", "BB"), 3, anchor=3, best=3, hits=(0, 0)),
    ResidencyCase(("HH", "HH", "HH"), 3, anchor=0, best=3, hits=(3, 2)),
    ResidencyCase(("BB", "DD"), 2, anchor=2, best=2, hits=(0, 0)),
    # The window alone is on the host, as a whole or in part.
    ResidencyCase(("BB", "BH", "BB"), 3, anchor=1, best=3, hits=(0, 1)),
    ResidencyCase(("BB", "BH", "BH"), 3, anchor=1, best=3, hits=(0, 2)),
    ResidencyCase(("B-", "BH", "BB"), 3, anchor=0, best=3, hits=(0, 1)),
    ResidencyCase(("BH", "DD"), 2, anchor=0, best=2, hits=(0, 1)),
    # The window is partly on the device and partly on the host.
    ResidencyCase(("BH", "BB", "HH"), 3, anchor=0, best=3, hits=(1, 1)),
    ResidencyCase(("B-", "BB", "HH"), 3, anchor=0, best=3, hits=(1, 1)),
    ResidencyCase(("BD", "HH"), 2, anchor=1, best=2, hits=(1, 1)),
    # SWA data before the window is not needed.
    ResidencyCase(("BH", "BB", "BB"), 3, anchor=3, best=3, hits=(0, 0)),
    ResidencyCase(("BH3", "BB", "BB"), 3, anchor=5, best=5, hits=(0, 0)),
    ResidencyCase(("BB", "H-", "HH", "HH"), 4, anchor=1, best=4, hits=(3, 2)),
    # An incomplete window is not a match: the deepest node on a tier is not the best match.
    ResidencyCase(("BB", "B-", "HH"), 3, anchor=1, best=1, hits=(0, 0)),
    ResidencyCase(("BB", "H-", "HH"), 3, anchor=1, best=1, hits=(0, 0)),
    ResidencyCase(("HH", "H-", "HH"), 3, anchor=0, best=1, hits=(1, 1)),
    ResidencyCase(("BH", "D-", "DD"), 3, anchor=0, best=1, hits=(0, 1)),
    ResidencyCase(("H-", "H-", "HH"), 3, anchor=0, best=0, hits=(0, 0)),
    # Of a node that begins before the window only the last pages count.
    ResidencyCase(("BH4", "BB2"), 1, anchor=0, best=4, hits=(0, 2)),
    ResidencyCase(("HH4", "HH2"), 1, anchor=0, best=4, hits=(4, 2)),
    ResidencyCase(("BB", "BH3", "BB"), 3, anchor=1, best=5, hits=(0, 1)),
    ResidencyCase(("BB", "HH3", "HH"), 3, anchor=1, best=5, hits=(4, 2)),
)

WITH_STATES = (
    ResidencyCase(("BB", "BB"), 2, anchor=2, best=2, hits=(0, 0)),
    ResidencyCase(("HH", "HH", "HH"), 3, anchor=0, best=3, hits=(3, 1)),
    ResidencyCase(("BB", "DD"), 2, anchor=2, best=2, hits=(0, 0)),
    # The state alone is on the host.
    ResidencyCase(("BB", "BH"), 2, anchor=1, best=2, hits=(0, 1)),
    ResidencyCase(("BH2",), 1, anchor=0, best=2, hits=(0, 1)),
    ResidencyCase(("BH", "B-", "BH", "B-", "BB"), 4, anchor=0, best=3, hits=(0, 1)),
    # The FULL data is on the host too. Only the state of the best match counts.
    ResidencyCase(("BB", "HH"), 2, anchor=1, best=2, hits=(1, 1)),
    ResidencyCase(("BD", "HH"), 2, anchor=1, best=2, hits=(1, 1)),
    ResidencyCase(("BB", "H-", "HH"), 3, anchor=1, best=3, hits=(2, 1)),
    ResidencyCase(("BH", "B-", "HH"), 3, anchor=0, best=3, hits=(1, 1)),
    ResidencyCase(("B-", "BH", "BB"), 3, anchor=3, best=3, hits=(0, 0)),
    ResidencyCase(("BH", "D-", "DD"), 3, anchor=3, best=3, hits=(0, 0)),
    # The deepest node on a tier has no state, so it is not the best match.
    ResidencyCase(("HH", "H-", "HH"), 2, anchor=0, best=1, hits=(1, 1)),
    ResidencyCase(("B-", "H-", "HH"), 2, anchor=0, best=0, hits=(0, 0)),
    ResidencyCase(("BB", "B-", "HH"), 2, anchor=1, best=1, hits=(0, 0)),
    ResidencyCase(("BH", "D-", "DD"), 2, anchor=0, best=1, hits=(0, 1)),
)

WITH_BOTH = (
    ResidencyCase(("BBB", "BBB", "BBB"), 3, anchor=3, best=3, hits=(0, 0, 0)),
    ResidencyCase(("HHH", "HHH", "HHH"), 3, anchor=0, best=3, hits=(3, 2, 1)),
    ResidencyCase(("BBB", "DDD"), 2, anchor=2, best=2, hits=(0, 0, 0)),
    # One component of one node is on the host alone, everything else on the device.
    ResidencyCase(("BBB", "BH-", "BBB"), 3, anchor=1, best=3, hits=(0, 1, 0)),
    ResidencyCase(("BHH", "BBB"), 2, anchor=0, best=2, hits=(0, 1, 0)),
    ResidencyCase(("BBB", "BB-", "BBH"), 3, anchor=1, best=3, hits=(0, 0, 1)),
    ResidencyCase(("BBB", "BHH", "BBB"), 3, anchor=1, best=3, hits=(0, 1, 0)),
    # Several components are on the host alone, each on nodes of its own.
    ResidencyCase(("BBB", "BHH", "B--", "BBB"), 3, anchor=1, best=2, hits=(0, 1, 1)),
    ResidencyCase(("BBB", "BHH", "BBH"), 3, anchor=1, best=3, hits=(0, 1, 1)),
    ResidencyCase(("BBH", "BBB", "HHH"), 3, anchor=2, best=3, hits=(1, 1, 1)),
    ResidencyCase(("BHH2", "BBB", "BBH", "HHH"), 4, anchor=0, best=5, hits=(1, 1, 1)),
    # A node that lacks one of the three components is not a match.
    ResidencyCase(("HHH", "HH-", "H--", "HHH"), 4, anchor=0, best=1, hits=(1, 1, 1)),
    ResidencyCase(("BHH", "D--", "DDD"), 3, anchor=0, best=1, hits=(0, 1, 1)),
    ResidencyCase(("BBB", "BH-", "BB-", "HHH"), 3, anchor=1, best=1, hits=(0, 0, 0)),
    ResidencyCase(("B--", "BH-", "HHH"), 2, anchor=0, best=0, hits=(0, 0, 0)),
    # Of a node that begins before the window only the last pages count.
    ResidencyCase(("BHH4", "BBB2"), 1, anchor=0, best=4, hits=(0, 2, 1)),
    ResidencyCase(("HHH4", "HHH2"), 1, anchor=0, best=4, hits=(4, 2, 1)),
)


def residency_cases(driver: Scenario) -> Sequence[ResidencyCase]:
    """The cases for the components of a cache."""
    return BY_COMPONENTS[driver.config.components]


BY_COMPONENTS = {
    (FULL,): FULL_ALONE,
    (FULL, SWA): WITH_WINDOW,
    (FULL, MAMBA): WITH_STATES,
    (FULL, SWA, MAMBA): WITH_BOTH,
}


def oracle_of(driver: Scenario, pages: Sequence[int]) -> Model:
    """An oracle that knows what each tier caches of a prompt."""
    config = driver.config
    oracle = Model(
        components=config.components,
        page_size=config.page_size,
        sliding_window_size=config.sliding_window_size,
        bigram=config.bigram,
    )
    oracle.permit(driver.key_of(pages))
    oracle.sync(driver.snapshot())
    return oracle


def require_match(found: MatchResult, expected: ExpectedMatch, what: object) -> None:
    """A match found the expected anchor and host hits. Its best match shows only when it is loaded.

    A host hit that is too long is MATCH-1: some component does not validate where it ends.
    """
    anchor = len(found.device_indices)
    assert anchor == expected.anchor, f"MATCH-5: {what}: expected the anchor at {expected.anchor}, got {anchor}"
    hits = {FULL: found.host_hit_length, **found.component_host_hit_lengths}
    clause_id = "MATCH-1" if hits[FULL] > expected.host_hits[FULL] else "MATCH-12"
    assert hits == expected.host_hits, f"{clause_id}: {what}: expected host hits {expected.host_hits}, got {hits}"


def _full_depth(residency: Residency, tier: str) -> int:
    """How many nodes have FULL data on a tier."""
    return sum(node[0] in tier for node in residency)


def _cache(driver: Scenario, residency: Residency, tier: str) -> None:
    """Cache a prompt of which the cache has nothing: its last node with all components, the others as on a tier."""
    last = len(residency) - 1
    starts = [0, *node_ends(residency)]
    driver.insert_fresh(prompt_pages(residency), passed=starts[last])
    for end in node_ends(residency):
        driver.match(driver.key_of(prompt_pages(residency)[:end]), chunked=True)
    _add(driver, residency, tier, range(last))


def _add(driver: Scenario, residency: Residency, tier: str, numbers: Iterable[int]) -> None:
    """Insert the data of some nodes, each by a request that ends there and whose window covers nothing before it."""
    starts = [0, *node_ends(residency)]
    for number in numbers:
        has_window, has_state = (_has(driver, residency[number], component, tier) for component in (SWA, MAMBA))
        end = starts[number + 1]
        driver.insert_fresh(
            prompt_pages(residency)[:end], passed=starts[number] if has_window else end, with_state=has_state
        )


def _has(driver: Scenario, node: str, component: str, tier: str) -> bool:
    components = driver.config.components
    return component in components and node[components.index(component)] in tier


def _random_tier(rng: Random, components: tuple[str, ...], depth: int, *, is_whole: bool) -> list[frozenset[str]]:
    """The components of each node on one tier. `is_whole`: the last node has all of them."""
    tier = [_random_node(rng, components) for _ in range(depth)]
    return [*tier[:-1], frozenset(components)] if is_whole and tier else tier


def _random_node(rng: Random, components: tuple[str, ...]) -> frozenset[str]:
    """The components of one node: none is there without those before it."""
    depth = 1
    while depth < len(components) and rng.random() < PROBABILITY_PRESENT:
        depth += 1
    return frozenset(components[:depth])


def _at(tier: list[frozenset[str]], number: int) -> frozenset[str]:
    return tier[number] if number < len(tier) else frozenset()
