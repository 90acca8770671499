"""Slot rows: pack tensors into the bytes of pool slots, and unpack them with every bit the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from hicache.testing.adapter import PageBytes


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of a slot: its shape without the axis of the slots."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes in one slot."""
        return prod(self.shape) * self.dtype.itemsize


def to_rows(tensors: Sequence[torch.Tensor], width: int) -> PageBytes:
    """Pack tensors [slots, ...] one after the other: uint8 [slots, width], with zeros after them."""
    count = len(tensors[0])
    packed = torch.cat([tensor.reshape(count, -1).contiguous().view(torch.uint8) for tensor in tensors], dim=1)
    rows = np.zeros((count, width), dtype=np.uint8)
    rows[:, : packed.shape[1]] = packed.cpu().numpy()
    return rows


def from_rows(rows: PageBytes, pieces: Sequence[Piece], device: torch.device) -> list[torch.Tensor]:
    """Unpack the tensors [slots, *shape] of rows that `to_rows` packed."""
    tensors, start = [], 0
    for piece in pieces:
        own = np.ascontiguousarray(rows[:, start : start + piece.size_bytes])
        tensors.append(torch.from_numpy(own).view(piece.dtype).reshape(len(rows), *piece.shape).to(device))
        start += piece.size_bytes
    return tensors
