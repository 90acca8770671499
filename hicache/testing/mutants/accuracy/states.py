"""States that are another prefix's, or that two write to."""

from __future__ import annotations

from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.tree.node import Node
from hicache.types import Slots


def state_of(node: Node, components: int) -> Slots | None:
    """The state that a node holds on the device; it is the last of its components."""
    return node.device[components - 1].value


class StateBefore(ReferenceAdapter):
    """A request goes on from the state of the node before, where that has one."""

    def fork_state(self, handle: Node) -> int | None:
        before, components = handle.parent, len(self.cache.config.components)
        is_there = before is not None and state_of(before, components) is not None
        return super().fork_state(before if before is not None and is_there else handle)


class NoCopy(ReferenceAdapter):
    """A request goes on in the tree's own state, and writes to it."""

    def fork_state(self, handle: Node) -> int | None:
        return self.cache.state_of(handle)

    def free_state(self, slot: int) -> None:
        components = len(self.cache.config.components)
        held = [state for node in self.cache.tree.radix.nodes() if (state := state_of(node, components)) is not None]
        if not any(slot in state for state in held):
            super().free_state(slot)
