"""Findings: what a match must find where a prompt is spread over both tiers, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hicache.testing.driving.driver import Driver
from hicache.testing.model import ExpectedMatch

from .charts import Chart, ends, pages_of
from .verbs import FULL, MAMBA, SWA, unit

WINDOW_PAGES = 2
"""The window that the charts with SWA are meant for."""


class Finding(NamedTuple):
    """A chart, and what a prompt of its first `nodes` finds, in pages; `hits`: on the host alone, by component."""

    chart: Chart
    nodes: int
    anchor: int
    best: int
    hits: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'.'.join(self.chart)}:{self.nodes}"

    @property
    def pages(self) -> list[int]:
        """The prompt."""
        return pages_of(self.chart)[: ends(self.chart)[self.nodes - 1]]

    def expected(self, driver: Driver) -> ExpectedMatch:
        """What a match of the prompt must find, as the oracle would say it."""
        size = driver.config.page_size
        components = driver.config.components
        hits = {name: pages * unit(driver, name) for name, pages in zip(components, self.hits, strict=True)}
        return ExpectedMatch(self.anchor * size, self.best * size, hits)


FULL_ALONE = (
    Finding(("B", "B", "B"), 3, anchor=3, best=3, hits=(0,)),
    Finding(("B", "B", "H"), 3, anchor=2, best=3, hits=(1,)),
    Finding(("B", "H", "H2"), 3, anchor=1, best=4, hits=(3,)),
    Finding(("B", "H", "H2"), 2, anchor=1, best=2, hits=(1,)),
    Finding(("H", "H", "H"), 3, anchor=0, best=3, hits=(3,)),
    Finding(("B", "D"), 2, anchor=2, best=2, hits=(0,)),
    Finding(("D",), 1, anchor=1, best=1, hits=(0,)),
)

WITH_WINDOW = (
    Finding(("BB", "BB", "BB"), 3, anchor=3, best=3, hits=(0, 0)),
    Finding(("HH", "HH", "HH"), 3, anchor=0, best=3, hits=(3, 2)),
    Finding(("BB", "DD"), 2, anchor=2, best=2, hits=(0, 0)),
    # The window alone is on the host, as a whole or in part.
    Finding(("BB", "BH", "BB"), 3, anchor=1, best=3, hits=(0, 1)),
    Finding(("BB", "BH", "BH"), 3, anchor=1, best=3, hits=(0, 2)),
    Finding(("B-", "BH", "BB"), 3, anchor=0, best=3, hits=(0, 1)),
    Finding(("BH", "DD"), 2, anchor=0, best=2, hits=(0, 1)),
    # A window that mixes tiers.
    Finding(("BH", "BB", "HH"), 3, anchor=0, best=3, hits=(1, 1)),
    Finding(("B-", "BB", "HH"), 3, anchor=0, best=3, hits=(1, 1)),
    Finding(("BD", "HH"), 2, anchor=1, best=2, hits=(1, 1)),
    # What lies before the window is not missed, wherever it is.
    Finding(("BH", "BB", "BB"), 3, anchor=3, best=3, hits=(0, 0)),
    Finding(("BH3", "BB", "BB"), 3, anchor=5, best=5, hits=(0, 0)),
    Finding(("BB", "H-", "HH", "HH"), 4, anchor=1, best=4, hits=(3, 2)),
    # A window that is too short is none, so that the deepest node on a tier is not the best.
    Finding(("BB", "B-", "HH"), 3, anchor=1, best=1, hits=(0, 0)),
    Finding(("BB", "H-", "HH"), 3, anchor=1, best=1, hits=(0, 0)),
    Finding(("HH", "H-", "HH"), 3, anchor=0, best=1, hits=(1, 1)),
    Finding(("BH", "D-", "DD"), 3, anchor=0, best=1, hits=(0, 1)),
    Finding(("H-", "H-", "HH"), 3, anchor=0, best=0, hits=(0, 0)),
    # Of a node that begins before the window its last pages count.
    Finding(("BH4", "BB2"), 1, anchor=0, best=4, hits=(0, 2)),
    Finding(("HH4", "HH2"), 1, anchor=0, best=4, hits=(4, 2)),
    Finding(("BB", "BH3", "BB"), 3, anchor=1, best=5, hits=(0, 1)),
    Finding(("BB", "HH3", "HH"), 3, anchor=1, best=5, hits=(4, 2)),
)

WITH_STATES = (
    Finding(("BB", "BB"), 2, anchor=2, best=2, hits=(0, 0)),
    Finding(("HH", "HH", "HH"), 3, anchor=0, best=3, hits=(3, 1)),
    Finding(("BB", "DD"), 2, anchor=2, best=2, hits=(0, 0)),
    # The state alone is on the host.
    Finding(("BB", "BH"), 2, anchor=1, best=2, hits=(0, 1)),
    Finding(("BH2",), 1, anchor=0, best=2, hits=(0, 1)),
    Finding(("BH", "B-", "BH", "B-", "BB"), 4, anchor=0, best=3, hits=(0, 1)),
    # The FULL data too, and the state of the best match is the only one that counts.
    Finding(("BB", "HH"), 2, anchor=1, best=2, hits=(1, 1)),
    Finding(("BD", "HH"), 2, anchor=1, best=2, hits=(1, 1)),
    Finding(("BB", "H-", "HH"), 3, anchor=1, best=3, hits=(2, 1)),
    Finding(("BH", "B-", "HH"), 3, anchor=0, best=3, hits=(1, 1)),
    Finding(("B-", "BH", "BB"), 3, anchor=3, best=3, hits=(0, 0)),
    Finding(("BH", "D-", "DD"), 3, anchor=3, best=3, hits=(0, 0)),
    # Without a state there the deepest node on a tier is not the best.
    Finding(("HH", "H-", "HH"), 2, anchor=0, best=1, hits=(1, 1)),
    Finding(("B-", "H-", "HH"), 2, anchor=0, best=0, hits=(0, 0)),
    Finding(("BB", "B-", "HH"), 2, anchor=1, best=1, hits=(0, 0)),
    Finding(("BH", "D-", "DD"), 2, anchor=0, best=1, hits=(0, 1)),
)

WITH_BOTH = (
    Finding(("BBB", "BBB", "BBB"), 3, anchor=3, best=3, hits=(0, 0, 0)),
    Finding(("HHH", "HHH", "HHH"), 3, anchor=0, best=3, hits=(3, 2, 1)),
    Finding(("BBB", "DDD"), 2, anchor=2, best=2, hits=(0, 0, 0)),
    # One of them is on the host, and all the rest on the device.
    Finding(("BBB", "BH-", "BBB"), 3, anchor=1, best=3, hits=(0, 1, 0)),
    Finding(("BHH", "BBB"), 2, anchor=0, best=2, hits=(0, 1, 0)),
    Finding(("BBB", "BB-", "BBH"), 3, anchor=1, best=3, hits=(0, 0, 1)),
    Finding(("BBB", "BHH", "BBB"), 3, anchor=1, best=3, hits=(0, 1, 0)),
    # Several are, each on its own nodes.
    Finding(("BBB", "BHH", "B--", "BBB"), 3, anchor=1, best=2, hits=(0, 1, 1)),
    Finding(("BBB", "BHH", "BBH"), 3, anchor=1, best=3, hits=(0, 1, 1)),
    Finding(("BBH", "BBB", "HHH"), 3, anchor=2, best=3, hits=(1, 1, 1)),
    Finding(("BHH2", "BBB", "BBH", "HHH"), 4, anchor=0, best=5, hits=(1, 1, 1)),
    # A node where two agree is no match while the third does not.
    Finding(("HHH", "HH-", "H--", "HHH"), 4, anchor=0, best=1, hits=(1, 1, 1)),
    Finding(("BHH", "D--", "DDD"), 3, anchor=0, best=1, hits=(0, 1, 1)),
    Finding(("BBB", "BH-", "BB-", "HHH"), 3, anchor=1, best=1, hits=(0, 0, 0)),
    Finding(("B--", "BH-", "HHH"), 2, anchor=0, best=0, hits=(0, 0, 0)),
    # Of a node that begins before the window its last pages count.
    Finding(("BHH4", "BBB2"), 1, anchor=0, best=4, hits=(0, 2, 1)),
    Finding(("HHH4", "HHH2"), 1, anchor=0, best=4, hits=(4, 2, 1)),
)


def findings(driver: Driver) -> Sequence[Finding]:
    """Those for the components of a cache."""
    return BY_COMPONENTS[driver.config.components]


BY_COMPONENTS = {
    (FULL,): FULL_ALONE,
    (FULL, SWA): WITH_WINDOW,
    (FULL, MAMBA): WITH_STATES,
    (FULL, SWA, MAMBA): WITH_BOTH,
}
