"""PoolBuffers: the tensors of one pool on one tier, by slot and layer; TierPools: all pools of a cache on one tier."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig, Layout
from hicache.errors import ConfigurationError, PoolMismatchError
from hicache.optional_torch import CPU, torch
from hicache.pools.allocator import PageAllocator
from hicache.types import Component, Slots

RawBytes = npt.NDArray[np.uint8]

ALL_LAYERS = slice(None)

AXES: Mapping[Layout, tuple[str, ...]] = {
    Layout.LAYER_FIRST: ("layers", "pages", "places"),
    Layout.PAGE_FIRST: ("pages", "places", "layers"),
    Layout.PAGE_FIRST_DIRECT: ("pages", "layers", "places"),
}
"""The order of a tensor in memory, before the item of one slot. A slot is a place in a page."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One tensor of a pool: the item of one slot in one layer."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in one layer."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool's identity: data may be copied only between pools that differ in nothing but layout and capacity.

    `owner`: the component whose pages the pool has. A sidecar has those of another pool, and is never allocated from
    (sglang#22767). `tokens_per_entry`: a page of the pool has one entry for so many tokens, and at least one row.
    """

    pool: str
    owner: str
    layers: int
    buffers: tuple[BufferSpec, ...]
    layout: Layout
    tokens_per_entry: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in one layer, over all buffers."""
        return sum(buffer.slot_bytes for buffer in self.buffers)


class PoolBuffers:
    """The buffers of one pool.

    `raw`: for each buffer its bytes, uint8 [pages, layers, page_size, slot_bytes]: a view of the one tensor that has
    them in the order of the layout. `tensors`: the caller's own, one for each buffer, contiguous and in that order;
    without them zeros are allocated. Raises PoolMismatchError for a tensor of another size, device or dtype.
    """

    def __init__(
        self, spec: PoolSpec, pages: int, page_size: int, device: str, tensors: Sequence[torch.Tensor] | None = None
    ) -> None:
        self.spec = spec
        self.page_size = page_size
        self._device = torch.device(device)
        given = [None] * len(spec.buffers) if tensors is None else _tensors_of(spec.pool, tensors)
        if len(given) != len(spec.buffers):
            raise PoolMismatchError(f"pool {spec.pool!r} has {len(spec.buffers)} buffers, {len(given)} tensors came")
        self.raw = [self._raw(buffer, pages, own) for buffer, own in zip(spec.buffers, given, strict=True)]

    def _raw(self, buffer: BufferSpec, pages: int, given: torch.Tensor | None) -> torch.Tensor:
        lead = {"pages": pages, "layers": self.spec.layers, "places": self.page_size}
        order = AXES[self.spec.layout]
        sizes = (*[lead[axis] for axis in order], buffer.slot_bytes)
        flat = _zeros(prod(sizes), self._device) if given is None else self._flat_bytes(buffer, given, prod(sizes))
        return flat.view(sizes).permute(*[order.index(axis) for axis in lead], 3)

    def _flat_bytes(self, buffer: BufferSpec, given: torch.Tensor, size_bytes: int) -> torch.Tensor:
        """The bytes of a tensor that the caller owns, without a copy."""
        found = (given.dtype, given.device.type, given.numel() * given.itemsize, given.is_contiguous())
        expected = (buffer.dtype, self._device.type, size_bytes, True)
        if found != expected:
            raise PoolMismatchError(
                f"pool {self.spec.pool!r}, buffer {buffer.name!r}: dtype, device, bytes, contiguous must be "
                f"{expected}, got {found}"
            )
        return given.view(-1).view(torch.uint8)

    def layer_view(self, buffer: int, layer: int) -> torch.Tensor:
        """One layer of one buffer, for the model to read and write: [pages, page_size, *shape], without a copy."""
        spec, raw = self.spec.buffers[buffer], self.raw[buffer][:, layer]
        return raw.view(spec.dtype).view(*raw.shape[:2], *spec.shape)

    def memory(self, buffer: int) -> memoryview:
        """The bytes of one buffer in host memory, in the order of the layout."""
        raw = self.raw[buffer]
        return raw.as_strided((raw.numel(),), (1,)).numpy().data

    def pieces(self, page: int) -> list[memoryview]:
        """The runs of host memory that have a page, buffer by buffer: one run each, or with layer first one a layer."""
        return [piece for buffer, memory in enumerate(self._memory) for piece in self._runs(buffer, memory, page)]

    def write(self, slots: Slots, layer: int, data: RawBytes) -> None:
        """Store raw bytes, uint8 [len(slots), slot_bytes], one row per slot. Raises ValueError on another shape."""
        if data.dtype != np.uint8 or data.shape != (len(slots), self.spec.slot_bytes):
            expected = (len(slots), self.spec.slot_bytes)
            raise ValueError(f"{self.spec.pool}: data is {data.dtype} {data.shape}, expected uint8 {expected}")
        if self._arrays:
            own_pages, own_places = np.divmod(slots, self.page_size)
            for array, own in zip(self._arrays, np.split(data, np.cumsum(self._widths)[:-1], axis=1), strict=True):
                array[own_pages, layer, own_places] = own
            return
        pages, places = self._index(slots)
        rows = torch.from_numpy(np.ascontiguousarray(data)).to(self._device)
        for raw, part in zip(self.raw, torch.split(rows, self._widths, dim=1), strict=True):
            raw[:, layer][pages, places] = part

    def read(self, slots: Slots, layer: int) -> RawBytes:
        """The raw bytes at the slots, uint8 [len(slots), slot_bytes]."""
        if self._arrays:
            own_pages, own_places = np.divmod(slots, self.page_size)
            return np.concatenate([array[own_pages, layer, own_places] for array in self._arrays], axis=1)
        pages, places = self._index(slots)
        rows: RawBytes = torch.cat([raw[pages, layer, places] for raw in self.raw], dim=1).cpu().numpy()
        return rows

    def copy_page(self, source: int, target: int, layers: slice = ALL_LAYERS) -> None:
        """Copy one page to another, in all buffers. Page numbers become addresses: nothing is uploaded."""
        for raw in self.raw:
            raw[target, layers].copy_(raw[source, layers])

    @cached_property
    def _arrays(self) -> list[RawBytes]:
        """The buffers as arrays, in host memory: an index of a few slots costs a quarter of what it does in torch."""
        return [raw.numpy() for raw in self.raw] if self._device.type == "cpu" else []

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


class TierPools:
    """The pools of one cache on one tier: allocators by component, buffers by pool. Each has a padding page, page 0.

    Inside the cache everything is counted in pages. A state is a page of one slot. Without a model there are no
    buffers. `device`: of the tensors; the CPU without any.
    """

    def __init__(
        self,
        config: CacheConfig,
        capacity_tokens: Mapping[str, int],
        specs: Mapping[str, PoolSpec],
        device: str,
        tensors: Mapping[str, Sequence[torch.Tensor]] | None = None,
    ) -> None:
        self.page_size = config.page_size
        sizes = {c: 1 if c == Component.MAMBA else config.page_size for c in config.components}
        self.allocators = {c: PageAllocator(c, capacity_tokens[c] // size) for c, size in sizes.items()}
        self.buffers: dict[str, PoolBuffers] = {}
        unknown = sorted(set(tensors or ()) - set(specs))
        if unknown:
            raise ConfigurationError(f"tensors are given for pools {unknown}, the cache has {sorted(specs)}")
        for pool, spec in specs.items():
            pages, page_size = self.capacity_pages(spec.owner) + 1, max(1, sizes[spec.owner] // spec.tokens_per_entry)
            self.buffers[pool] = PoolBuffers(spec, pages, page_size, device, (tensors or {}).get(pool))
        tensors_of_all = [raw for buffers in self.buffers.values() for raw in buffers.raw]
        self.device = tensors_of_all[0].device if tensors_of_all else CPU
        self._page_bytes = dict.fromkeys(sizes, 0)
        for buffers in self.buffers.values():
            self._page_bytes[buffers.spec.owner] += buffers.page_size * buffers.spec.layers * buffers.spec.slot_bytes

    def capacity_pages(self, component: str) -> int:
        """The number of pages in a component's pool. They are 1 to this number."""
        return self.allocators[component].capacity_pages

    def reset(self) -> None:
        """Make every slot free, with or without an owner."""
        self.allocators = {name: PageAllocator(name, one.capacity_pages) for name, one in self.allocators.items()}

    def pools_of(self, component: str) -> list[str]:
        """The pools that have a component's pages, in the order of the model."""
        return [pool for pool, buffers in self.buffers.items() if buffers.spec.owner == component]

    def bytes_of(self, pages: Mapping[str, Slots]) -> int:
        """How many bytes some pages are, by component, over all layers and pools, sidecars included."""
        return sum(len(own) * self._page_bytes[component] for component, own in pages.items())

    def take(self, pages: Mapping[str, int]) -> dict[str, Slots] | None:
        """So many pages of each component, SWA pages without partners; None, with nothing taken, when one is short."""
        if any(count > self.allocators[component].free_pages for component, count in pages.items()):
            return None
        taken = {component: self.allocators[component].allocate(count) for component, count in pages.items()}
        return {component: own for component, own in taken.items() if own is not None}


def _tensors_of(pool: str, tensors: object) -> list[torch.Tensor]:
    if not isinstance(tensors, Sequence) or not all(isinstance(one, torch.Tensor) for one in tensors):
        raise ConfigurationError(f"tensors[{pool!r}] must be a sequence of tensors, got {tensors!r}")
    return list(tensors)


def _zeros(size_bytes: int, device: torch.device) -> torch.Tensor:
    # Host memory is mapped, so that no memory page has two tensors: CUDA pins whole memory pages, once.
    if device.type != "cpu" or not size_bytes:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        # A hint, which some kernels refuse: scattered pages are copied a tenth faster from huge pages of memory.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
