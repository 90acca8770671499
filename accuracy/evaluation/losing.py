"""losing: a cache that brings back zeros in the place of what one pool held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from hicache.testing.adapter import CacheAdapter, PageBytes
from hicache.types import Pool, Slots


@contextmanager
def losing(adapter: CacheAdapter, pool: Pool) -> Iterator[None]:
    """Until it ends, whatever is read of the pool is zeros."""
    read = adapter.read

    def lossy(asked: Pool, slots: Slots, layer: int) -> PageBytes:
        rows = read(asked, slots, layer)
        return np.zeros_like(rows) if asked is pool else rows

    with patch.object(adapter, "read", lossy):
        yield
