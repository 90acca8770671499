"""PoolBuffers: the tensors of one pool on one tier, addressed by slot and layer."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from hicache.config import Layout
from hicache.errors import PoolMismatchError
from hicache.pools.specs import BufferSpec, PoolSpec
from hicache.types import Slots

RawBytes = npt.NDArray[np.uint8]

AXES: Mapping[Layout, tuple[str, ...]] = {
    Layout.LAYER_FIRST: ("layers", "pages", "places"),
    Layout.PAGE_FIRST: ("pages", "places", "layers"),
    Layout.PAGE_FIRST_DIRECT: ("pages", "layers", "places"),
}
"""The order of a tensor in memory, before what one slot holds. A slot is a place in a page."""


class PoolBuffers:
    """The buffers of one pool.

    `raw`: for each buffer its bytes, uint8 [pages, layers, page_size, slot_bytes]: a view of the one tensor that holds
    them in the order of the layout.
    """

    def __init__(self, spec: PoolSpec, pages: int, page_size: int, device: str) -> None:
        self.spec = spec
        self.page_size = page_size
        self._device = torch.device(device)
        self.raw = [self._zeros(buffer, pages) for buffer in spec.buffers]

    def _zeros(self, buffer: BufferSpec, pages: int) -> torch.Tensor:
        lead = {"pages": pages, "layers": self.spec.layers, "places": self.page_size}
        order = AXES[self.spec.layout]
        sizes = (*[lead[axis] for axis in order], buffer.slot_bytes)
        tensor = _zeros(prod(sizes), self._device).view(sizes)
        return tensor.permute(*[order.index(axis) for axis in lead], 3)

    def layer_view(self, buffer: int, layer: int) -> torch.Tensor:
        """One layer of one buffer, for the model to read and write: [pages, page_size, *shape], without a copy."""
        spec, raw = self.spec.buffers[buffer], self.raw[buffer][:, layer]
        return raw.view(spec.dtype).view(*raw.shape[:2], *spec.shape)

    def memory(self, buffer: int) -> memoryview:
        """The bytes of one buffer in host memory, in the order of the layout."""
        raw = self.raw[buffer]
        return raw.as_strided((raw.numel(),), (1,)).numpy().data

    def pieces(self, page: int) -> list[memoryview]:
        """The runs of host memory that hold a page, buffer by buffer: one of each, or with layer first one a layer."""
        return [piece for buffer, memory in enumerate(self._memory) for piece in self._runs(buffer, memory, page)]

    def write(self, slots: Slots, layer: int, data: RawBytes) -> None:
        """Store raw bytes, uint8 [len(slots), slot_bytes], one row per slot. Raises ValueError on another shape."""
        if data.dtype != np.uint8 or data.shape != (len(slots), self.spec.slot_bytes):
            expected = (len(slots), self.spec.slot_bytes)
            raise ValueError(f"{self.spec.pool.value}: data is {data.dtype} {data.shape}, expected uint8 {expected}")
        pages, places = self._index(slots)
        rows = torch.from_numpy(np.ascontiguousarray(data)).to(self._device)
        for raw, part in zip(self.raw, torch.split(rows, self._widths, dim=1), strict=True):
            raw[:, layer][pages, places] = part

    def read(self, slots: Slots, layer: int) -> RawBytes:
        """The raw bytes at the slots, uint8 [len(slots), slot_bytes]."""
        pages, places = self._index(slots)
        rows: RawBytes = torch.cat([raw[:, layer][pages, places] for raw in self.raw], dim=1).cpu().numpy()
        return rows

    def copy_from(self, source: PoolBuffers, source_slots: Slots, slots: Slots) -> None:
        """Copy slots of all layers and buffers. Raises PoolMismatchError when the pools are not alike."""
        if source.spec != self.spec or source.page_size != self.page_size:
            raise PoolMismatchError(
                f"cannot copy {source.spec} with pages of {source.page_size} "
                f"to {self.spec} with pages of {self.page_size}"
            )
        source_pages, source_places = source._index(source_slots)
        pages, places = self._index(slots)
        for target, origin in zip(self.raw, source.raw, strict=True):
            target[pages, :, places] = origin[source_pages, :, source_places].to(self._device)

    @cached_property
    def _memory(self) -> list[memoryview]:
        return [self.memory(number) for number in range(len(self.raw))]

    def _runs(self, buffer: int, memory: memoryview, page: int) -> list[memoryview]:
        layers, run = self.spec.layers, self.page_size * self.spec.buffers[buffer].slot_bytes
        if self.spec.layout is not Layout.LAYER_FIRST:
            return [memory[page * layers * run : (page + 1) * layers * run]]
        pages = self.raw[buffer].shape[0]
        return [memory[(layer * pages + page) * run :][:run] for layer in range(layers)]

    @property
    def _widths(self) -> list[int]:
        return [buffer.slot_bytes for buffer in self.spec.buffers]

    def _index(self, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        pages, places = np.divmod(slots, self.page_size)
        return torch.from_numpy(pages).to(self._device), torch.from_numpy(places).to(self._device)


def _zeros(size_bytes: int, device: torch.device) -> torch.Tensor:
    # Host memory is mapped, so that no memory page is shared with another tensor: CUDA pins whole memory pages, once.
    if device.type != "cpu" or not size_bytes:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        # A hint, which some kernels refuse: scattered pages are copied a tenth faster from huge pages of memory.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
