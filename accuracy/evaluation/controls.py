"""Controls: the same questions with one component's data lost on its way from a tier; the answers have to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hicache.types import Component, Pool, Tier

from ..gates import GATES
from .comparison import apart, unserved
from .judged_pass import JudgedPass, judged
from .losing import losing
from .passes import Passes
from .scored_pass import ScoredPass

POOLS: Mapping[Component, Pool] = {
    Component.FULL: Pool.KV,
    Component.SWA: Pool.SWA,
    Component.MAMBA: Pool.MAMBA,
}
"""Where each component keeps its data."""


def without(component: Component, tier: Tier, passes: Passes, ask: Callable[[], ScoredPass]) -> ScoredPass:
    """What is answered from a tier that keeps everything but this component's data."""
    passes.lose_above(tier)
    with losing(passes.stage.adapter, POOLS[component]):
        return ask()


def controls(passes: Passes, ask: Callable[[], ScoredPass], first: ScoredPass) -> Iterator[JudgedPass]:
    """A pass for each component and tier. Its problem is an answer that no gate would have stopped.

    Whatever the caches hold afterwards was computed from what was lost: nothing true can be asked of them any more.
    """
    gate = GATES[passes.stage.model.layout.dtype]
    page_size = passes.stage.config.page_size
    ask()  # what was last reopened over storage is on the device again
    for component in map(Component, passes.stage.config.components):
        for tier in Tier:
            lossy = without(component, tier, passes, ask)
            name = f"{tier.value}, without {component.value}"
            problems = [*unserved(name, tier, page_size, lossy)]
            nats = apart(first, lossy)
            if float(nats.mean()) <= gate.mean and float(nats.max()) <= gate.most:
                problems.append(f"{name}: {float(nats.mean()):.1e} nats a token, which {gate} lets pass: nothing tells")
            yield judged(name, first, lossy, problems)
