"""zeroed_pool: make a cache return zeros for everything that is read from one pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from hicache.testing.adapter import CacheAdapter, PageBytes
from hicache.types import Pool, Slots


@contextmanager
def zeroed_pool(adapter: CacheAdapter, pool: Pool) -> Iterator[None]:
    """Return zeros for every read of the pool, until the context ends."""
    read = adapter.read

    def read_zeros(read_pool: Pool, slots: Slots, layer: int) -> PageBytes:
        rows = read(read_pool, slots, layer)
        return np.zeros_like(rows) if read_pool is pool else rows

    with patch.object(adapter, "read", read_zeros):
        yield
