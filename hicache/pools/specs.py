"""PoolSpec and BufferSpec: what a slot of a pool holds in one layer, and how its tensors are ordered."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from hicache.config import Layout
from hicache.types import Pool


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One tensor of a pool: what a slot holds of it in one layer."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in one layer."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool's identity: within a tier, data may be copied only between pools of equal identity."""

    pool: Pool
    layers: int
    buffers: tuple[BufferSpec, ...]
    layout: Layout

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in one layer, over all buffers."""
        return sum(buffer.slot_bytes for buffer in self.buffers)
