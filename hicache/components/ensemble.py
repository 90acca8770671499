"""Ensemble: the components of one tree acting together on its nodes."""

from __future__ import annotations

from hicache.components.base import FULL, Insertion, Surroundings, TreeComponent, Validator
from hicache.components.registry import REGISTRY
from hicache.keys import RadixKey, page_bytes
from hicache.tree.node import Node
from hicache.tree.radix import RadixTree


class Ensemble:
    """A tree and what lies on it. Data goes in FULL first, and comes out FULL last."""

    def __init__(self, surroundings: Surroundings) -> None:
        config = surroundings.config
        ranked = [component for name, component in REGISTRY.items() if name in config.components]
        bytes_per_page = page_bytes(config.page_size, config.bigram)
        self.tree = RadixTree(bytes_per_page, len(ranked), self._on_split, surroundings.counters)
        self.components = [component(index, surroundings) for index, component in enumerate(ranked)]
        self.by_name = {component.name: component for component in self.components}

    def validators(self) -> list[Validator]:
        """Fresh validators for one walk, in rank order."""
        return [component.validator() for component in self.components]

    def lay(self, key: RadixKey, insertion: Insertion) -> tuple[int, Node, int]:
        """Lay a key over the tree; returns where the old part ended, the last node, and where a match would end."""
        validators = self.validators()
        node, accepted_end = self.tree.root, 0
        for met in self.tree.walk(key):
            for node in self._parted(met, insertion):
                self._overlap(node, insertion)
                accepted_end = node.end if _all_valid(validators, node) else accepted_end
        prefix_end = node.end
        for end in self._leaf_ends(prefix_end, insertion):
            node = self._commit(self.tree.attach(node, key, end), insertion)
            accepted_end = node.end if _all_valid(validators, node) else accepted_end
        return prefix_end, node, accepted_end

    def touch(self, node: Node, now: int) -> None:
        """A request used the path to the node."""
        if node.parent is not None:
            for component in self.components:
                component.touch(node, now)

    def evict(self, node: Node, target: TreeComponent) -> None:
        """Take one victim of a component: the whole of a leaf, or the component and those of lower rank."""
        if not node.children and not node.locks[FULL]:
            self.settle(self._remove(node))
        else:
            for component in reversed(self.components[target.index :]):
                component.drop(node)

    def settle(self, node: Node) -> None:
        """A node lost its last child or lock: a tombstone that nothing can match goes, anything else may be evicted."""
        while node.parent and not node.children and not node.locks[FULL] and any(v is None for v in node.values):
            node = self._remove(node)
        self.components[FULL].queue.offer(node)

    def clear(self) -> None:
        """Drop everything, locked or not."""
        for node in self.tree.nodes():
            for component in reversed(self.components):
                component.forget(node)
        self.tree.clear()

    def flush(self) -> None:
        """Free what was dropped. SWA goes before FULL, whose partners its pages are."""
        for component in reversed(self.components):
            component.flush()

    def _parted(self, node: Node, insertion: Insertion) -> list[Node]:
        for component in self.components:
            cut = component.cut_before_overlap(node, insertion)
            if cut is not None:
                return [self.tree.split(node, cut - node.start), node]
        return [node]

    def _overlap(self, node: Node, insertion: Insertion) -> None:
        for component in self.components:
            component.overlap(node, insertion)

    def _leaf_ends(self, start: int, insertion: Insertion) -> list[int]:
        total = len(insertion.pages)
        if start == total:
            return []
        ends = {total}
        for component in self.components:
            if component.refuses_leaf(start, insertion):
                return []
            ends.update(component.cuts(start, insertion))
        return sorted(ends)

    def _commit(self, leaf: Node, insertion: Insertion) -> Node:
        leaf.created, leaf.priority = insertion.now, insertion.priority
        for component in self.components:
            component.commit(leaf, insertion)
        return leaf

    def _on_split(self, upper: Node, lower: Node) -> None:
        for component in self.components:
            component.split(upper, lower)

    def _remove(self, node: Node) -> Node:
        """Take out a leaf; what is known of its use goes to the parent, which is returned."""
        for component in reversed(self.components):
            component.drop(node)
        parent = self.tree.remove(node)
        parent.hits += node.hits
        parent.priority = max(parent.priority, node.priority)
        parent.touched[FULL] = max(parent.touched[FULL], node.touched[FULL])
        self.components[FULL].queue.touched(parent)
        return parent


def _all_valid(validators: list[Validator], node: Node) -> bool:
    """Every validator sees every node, also after another refused it: SWA counts its run (sglang#25277)."""
    valid = True
    for validate in validators:
        valid = validate(node) and valid
    return valid
