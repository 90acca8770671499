"""An event log, replayed as a consumer does that sees nothing else; and what it should come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Component, Event, EventKind, Namespace, Tier

from .chains import page_chain, tokens_of

Residency: TypeAlias = set[tuple[str, str, Namespace, str]]
"""Tier, component, namespace and block of all that is somewhere."""


def replayed(events: Iterable[Event]) -> Residency:
    """What is there after these events. Each block is stored once before it is removed once."""
    present: Residency = set()
    for number, event in enumerate(events):
        blocks = {(event.tier.value, event.component, event.namespace, block) for block in event.blocks}
        assert len(blocks) == len(event.blocks) > 0, f"EVENT-1: event {number} names a block twice, or none: {event}"
        if event.kind is EventKind.STORED:
            assert not blocks & present, f"EVENT-1: event {number} stores what is there already: {event}"
            present |= blocks
        else:
            assert blocks <= present, f"EVENT-1: event {number} removes what was not stored: {event}"
            present -= blocks
    return present


def resident(driver: Driver) -> Residency:
    """What a snapshot shows, block by block. The blocks are the page hashes, worked out here where all can do so."""
    snapshot, page = driver.snapshot(), driver.config.page_size
    found: Residency = set()
    for number, node in enumerate(snapshot.nodes):
        blocks = _blocks(driver, node.namespace, snapshot.prefix(number))[node.start // page :]
        by_tier = {Tier.DEVICE: node.slots}
        if snapshot.host is not None:
            by_tier[Tier.HOST] = snapshot.host.nodes[number].slots
        for tier, held in by_tier.items():
            for component, slots in held.items():
                own = blocks[-1:] if component == Component.MAMBA else blocks
                if slots is not None:
                    found.update((tier.value, component, node.namespace, block) for block in own)
    return found


def _blocks(driver: Driver, namespace: Namespace, prefix: bytes) -> Sequence[str]:
    config = driver.config
    tokens = tokens_of(prefix, bigram=config.bigram)
    if namespace == SHARED:
        return page_chain(tokens, config.page_size, bigram=config.bigram)
    return driver.adapter.page_hashes(driver.key(tokens, namespace))
