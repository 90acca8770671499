"""Replays an event log, as a consumer does that sees nothing else, and lists the blocks that a snapshot shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Component, Event, EventKind, Namespace, Tier

from .tree_view import page_hash_chain, tokens_of_prefix

Blocks: TypeAlias = set[tuple[str, str, Namespace, str]]
"""Tier, component, namespace and block of everything that is cached."""


def replay(events: Iterable[Event]) -> Blocks:
    """The blocks that are cached after these events. Each block is stored once before it is removed once."""
    present: Blocks = set()
    for number, event in enumerate(events):
        blocks = {(event.tier.value, event.component, event.namespace, block) for block in event.blocks}
        assert len(blocks) == len(event.blocks) > 0, f"EVENT-1: expected distinct blocks in event {number}, got {event}"
        if event.kind is EventKind.STORED:
            assert not blocks & present, f"EVENT-1: event {number} stores blocks that are stored already: {event}"
            present |= blocks
        else:
            assert blocks <= present, f"EVENT-1: event {number} removes blocks that are not stored: {event}"
            present -= blocks
    return present


def cached_blocks(driver: Driver) -> Blocks:
    """The blocks that a snapshot shows. In the shared namespace their page hashes are worked out here."""
    snapshot, page = driver.snapshot(), driver.config.page_size
    found: Blocks = set()
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
    tokens = tokens_of_prefix(prefix, bigram=config.bigram)
    if namespace == SHARED:
        return page_hash_chain(tokens, config.page_size, bigram=config.bigram)
    return driver.adapter.page_hashes(driver.key(tokens, namespace))
