"""Ensemble: the components of one tree acting together on its nodes."""

from __future__ import annotations

from hicache.components.base import Insertion, Surroundings, TreeComponent, Validator
from hicache.components.holding import FULL
from hicache.components.registry import REGISTRY
from hicache.config import WritePolicy
from hicache.keys import RadixKey, page_bytes
from hicache.tree.node import Node, Shape
from hicache.tree.radix import RadixTree


class Ensemble:
    """A tree and what lies on it. Data goes in FULL first, and comes out FULL last."""

    def __init__(self, surroundings: Surroundings) -> None:
        config = surroundings.config
        ranked = [component for name, component in REGISTRY.items() if name in config.components]
        self.tiers = 1 if surroundings.bank is None else 2
        # What is copied only when it must leave goes from the leaves up.
        self.leaves_gaps = config.host is not None and config.host.write_policy is WritePolicy.WRITE_BACK
        shape = Shape(len(ranked), self.tiers)
        bytes_per_page = page_bytes(config.page_size, config.bigram)
        self.tree = RadixTree(bytes_per_page, shape, self._on_split, surroundings.counters)
        self.now = 0
        self.components = [component(index, len(ranked), surroundings) for index, component in enumerate(ranked)]
        self.by_name = {component.name: component for component in self.components}

    def tick(self) -> int:
        """The next moment: what is used later has a higher one."""
        self.now += 1
        return self.now

    def validators(self, *, device_only: bool) -> list[Validator]:
        """Fresh validators for one walk, in rank order; host data counts unless `device_only`."""
        tiers = 1 if device_only else self.tiers
        return [
            component.validator(tuple(holding.place for holding in component.holdings[:tiers]))
            for component in self.components
        ]

    def device_end(self, node: Node) -> int:
        """Where a reader up to the node would end on the device alone, in pages."""
        validators = self.validators(device_only=True)
        return max((step.end for step in node.path() if all_valid(validators, step)), default=0)

    def lay(self, key: RadixKey, insertion: Insertion) -> tuple[Node, int]:
        """Lay a key over the tree; returns the last node, and where a match would end on the device."""
        validators = self.validators(device_only=True)
        node, accepted_end = self.tree.root, 0
        for met in self.tree.walk(key):
            for node in self._parted(met, insertion):
                self._overlap(node, insertion)
                accepted_end = node.end if all_valid(validators, node) else accepted_end
        for end in self._leaf_ends(node.end, insertion):
            node = self._commit(self.tree.attach(node, key, end), insertion)
            accepted_end = node.end if all_valid(validators, node) else accepted_end
        return node, accepted_end

    def touch(self, node: Node, now: int) -> None:
        """A request used the path to the node."""
        if node.parent is not None:
            for component in self.components:
                component.touch(node, now)

    def evict(self, node: Node, target: TreeComponent) -> None:
        """Take one victim of a component from the device: a leaf whole, or the component and those of lower rank."""
        if node.holders[0] or node.locks[FULL]:
            self._drop(node, self.components[target.index :])
        elif self.is_on_host(node):
            self._drop(node, self.components)
            self._hand_up(node)
            self.settle(node)
        else:
            self.settle(self._remove(node))

    def evict_host(self, node: Node, target: TreeComponent) -> None:
        """Take one victim of a component from the host: a node that is nowhere else whole, or that component there."""
        if node.children or any(node.locks) or node.values[FULL] is not None:
            for component in reversed(self.components[target.index :]):
                component.host.drop(node)
            self.settle(node)
        else:
            self.settle(self._remove(node))

    def is_on_host(self, node: Node) -> bool:
        """Whether the node has a copy of its FULL pages on the host."""
        return self.tiers > 1 and node.values[self.components[FULL].host.place] is not None

    def bears_on_host(self, parent: Node) -> bool:
        """Whether a child of the node may have a host copy: but for write_back, no prefix has a gap there."""
        return parent.parent is None or self.leaves_gaps or self.is_on_host(parent)

    def has_ground(self, component: TreeComponent, node: Node) -> bool:
        """Whether what a host copy must stand on is there: those of higher rank, and for FULL the parent's copy."""
        if component.index > FULL:
            return all(node.values[other.host.place] is not None for other in self.components[: component.index])
        assert node.parent is not None, "the root has nothing to copy"
        return self.bears_on_host(node.parent)

    def settle(self, node: Node) -> None:
        """A node lost its last child, lock or data: what nothing can match goes, anything else may be evicted."""
        while node.parent and not node.children and not any(node.locks) and self._is_useless(node):
            node = self._remove(node)
        for component in self.components:
            for holding in component.holdings:
                holding.queue.offer(node)

    def clear(self) -> None:
        """Drop everything, locked or not."""
        for node in self.tree.nodes():
            for component in reversed(self.components):
                for holding in component.holdings:
                    holding.forget(node)
        self.tree.clear()
        self.tree.root.holders = [0] * self.tiers

    def flush(self) -> None:
        """Free what was dropped. SWA goes before FULL, whose partners its pages are."""
        for component in reversed(self.components):
            for holding in component.holdings:
                holding.flush()

    def flush_host(self) -> None:
        """Free what was dropped on the host alone, in the middle of something on the device."""
        for component in self.components:
            component.host.flush()

    def prune(self, node: Node) -> bool:
        """Remove the host-only nodes below one that is to be dropped; False, with nothing done, if one is locked."""
        below: list[Node] = []
        stack = list(node.children.values())
        while stack:
            step = stack.pop()
            below.append(step)
            stack.extend(step.children.values())
        if any(any(step.locks) for step in below):
            return False
        for step in reversed(below):
            self._remove(step)
        return True

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
        for arrival in {id(arrival): arrival for arrival in lower.arriving if arrival is not None}.values():
            arrival.divide(upper, lower)
        for component in self.components:
            component.split(upper, lower)

    def _is_useless(self, node: Node) -> bool:
        """Whether a component is on no tier, so that no match can end here."""
        return any(component.is_missing(node) for component in self.components)

    def _drop(self, node: Node, components: list[TreeComponent]) -> None:
        """Let go of some components on the device; their host copies, if any, are all that is left of them now."""
        for component in reversed(components):
            component.device.drop(node)
            for holding in component.holdings[1:]:
                holding.queue.moved(node)

    def _remove(self, node: Node) -> Node:
        """Take out a leaf; returns its parent."""
        for component in reversed(self.components):
            for holding in component.holdings:
                holding.drop(node)
        parent = self.tree.remove(node)
        self._hand_up(node)
        return parent

    def _hand_up(self, node: Node) -> None:
        """A node left the device, or the tree: what is known of its use goes to its parent."""
        parent = node.parent
        assert parent is not None, "the root never leaves"
        parent.priority = max(parent.priority, node.priority)
        parent.touched[FULL] = max(parent.touched[FULL], node.touched[FULL])
        self.components[FULL].device.queue.touched(parent)


def all_valid(validators: list[Validator], node: Node) -> bool:
    """Every validator sees every node, also after another refused it: SWA counts its run (sglang#25277)."""
    valid = True
    for validate in validators:
        valid = validate(node) and valid
    return valid
