"""Situation: the states that a search must reach, so that it tests what it is meant to test."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np

from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot, TransferView
from hicache.types import Component, TransferKind


class Situation(str, Enum):
    """One situation, described by its value."""

    LOAD = "a load was granted"
    LOAD_OF_OTHERS = "a load of other components than FULL was granted"
    LOAD_SHARED = "a load shared slots with another load under way"
    LOAD_REFUSED = "a load was refused"
    LOAD_DELIVERED = "a load was claimed"
    LOAD_FAILED = "a load failed"
    LOAD_ABANDONED = "a load was abandoned under way"
    LAYERS_READ = "some layers of a load were read before the others had moved"
    BACKUP_FAILED = "a backup failed"
    BACKUP_REFUSED = "a backup was refused"
    EVICTION_REFUSED = "a victim stayed, because it could not be backed up"
    OUT_OF_ORDER = "a transfer ended before an older one of its direction"
    SPLIT = "a node was split while its data was under way"
    KEPT = "loaded slots were kept for their readers"
    RESET = "a reset came while a transfer was under way"
    PREFETCH = "a prefetch was granted"
    PREFETCH_REFUSED = "a prefetch was refused"
    PREFETCH_BROUGHT = "a prefetch brought pages"
    PREFETCH_OVERTAKEN = "a request computed the pages of a prefetch meanwhile"
    PREFETCH_RETRIED = "a prefetch brought fewer pages than storage had said"
    PREFETCH_CUT = "a prefetch was cut before its end"
    PREFETCH_ABORTED = "a prefetch was aborted under way"
    PREFETCH_STILL_WRITING = "storage still wrote pages of a prefetch that had ended"
    PREFETCH_RESET = "a reset or a restart came while a prefetch was under way"
    STORE_FAILED = "storage refused a node"
    OPERATOR_REFUSED = "an operator's call was refused"
    OPERATOR = "an operator changed the backend"
    REQUEST_RESUMED = "a request resumed with what it had loaded"
    REQUEST_FELL_BACK = "a request resumed without what it had requested to load"
    REQUEST_ABORTED = "a request was aborted while it waited for a load"


def situations_of(snapshot: Snapshot) -> Iterator[Situation]:
    """The situations that a snapshot shows."""
    host = snapshot.host
    if host is None:
        return
    if any(len(slots) for slots in host.kept.values()):
        yield Situation.KEPT
    for transfer in host.transfers:
        if _is_split(transfer, snapshot.nodes if transfer.kind is TransferKind.BACKUP else host.nodes):
            yield Situation.SPLIT


def _is_split(transfer: TransferView, nodes: tuple[NodeView, ...] | tuple[HostNodeView, ...]) -> bool:
    """Whether the source of a transfer is now on several nodes."""
    source = (transfer.device if transfer.kind is TransferKind.BACKUP else transfer.host).get(Component.FULL)
    if source is None:
        return False
    held = [slots for node in nodes if (slots := node.slots[Component.FULL]) is not None]
    return sum(bool(np.isin(slots, source).any()) for slots in held) > 1
