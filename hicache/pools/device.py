"""DevicePool: the tensors of one pool on the device, addressed by slot and layer."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from hicache.config import Layout
from hicache.errors import PoolMismatchError
from hicache.types import Pool, Slots

RawBytes = npt.NDArray[np.uint8]


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
    """A pool's identity: data may be copied only between pools of equal identity."""

    pool: Pool
    layers: int
    buffers: tuple[BufferSpec, ...]
    layout: Layout

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in one layer, over all buffers."""
        return sum(buffer.slot_bytes for buffer in self.buffers)


class DevicePool:
    """The buffers of one pool.

    Layer first: tensors [layers, slots, *shape]. Page first: [pages, layers, page_size, *shape]. Either way
    `layer_view` gives [slots, *shape] or [pages, page_size, *shape] of one layer without a copy.
    """

    def __init__(self, spec: PoolSpec, pages: int, page_size: int, device: str) -> None:
        self.spec = spec
        self.page_size = page_size
        self._device = torch.device(device)
        self._tensors = [self._empty(buffer, pages) for buffer in spec.buffers]

    def _empty(self, buffer: BufferSpec, pages: int) -> torch.Tensor:
        layers, size = self.spec.layers, self.page_size
        lead = (layers, pages * size) if self.spec.layout is Layout.LAYER_FIRST else (pages, layers, size)
        return torch.zeros((*lead, *buffer.shape), dtype=buffer.dtype, device=self._device)

    def layer_view(self, buffer: int, layer: int) -> torch.Tensor:
        """One layer of one buffer: [slots, *shape] when layers come first, [pages, page_size, *shape] otherwise."""
        tensor = self._tensors[buffer]
        return tensor[layer] if self.spec.layout is Layout.LAYER_FIRST else tensor[:, layer]

    def write(self, slots: Slots, layer: int, data: RawBytes) -> None:
        """Store raw bytes, uint8 [len(slots), slot_bytes], one row per slot. Raises ValueError on another shape."""
        if data.dtype != np.uint8 or data.shape != (len(slots), self.spec.slot_bytes):
            expected = (len(slots), self.spec.slot_bytes)
            raise ValueError(f"{self.spec.pool.value}: data is {data.dtype} {data.shape}, expected uint8 {expected}")
        column = 0
        for number, buffer in enumerate(self.spec.buffers):
            part = np.ascontiguousarray(data[:, column : column + buffer.slot_bytes])
            rows = torch.from_numpy(part).view(buffer.dtype).reshape(len(slots), *buffer.shape)
            self.layer_view(number, layer)[self._index(slots)] = rows.to(self._device)
            column += buffer.slot_bytes

    def read(self, slots: Slots, layer: int) -> RawBytes:
        """The raw bytes at the slots, uint8 [len(slots), slot_bytes]."""
        parts = [self._read(number, buffer, slots, layer) for number, buffer in enumerate(self.spec.buffers)]
        return np.concatenate(parts, axis=1)

    def _read(self, number: int, buffer: BufferSpec, slots: Slots, layer: int) -> RawBytes:
        rows = self.layer_view(number, layer)[self._index(slots)].cpu().reshape(len(slots), prod(buffer.shape))
        raw: RawBytes = rows.contiguous().view(torch.uint8).numpy()
        return raw.reshape(len(slots), buffer.slot_bytes)

    def copy_from(self, source: DevicePool, source_slots: Slots, slots: Slots) -> None:
        """Copy slots of all layers and buffers. Raises PoolMismatchError when the pools are not alike."""
        if source.spec != self.spec or source.page_size != self.page_size:
            raise PoolMismatchError(
                f"cannot copy {source.spec} with pages of {source.page_size} "
                f"to {self.spec} with pages of {self.page_size}"
            )
        for number in range(len(self.spec.buffers)):
            for layer in range(self.spec.layers):
                rows = source.layer_view(number, layer)[source._index(source_slots)]
                self.layer_view(number, layer)[self._index(slots)] = rows.to(self._device)

    def _index(self, slots: Slots) -> tuple[torch.Tensor, ...]:
        index = torch.from_numpy(slots).to(self._device)
        if self.spec.layout is Layout.LAYER_FIRST:
            return (index,)
        return index // self.page_size, index % self.page_size
