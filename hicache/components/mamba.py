"""MAMBA: one recurrent state for one exact prefix length."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import ClassVar

import numpy as np

from hicache.components.base import ComponentTier, Insertion, Tail, TreeComponent, Validator, has_value
from hicache.config import Recency
from hicache.tree.node import Node
from hicache.types import Component, Slots


class MambaComponent(TreeComponent):
    """A node may have the state at its end. A request never gets the tree's state, but a copy in a slot of its own."""

    name: ClassVar[str] = Component.MAMBA.value

    def is_candidate(self, node: Node) -> bool:
        data = node.device[self.index]
        return not data.lock_ref and data.value is not None

    def is_host_candidate(self, node: Node) -> bool:
        data = node.host[self.index]
        return not data.lock_ref and data.value is not None

    def validator(self, *, device_only: bool) -> Validator:
        return has_value(self.index, device_only=device_only)

    def needed(self, node: Node) -> list[Tail]:
        return [(node, node.pages)]

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        return insertion.state is None

    def overlap(self, node: Node, insertion: Insertion) -> None:
        self._adopt(node, insertion)

    def commit(self, node: Node, insertion: Insertion) -> None:
        self._adopt(node, insertion)

    def install_loaded(self, node: Node, pages: Slots) -> bool:
        if self._lacks_one_before(node):
            return False
        self.device.install(node, pages)
        return True

    def split(self, upper: Node, lower: Node) -> None:
        # The state belongs to the end, which the lower part has.
        upper.stored[self.index] = False

    def acquire(self, node: Node, tier: ComponentTier) -> int:
        if tier.data(node).value is None:
            return 0
        tier.inc_lock_ref(node)
        return 1

    def release(self, node: Node, mark: int, tier: ComponentTier) -> None:
        if mark:
            tier.dec_lock_ref(node)

    def touch(self, node: Node, now: int) -> None:
        step = node
        while step.parent is not None:
            step.last_access_time[self.index] = now
            if self.config.recency is not Recency.PATH:
                return
            step = step.parent

    def victim(self, node: Node, passed: AbstractSet[int]) -> Node:
        """With `coverage`, of the states on the path of the least recent one, that which costs least to compute again.

        The path is what lies between two forks, or ends at the deepest state. The states at its ends stay: a prompt
        that parts at a fork reads the one, and the next turn the other.
        """
        if self.config.recency is not Recency.COVERAGE:
            return node
        states = self._states_around(node)
        befores = [self._end_of_state_above(states[0]), *(state.end for state in states)]
        thinned = [
            (after.end - before, state.end, state)
            for before, state, after in zip(befores, states, states[1:], strict=False)
            if self.is_candidate(state) and id(state) not in passed
        ]
        return min(thinned, key=lambda one: one[:2])[2] if thinned else node

    def excess(self, node: Node) -> list[Node]:
        """Of the states on the path, those nearest to the root. A state where prompts part, or a locked one, stays."""
        most = self.config.mamba_max_states_per_path
        if most is None:
            return []
        states = [step for step in node.path() if step.device[self.index].value is not None]
        spare = [step for step in states[:-1] if len(step.children) == 1 and self.is_candidate(step)]
        return spare[: max(0, len(states) - most)]

    def free_on_device(self, pages: Slots) -> None:
        self.device_pages.free_states(pages)

    def reported_blocks(self, digests: list[bytes]) -> list[bytes]:
        return digests[-1:]

    def _states_around(self, node: Node) -> list[Node]:
        """The nodes with a state between the fork above a node and the one below it, from above."""
        top = node
        while (parent := top.parent) is not None and parent.parent is not None and len(parent.children) == 1:
            top = parent
        path = [top]
        while len(path[-1].children) == 1:
            path += path[-1].children.values()
        return [step for step in path if step.device[self.index].value is not None]

    def _end_of_state_above(self, node: Node) -> int:
        step = node.parent
        while step is not None and step.parent is not None and step.device[self.index].value is None:
            step = step.parent
        return 0 if step is None else step.end

    def _adopt(self, node: Node, insertion: Insertion) -> None:
        is_wanted = node.end == len(insertion.pages) and node.device[self.index].value is None
        if insertion.state is None or not is_wanted or self._lacks_one_before(node):
            return
        node.last_access_time[self.index] = insertion.now
        self.device.install(node, np.array([insertion.state], dtype=np.int64))
        insertion.state_adopted = True

    def _lacks_one_before(self, node: Node) -> bool:
        return any(data.value is None for data in node.device[: self.index])
