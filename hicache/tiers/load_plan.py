"""LoadPlan: what a reader up to a node lacks on the device, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.components.base import TreeComponent
from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.tiers.operation import Operation
from hicache.tree.node import Node
from hicache.types import Component


@dataclass(frozen=True, slots=True, eq=False)
class LoadPlan:
    """What is to be copied, and what is on its way already.

    `wanted`: the nodes in the order of the path, each with its components in rank order. `under_way`: the operations of
    other loads that bring the rest. `window`: nodes on the device whose own data is part of what is needed.
    `anchor_end`: pages from the root to the device anchor.
    """

    wanted: dict[Node, list[TreeComponent]]
    under_way: list[Operation]
    window: list[Node]
    anchor_end: int

    @classmethod
    def of(cls, ensemble: Ensemble, node: Node) -> LoadPlan | None:
        """The plan for a reader up to the node, or None when something of it is on no tier.

        A node of which only the last pages are needed is split there.
        """
        _cut(ensemble, node)
        wanted: dict[Node, list[TreeComponent]] = {step: [] for step in node.path()}
        under_way: dict[Operation, None] = {}
        window: list[Node] = []
        for component in ensemble.components:
            for step, _ in component.needed(node):
                if step.values[component.index] is not None:
                    window += [step] if component.index > FULL else []
                elif step.arriving[component.index] is not None:
                    under_way[operation_at(step, component.index)] = None
                elif step.values[component.host.place] is not None:
                    wanted[step].append(component)
                else:
                    return None
        listed = {step: components for step, components in wanted.items() if components}
        return cls(listed, list(under_way), window, ensemble.device_end(node))

    @property
    def pages(self) -> dict[str, int]:
        """The pages to take of each component."""
        pages: dict[str, int] = {}
        for step, components in self.wanted.items():
            for component in components:
                count = 1 if component.name == Component.MAMBA else step.pages
                pages[component.name] = pages.get(component.name, 0) + count
        return pages

    def is_wanted(self, threshold: int, quota: int | None) -> bool:
        """Whether there is something to wait for, and neither too few nor too many FULL pages to copy."""
        full = self.pages.get(Component.FULL, 0)
        is_too_small = 0 < full < threshold
        is_too_large = quota is not None and full > quota
        return bool(self.wanted or self.under_way) and not is_too_small and not is_too_large


def operation_at(node: Node, place: int) -> Operation:
    """The operation that brings pages to a place of a node."""
    arrival = node.arriving[place]
    assert isinstance(arrival, Operation), f"nothing arrives at place {place} of {node!r}"
    return arrival


def _cut(ensemble: Ensemble, node: Node) -> None:
    """Split the nodes that begin before what is needed of them and not there."""
    for component in ensemble.components:
        for step, pages in component.needed(node):
            if pages < step.pages and step.values[component.index] is None:
                ensemble.tree.split(step, step.pages - pages)
