"""Trees that hand out, protect or take over something else than the prefix in question."""

from __future__ import annotations

from dataclasses import replace

from hicache import cache
from hicache.components import component_tree
from hicache.components.base import ComponentTier, TreeComponent
from hicache.components.component_tree import REGISTRY
from hicache.components.swa import SwaComponent
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.mutants.accuracy.other_parts import OtherParts
from hicache.tiers.backup import BackupManager
from hicache.tiers.transfer import Transfer
from hicache.tree.node import FULL, Node
from hicache.types import InsertResult, Key, MatchResult, Slots


class HostAsDevice(ReferenceAdapter):
    """What of a component is on the host passes for being on the device, where the node's FULL pages are there."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        best: Node = found.best_match
        if best.parent is None or best.device[FULL].value is None:
            return found
        return replace(
            found,
            device_indices=self.cache.slots_to(best),
            device_anchor=best,
            host_hit_length=0,
            component_host_hit_lengths=dict.fromkeys(found.component_host_hit_lengths, 0),
        )


class FreesWhatIsKept(ReferenceAdapter):
    """An insert gives the last page to the tree, and frees it as well."""

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        result = super().insert(key, slots, shared=shared, window_start=window_start, state=state, priority=priority)
        if result.accepted_length > result.prefix_length:
            self.cache.pools.free(self.cache.pools.pages_of(slots[: result.accepted_length])[-1:])
        return result

    def free(self, slots: Slots) -> None:
        self.cache.pools.free(self.cache.pools.pages_of(slots))


class _FirstPages(BackupManager):
    def _install(self, transfer: Transfer, component: TreeComponent, node: Node, *, is_done: bool) -> None:
        start, transfer.start = transfer.start, node.start
        super()._install(transfer, component, node, is_done=is_done)
        transfer.start = start


class SplitForgotten(OtherParts):
    """When a backup ends, each part of a node that was cut meanwhile takes the first of its pages."""

    parts = ((cache, "BackupManager", _FirstPages),)


class _Unprotected(SwaComponent):
    def acquire(self, node: Node, tier: ComponentTier) -> int:
        return node.end


class NoWindowLock(OtherParts):
    """A lock protects no window."""

    parts = ((component_tree, "REGISTRY", {**REGISTRY, SwaComponent.name: _Unprotected}),)
