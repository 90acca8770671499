"""WritePolicyOracle: which host copies a write policy must make, as long as no backup fails and the host has room."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hicache.config import HostConfig, WritePolicy
from hicache.testing.models.tree import Held
from hicache.testing.snapshot import Snapshot
from hicache.types import Component, Namespace, Slots, TransferKind

FULL = Component.FULL.value


class WritePolicyOracle:
    """For one cache until its reset. `refusals`: the number of refused backups; None if the cache does not count."""

    def __init__(self, host: HostConfig, refusals: Callable[[], int] | None) -> None:
        self._policy = host.write_policy
        self._least_hits = host.selective_hits if self._policy is WritePolicy.WRITE_THROUGH_SELECTIVE else 0
        self._refusals = refusals
        self._refused_before = 0 if refusals is None else refusals()
        self._copies: Held = {}
        self._due: set[tuple[Namespace, bytes]] = set()
        self._has_lost = False
        self._has_failed = False

    @property
    def is_refused(self) -> bool:
        """Whether the cache counted a refused backup."""
        return self._refusals is not None and self._refusals() > self._refused_before

    def failed(self) -> None:
        """A backup was made to fail."""
        self._has_failed = True

    def used(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot) -> None:
        """Record a use of a prefix: its nodes with enough hits must already be queued for backup."""
        due = b""
        for number, node in enumerate(snapshot.nodes):
            end = snapshot.prefix(number)
            is_next = node.namespace == namespace and prefix.startswith(end) and end.startswith(due)
            is_hit = node.hits is not None and node.hits >= self._least_hits
            if is_next and len(end) - len(node.segment) == len(due) and is_hit:
                due = end
        self._due.add((namespace, due))

    def observe(self, snapshot: Snapshot, copies: Held) -> None:
        """HOST-1: nothing is backed up too early. `copies`: what the host holds now, by the oracle."""
        self._has_lost |= any(pages - copies[component] for component, pages in self._copies.items())
        self._copies = {component: set(pages) for component, pages in copies.items()}
        assert snapshot.host is not None, "a machine of two tiers sees both"
        backups = [one for one in snapshot.host.transfers if one.kind is TransferKind.BACKUP]
        is_early = self._policy is WritePolicy.WRITE_BACK and len(backups) > 0
        assert not is_early, (
            f"HOST-1: write_back backs up only within an eviction: expected no queued backups, got {backups}"
        )
        for node, below in zip(snapshot.nodes, snapshot.host.nodes, strict=True):
            is_early = below.slots[FULL] is not None and node.hits is not None and node.hits < self._least_hits
            assert not is_early, (
                f"HOST-1: expected no copy of a node below {self._least_hits} hits, got one with {node.hits}"
            )

    def require_copies(self, snapshot: Snapshot) -> None:
        """HOST-1, HOST-2: after a drain every used node has its copies, unless a backup failed or was refused."""
        if self._policy is WritePolicy.WRITE_BACK or not self._is_free():
            return
        assert snapshot.host is not None, "a machine of two tiers sees both"
        for number, (node, below) in enumerate(zip(snapshot.nodes, snapshot.host.nodes, strict=True)):
            place = snapshot.prefix(number)
            is_due = any(owner == node.namespace and end.startswith(place) for owner, end in self._due)
            lacking = [c for c, slots in node.slots.items() if slots is not None and below.slots[c] is None]
            assert not is_due or not lacking, (
                f"HOST-1: node {number} was used: expected copies of all its components, lacking {lacking}"
            )

    def require_demotion(self, before: Snapshot, after: Snapshot) -> None:
        """EVICT-7: a node with a complete host copy keeps it when it leaves the device."""
        if self._policy is WritePolicy.WRITE_BACK:
            return
        assert before.host is not None, "a machine of two tiers sees both"
        whole = [view.slots for view in before.host.nodes if all(own is not None for own in view.slots.values())]
        for component in before.pools:
            lost = _slots(whole, component) - _host_slots(after, component)
            assert not lost, (
                f"EVICT-7: expected complete copies to stay on the host, {component} slots {sorted(lost)} are gone"
            )

    def keeps_all(self, before: Snapshot) -> bool:
        """FLOW-8: whether an eviction from this state may lose nothing: the host has room for a copy of everything."""
        if self._policy is not WritePolicy.WRITE_BACK or self._has_failed:
            return False
        assert before.host is not None, "a machine of two tiers sees both"
        lacking = dict.fromkeys(before.pools, 0)
        for node, below in zip(before.nodes, before.host.nodes, strict=True):
            for component, slots in node.slots.items():
                lacking[component] += 0 if slots is None or below.slots[component] is not None else len(slots)
        return all(len(before.host.pools[component].free) >= count for component, count in lacking.items())

    def _is_free(self) -> bool:
        """Whether no backup failed or was refused, and no copy was evicted."""
        is_counted = self._refusals is not None
        return is_counted and not (self._has_failed or self._has_lost or self.is_refused)


def _host_slots(snapshot: Snapshot, component: str) -> set[int]:
    assert snapshot.host is not None, "a machine of two tiers sees both"
    return _slots([view.slots for view in snapshot.host.nodes], component)


def _slots(several: list[Mapping[str, Slots | None]], component: str) -> set[int]:
    held = [own for slots in several if (own := slots[component]) is not None]
    return {int(slot) for own in held for slot in own}
