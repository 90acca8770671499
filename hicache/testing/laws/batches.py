"""Joins arrays of slots, so that a law neither loops over small nodes nor copies a large tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hicache.types import Slots

BATCH_SLOTS = 1 << 20
"""The number of slots in a full batch."""


def batches(arrays: Iterable[Slots]) -> Iterator[Slots]:
    """The same slots in the same order, joined into batches."""
    pending: list[Slots] = []
    count = 0
    for slots in arrays:
        pending.append(slots)
        count += len(slots)
        if count >= BATCH_SLOTS:
            yield np.concatenate(pending)
            pending, count = [], 0
    if count:
        yield pending[0] if len(pending) == 1 else np.concatenate(pending)
