"""EventReplay: follows the event log as a consumer does, and compares it with the number of pages on each tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Event, EventKind, Namespace, Tier

Holder = tuple[Tier, str]
"""A component on a tier."""


class EventReplay:
    """The blocks on each tier, by the events so far."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._present: set[tuple[Holder, Namespace, str]] = set()
        self._seen = 0

    def observe(self, events: Sequence[Event], snapshot: Snapshot) -> None:
        """Apply the new events. No block is stored twice, and the log adds up to what the snapshot shows (EVENT-1)."""
        for event in events[self._seen :]:
            # Storage keeps blocks that are no longer in the tree: a snapshot cannot confirm them.
            if event.tier is not Tier.STORAGE:
                self._apply(event)
        self._seen = len(events)
        replayed = Counter(holder for holder, _, _ in self._present)
        held = self._held(snapshot)
        assert replayed == held, f"EVENT-1: expected the events to add up to {dict(held)} pages, got {dict(replayed)}"

    def _apply(self, event: Event) -> None:
        blocks = {((event.tier, event.component), event.namespace, block) for block in event.blocks}
        if event.kind is EventKind.STORED:
            assert not blocks & self._present, f"EVENT-1: stored twice: {event}"
            self._present |= blocks
        else:
            assert blocks <= self._present, f"EVENT-1: removed before it was stored: {event}"
            self._present -= blocks

    def _held(self, snapshot: Snapshot) -> Counter[Holder]:
        """The pages of each component on each tier."""
        held: Counter[Holder] = Counter()
        views: dict[Tier, Sequence[NodeView | HostNodeView]] = {Tier.DEVICE: snapshot.nodes}
        if snapshot.host is not None:
            views[Tier.HOST] = snapshot.host.nodes
        for tier, nodes in views.items():
            for component, slots in [pair for node in nodes for pair in node.slots.items()]:
                if slots is not None:
                    held[tier, component] += 1 if component == Component.MAMBA else len(slots) // self._page_size
        return held
