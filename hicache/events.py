"""EventLog: which blocks were stored and removed on each tier, in order."""

from __future__ import annotations

from collections.abc import Iterable

from hicache.types import Event, EventKind, Namespace, Tier

Residency = frozenset[tuple[Tier, str, str]]
"""The blocks that are present: (tier, component, block)."""


class EventLog:
    """The events since the cache was opened, or since the last `take`. None are recorded when it is disabled."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._events: list[Event] = []

    def record(
        self, kind: EventKind, tier: Tier, component: str, namespace: Namespace, digests: Iterable[bytes]
    ) -> None:
        """Add an event: a component's data of some pages was stored on a tier, or removed from it."""
        blocks = tuple(digest.hex() for digest in digests)
        self._events.append(Event(kind, tier, component, namespace, blocks))

    def peek(self) -> tuple[Event, ...]:
        """The events since the last `take`."""
        return tuple(self._events)

    def take(self) -> tuple[Event, ...]:
        """The events since the last `take`, which are removed from the log."""
        taken = tuple(self._events)
        self._events.clear()
        return taken


def residency(events: Iterable[Event]) -> Residency:
    """The blocks that are present after these events. Raises ValueError when a block is removed that was not stored."""
    present: set[tuple[Tier, str, str]] = set()
    for event in events:
        blocks = {(event.tier, event.component, block) for block in event.blocks}
        if event.kind is EventKind.STORED:
            present |= blocks
        elif blocks <= present:
            present -= blocks
        else:
            raise ValueError(f"removed before stored: {sorted(block for _, _, block in blocks - present)}")
    return frozenset(present)
