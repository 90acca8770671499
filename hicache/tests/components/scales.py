"""A component that the package does not have: scales of quantised KV, which live in FULL's own slots."""

from __future__ import annotations

from typing import ClassVar

from hicache.components.base import ComponentTier, Insertion, Tail, TreeComponent, Validator, has_value
from hicache.tree.node import FULL, Node
from hicache.types import Slots

SCALES = "scales"


class ScalesComponent(TreeComponent):
    """A node is valid with its scales. They need no allocation, as they have FULL's page numbers."""

    name: ClassVar[str] = SCALES

    def is_candidate(self, node: Node) -> bool:
        data = node.device[self.index]
        return not data.lock_ref and data.value is not None

    def is_host_candidate(self, node: Node) -> bool:
        data = node.host[self.index]
        return not data.lock_ref and data.value is not None

    def validator(self, *, device_only: bool) -> Validator:
        return has_value(self.index, device_only=device_only)

    def needed(self, node: Node) -> list[Tail]:
        return [(step, step.pages) for step in node.path()]

    def overlap(self, node: Node, insertion: Insertion) -> None:
        """A node that exists keeps what it has."""

    def commit(self, node: Node, insertion: Insertion) -> None:
        pages = node.device[FULL].value
        assert pages is not None, "FULL commits first"
        self.device.install(node, pages.copy())

    def install_loaded(self, node: Node, pages: Slots) -> bool:
        self.device.install(node, pages)
        return True

    def split(self, upper: Node, lower: Node) -> None:
        for tier in self.tiers:
            tier.split(upper, lower)
            tier.data(upper).lock_ref = tier.data(lower).lock_ref
            tier.queue.offer(upper)

    def acquire(self, node: Node, tier: ComponentTier) -> int:
        tier.inc_lock_ref(node)
        return 0

    def release(self, node: Node, mark: int, tier: ComponentTier) -> None:
        tier.dec_lock_ref(node)

    def touch(self, node: Node, now: int) -> None:
        node.last_access_time[self.index] = now

    def free_on_device(self, pages: Slots) -> None:
        """They are freed with FULL's slots."""
