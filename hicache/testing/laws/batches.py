"""Arrays of slots joined into few: a law neither loops over small nodes nor copies a large tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hicache.types import Slots

BATCH_SLOTS = 1 << 20
"""Slots from which a batch is full."""


def batches(several: Iterable[Slots]) -> Iterator[Slots]:
    """The same slots in the same order, joined until a batch is full."""
    pending: list[Slots] = []
    count = 0
    for slots in several:
        pending.append(slots)
        count += len(slots)
        if count >= BATCH_SLOTS:
            yield np.concatenate(pending)
            pending, count = [], 0
    if count:
        yield pending[0] if len(pending) == 1 else np.concatenate(pending)
