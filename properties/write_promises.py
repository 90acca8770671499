"""WritePromises: what a write policy promises of copies on the host, as long as nothing kept them from being made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hicache.config import HostConfig, WritePolicy
from hicache.testing.model import Held
from hicache.testing.snapshot import Snapshot
from hicache.types import Component, Namespace, Slots, TransferKind

FULL = Component.FULL.value


class WritePromises:
    """Of one life of a cache. `refusals`: how many backups were refused so far, or None where that is not told."""

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
        """Whether the cache told that it refused a copy."""
        return self._refusals is not None and self._refusals() > self._refused_before

    def failed(self) -> None:
        """A copy was made to fail."""
        self._has_failed = True

    def used(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot) -> None:
        """A prefix was used, and what of it was hit often enough is being copied by now."""
        due = b""
        for number, node in enumerate(snapshot.nodes):
            end = snapshot.prefix(number)
            is_next = node.namespace == namespace and prefix.startswith(end) and end.startswith(due)
            is_hit = node.hits is not None and node.hits >= self._least_hits
            if is_next and len(end) - len(node.segment) == len(due) and is_hit:
                due = end
        self._due.add((namespace, due))

    def look(self, snapshot: Snapshot, copies: Held) -> None:
        """HOST-1: nothing is copied before its time. `copies`: what the host holds now, as the oracle sees it."""
        self._has_lost |= any(pages - copies[component] for component, pages in self._copies.items())
        self._copies = {component: set(pages) for component, pages in copies.items()}
        assert snapshot.host is not None, "a machine of two tiers sees both"
        backups = [one for one in snapshot.host.transfers if one.kind is TransferKind.BACKUP]
        is_early = self._policy is WritePolicy.WRITE_BACK and len(backups) > 0
        assert not is_early, f"HOST-1: write_back copies what leaves the device, and waits for it: {backups}"
        for node, below in zip(snapshot.nodes, snapshot.host.nodes, strict=True):
            is_early = below.slots[FULL] is not None and node.hits is not None and node.hits < self._least_hits
            assert not is_early, f"HOST-1: a node of {node.hits} hits was copied, {self._least_hits} are needed"

    def require_copies(self, snapshot: Snapshot) -> None:
        """HOST-1, HOST-2: with nothing under way, all that was used has its copies, unless there was no room."""
        if self._policy is WritePolicy.WRITE_BACK or not self._is_free():
            return
        assert snapshot.host is not None, "a machine of two tiers sees both"
        for number, (node, below) in enumerate(zip(snapshot.nodes, snapshot.host.nodes, strict=True)):
            place = snapshot.prefix(number)
            is_due = any(owner == node.namespace and end.startswith(place) for owner, end in self._due)
            lacking = [c for c, slots in node.slots.items() if slots is not None and below.slots[c] is None]
            assert not is_due or not lacking, f"HOST-1: node {number} was used and has no copy of {lacking}"

    def require_demotion(self, before: Snapshot, after: Snapshot) -> None:
        """EVICT-7: what has a whole copy on the host keeps it when it leaves the device."""
        if self._policy is WritePolicy.WRITE_BACK:
            return
        assert before.host is not None, "a machine of two tiers sees both"
        whole = [view.slots for view in before.host.nodes if all(own is not None for own in view.slots.values())]
        for component in before.pools:
            lost = _slots(whole, component) - _host_slots(after, component)
            assert not lost, f"EVICT-7: {component} slots {sorted(lost)} of whole copies are gone from the host"

    def keeps_all(self, before: Snapshot) -> bool:
        """FLOW-8: whether nothing may be lost by evicting from this state: there is room for a copy of everything."""
        if self._policy is not WritePolicy.WRITE_BACK or self._has_failed:
            return False
        assert before.host is not None, "a machine of two tiers sees both"
        lacking = dict.fromkeys(before.pools, 0)
        for node, below in zip(before.nodes, before.host.nodes, strict=True):
            for component, slots in node.slots.items():
                lacking[component] += 0 if slots is None or below.slots[component] is not None else len(slots)
        return all(len(before.host.pools[component].free) >= count for component, count in lacking.items())

    def _is_free(self) -> bool:
        """Whether no copy failed or was refused, and none had to make room for another."""
        is_told = self._refusals is not None
        return is_told and not (self._has_failed or self._has_lost or self.is_refused)


def _host_slots(snapshot: Snapshot, component: str) -> set[int]:
    assert snapshot.host is not None, "a machine of two tiers sees both"
    return _slots([view.slots for view in snapshot.host.nodes], component)


def _slots(several: list[Mapping[str, Slots | None]], component: str) -> set[int]:
    held = [own for slots in several if (own := slots[component]) is not None]
    return {int(slot) for own in held for slot in own}
