"""Found: how far a key is cached, on the device and on both tiers together, from one walk."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.components.base import TreeComponent
from hicache.components.ensemble import Ensemble, all_valid
from hicache.keys import RadixKey
from hicache.tree.node import Node


@dataclass(frozen=True, slots=True)
class Found:
    """`path`: the nodes on the key down to the best match.

    `anchor`, `best`: the deepest nodes at which every component is valid, on the device alone and on both tiers.
    `anchor_steps`: how many nodes of the path the anchor ends. `reached_end`: pages at which all components but the
    last in rank were valid, past the anchor, or 0.
    """

    path: list[Node]
    anchor: Node
    best: Node
    anchor_steps: int
    reached_end: int

    def pages_on_host(self, component: TreeComponent) -> int:
        """How much of what a reader up to the best match needs of a component is on the host alone."""
        if self.best is self.anchor:
            return 0
        index, place = component.index, component.host.place
        stretches = [(step.values[index], step.values[place], pages) for step, pages in component.needed(self.best)]
        return sum(min(pages, len(copy)) for held, copy, pages in stretches if held is None and copy is not None)


def find(ensemble: Ensemble, key: RadixKey) -> Found:
    """Walk a key once. Every validator sees every node, also after another refused it (sglang#25277)."""
    validators = ensemble.validators(device_only=True)
    on_both = ensemble.validators(device_only=False) if ensemble.tiers > 1 else []
    anchor = best = ensemble.tree.root
    path: list[Node] = []
    anchor_steps = best_steps = reached_end = 0
    for node in ensemble.tree.walk(key):
        path.append(node)
        valid = valid_but_last = True
        for validate in validators:
            valid_but_last, valid = valid, validate(node) and valid
        if valid:
            anchor, anchor_steps = node, len(path)
        elif valid_but_last:
            reached_end = node.end
        if valid if not on_both else all_valid(on_both, node):
            best, best_steps = node, len(path)
    del path[best_steps:]
    return Found(path, anchor, best, anchor_steps, reached_end)
