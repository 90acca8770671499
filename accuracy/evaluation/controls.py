"""Control passes: lose the data of one component on its way from a tier, and check that the gates notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hicache.types import Component, Pool, Tier

from ..answers import GATES
from .compared_pass import ComparedPass, compared
from .comparison import missing_hits, nats_between
from .passes import Passes
from .scored_pass import ScoredPass
from .zeroed_pool import zeroed_pool

POOLS: Mapping[Component, Pool] = {
    Component.FULL: Pool.KV,
    Component.SWA: Pool.SWA,
    Component.MAMBA: Pool.MAMBA,
}
"""The pool of each component."""


def pass_without(component: Component, tier: Tier, passes: Passes, ask: Callable[[], ScoredPass]) -> ScoredPass:
    """The pass from a tier when the data of this component is lost."""
    passes.drop_above(tier)
    with zeroed_pool(passes.setup.adapter, POOLS[component]):
        return ask()


def control_passes(passes: Passes, ask: Callable[[], ScoredPass], first: ScoredPass) -> Iterator[ComparedPass]:
    """A pass for each component and tier. It has a problem if the loss stays within the gates.

    Run these passes last: afterwards the cache holds data that was computed from zeros.
    """
    gate = GATES[passes.setup.model.layout.dtype]
    page_size = passes.setup.config.page_size
    ask()  # brings everything from storage to the device, in case the cache was reopened before
    for component in map(Component, passes.setup.config.components):
        for tier in Tier:
            lossy = pass_without(component, tier, passes, ask)
            name = f"{tier.value}, without {component.value}"
            problems = [*missing_hits(name, tier, page_size, lossy)]
            nats = nats_between(first, lossy)
            if float(nats.mean()) <= gate.mean and float(nats.max()) <= gate.worst:
                problems.append(
                    f"{name}: the loss has no effect: expected over {gate}, got {float(nats.mean()):.1e} nats a token"
                )
            yield compared(name, first, lossy, problems)
