"""EventLog: what was stored and removed, in order, so that replaying it gives the residency."""

from __future__ import annotations

from collections.abc import Iterable

from hicache.types import Event, EventKind, Namespace, Tier

Residency = frozenset[tuple[Tier, str, str]]
"""Blocks that are somewhere: (tier, component, block)."""


class EventLog:
    """The events since the cache was opened, or since they were last taken; nothing at all when it is off."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._events: list[Event] = []

    def record(
        self, kind: EventKind, tier: Tier, component: str, namespace: Namespace, digests: Iterable[bytes]
    ) -> None:
        """A component's data of some pages was stored on a tier, or removed from it."""
        blocks = tuple(digest.hex() for digest in digests)
        self._events.append(Event(kind, tier, component, namespace, blocks))

    def peek(self) -> tuple[Event, ...]:
        """The events that nobody has taken yet."""
        return tuple(self._events)

    def take(self) -> tuple[Event, ...]:
        """The events that nobody has taken yet; afterwards they are gone."""
        taken = tuple(self._events)
        self._events.clear()
        return taken


def residency(events: Iterable[Event]) -> Residency:
    """Replay events from the beginning. Raises ValueError when a block is removed that was not stored."""
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
