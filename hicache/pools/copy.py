"""PoolCopier: copies the pages of a job between the pools of device and host, sidecars with the pool they follow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from hicache.config import IoBackend, Layout
from hicache.errors import PoolMismatchError, SlotError
from hicache.optional_torch import torch
from hicache.pools.buffers import ALL_LAYERS, PoolBuffers, TierPools
from hicache.pools.host import seen_from
from hicache.transfer.job import CopyJob
from hicache.types import TransferKind

StackLayer = tuple[tuple[str, int], ...]
"""One layer of the stack: the pools that it reads, and its number in those."""

LayerOrder = tuple[StackLayer, ...]
"""The layers of the stack, first to last."""

Addresses = Sequence[tuple[Any, Any]]
"""Where pages are on device and host: pairs of slices, or of index tensors."""

SCRATCH_BYTES = 64 << 20
"""One kernel gathers pages, another scatters them: the most bytes in between, unless a page of one layer has more."""


LAYER_PAGE_BYTES = 64 << 10
"""From this mean size of a page in one layer on, copies layer by layer took up to a tenth longer than all at once."""


class BufferPair:
    """One tensor of a device pool and its twin on the host: [pages, layers, page_size, elements] each, of one kind."""

    def __init__(self, device: Any, host: Any) -> None:
        self._device = device
        self._host = host

    def copy(self, kind: TransferKind, addresses: Addresses, layers: slice) -> None:
        """Copy some layers of the pages."""
        if kind is TransferKind.BACKUP:
            for device, host in addresses:
                self._host[host, layers] = self._device[device, layers]
        else:
            for device, host in addresses:
                self._device[device, layers] = self._host[host, layers]


class GatheredPair(BufferPair):
    """A pair whose pages go through scratch memory of bounded size, some pages and some layers at a time."""

    def copy(self, kind: TransferKind, addresses: Addresses, layers: slice) -> None:
        first, end, _ = layers.indices(self._device.shape[1])
        page_bytes = math.prod(self._device.shape[2:]) * self._device.itemsize
        layers_at_once = max(1, min(end - first, SCRATCH_BYTES // page_bytes))
        pages_at_once = max(1, SCRATCH_BYTES // (layers_at_once * page_bytes))
        for device, host in addresses:
            parts = list(zip(device.split(pages_at_once), host.split(pages_at_once), strict=True))
            for layer in range(first, end, layers_at_once):
                super().copy(kind, parts, slice(layer, min(end, layer + layers_at_once)))


class RunPair(BufferPair):
    """A pair of which each copy is one run of memory at both ends: as many pages and layers as are one run."""

    def copy(self, kind: TransferKind, addresses: Addresses, layers: slice) -> None:
        for device, host in addresses:
            for own, twin in _runs(self._device[device, layers], self._host[host, layers]):
                target, source = (twin, own) if kind is TransferKind.BACKUP else (own, twin)
                target.copy_(source, non_blocking=True)


def _runs(device: torch.Tensor, host: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parts of two tensors [pages, layers, page_size, elements] that are one run at both ends, as large as can be."""
    for own, twin in _parts(device, host, 1):
        yield from _parts(own, twin, 0)


def _parts(device: torch.Tensor, host: torch.Tensor, axis: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if device.is_contiguous() and host.is_contiguous():
        yield device, host
    else:
        yield from zip(torch.split(device, 1, axis), torch.split(host, 1, axis), strict=True)


class CopyMethod(Protocol):
    """How the pages of two buffers are copied."""

    def pair(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> BufferPair:
        """The pair of one tensor and its twin."""

    def addresses(self, device: list[int], host: list[int]) -> Addresses:
        """Page numbers at both ends, pairwise, as the pairs take them."""


class RunCopies:
    """`direct` on the CPU. Pages that follow each other at both ends are one copy, with nothing in between."""

    def pair(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> BufferPair:
        """Arrays where the pieces are layers or pages, as numpy starts sooner; tensors where each slot is a piece."""
        if _has_pages(device) == _has_pages(host):
            return BufferPair(device.raw[buffer].numpy(), host.raw[buffer].numpy())
        return BufferPair(*_widened(device.raw[buffer], host.raw[buffer]))

    def addresses(self, device: list[int], host: list[int]) -> Addresses:
        """Slices of runs. Plain Python: for the few pages of most jobs it has ended before numpy has started."""
        runs: list[tuple[slice, slice]] = []
        start, last = 0, len(device) - 1
        for place in range(len(device)):
            if place == last or device[place + 1] != device[place] + 1 or host[place + 1] != host[place] + 1:
                runs.append((slice(device[start], device[place] + 1), slice(host[start], host[place] + 1)))
                start = place + 1
        return runs


class DirectCopies(RunCopies):
    """`direct` on a GPU: copies of runs of memory, from and to pinned memory, queued on the current stream."""

    def pair(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> BufferPair:
        """Tensors where they are."""
        return RunPair(device.raw[buffer], host.raw[buffer])


class KernelCopies:
    """`kernel`: gathers and scatters pages of any layout. On a GPU kernels do it, queued on the current stream.

    They read and write host memory where it is, so it must be pinned.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pair(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> BufferPair:
        """Tensors of the device."""
        own, twin = _widened(device.raw[buffer], host.raw[buffer])
        return GatheredPair(own, seen_from(self._device, twin))

    def addresses(self, device: list[int], host: list[int]) -> Addresses:
        """Page numbers on the device."""
        return [(self._uploaded(device), self._uploaded(host))]

    def _uploaded(self, pages: list[int]) -> torch.Tensor:
        # A copy from pageable memory blocks the caller until the stream runs it, and the stream waits for the model.
        # Torch does not reuse pinned memory before the stream has read it.
        numbers = torch.tensor(pages, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        return numbers.to(self._device, non_blocking=True)


def copy_method(io_backend: IoBackend, device: torch.device) -> CopyMethod:
    """How pages are copied with an I/O backend, to and from the pools of a device."""
    if io_backend is IoBackend.KERNEL:
        return KernelCopies(device)
    return DirectCopies() if device.type == "cuda" else RunCopies()


def _widened(device: torch.Tensor, host: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # Torch counts elements: it reads wide ones at once, and wakes no threads for a few of them.
    wide = torch.int64 if device.shape[-1] % torch.int64.itemsize == 0 else torch.uint8
    return device.view(wide), host.view(wide)


class PoolCopier:
    """Copies between a cache's device pools and its host pools, between any layouts.

    Raises PoolMismatchError when the pools differ in anything but layout and capacity, and SlotError, with nothing
    copied, for a job whose pages are not pages of the pools. `method`: how pages are copied, if not as suits the
    device. Without a model there is nothing to copy, and one layer that has no pool. `order`: the layers of the stack.
    """

    def __init__(self, device: TierPools, host: TierPools, order: LayerOrder, method: CopyMethod | None = None) -> None:
        self.order = order or ((),)
        self.device = device.device
        self._tiers = device, host
        self._method = method or copy_method(IoBackend.of(self.device.type), self.device)
        self._pairs: dict[str, list[BufferPair]] = {}
        self._latest: dict[TransferKind, tuple[CopyJob, dict[str, Addresses]]] = {}
        for pool, buffers in device.buffers.items():
            twin = host.buffers[pool]
            _check_alike(buffers, twin)
            self._pairs[pool] = [self._method.pair(buffers, twin, number) for number in range(len(buffers.raw))]

    @property
    def layers(self) -> int:
        """Layers of the whole stack, of every kind."""
        return len(self.order)

    @property
    def layers_cost_little(self) -> bool:
        """Whether the pages of a layer are large enough, and runs of memory at both ends where one end has such."""
        device, host = ([one for one in tier.buffers.values() if one.spec.layers] for tier in self._tiers)
        are_alike = all(_has_pages(own) == _has_pages(twin) for own, twin in zip(device, host, strict=True))
        sizes = [one.page_size * buffer.slot_bytes for one in device for buffer in one.spec.buffers]
        return are_alike and sum(sizes) >= LAYER_PAGE_BYTES * len(sizes)

    def copy_layer(self, job: CopyJob, layer: int) -> None:
        """Copy one layer of the stack, in all pools that have it. Returns when the bytes are there."""
        self.queue_layer(job, layer)
        self._synchronize()

    def copy(self, job: CopyJob) -> None:
        """Copy all layers of all pools. Returns when the bytes are there."""
        self.queue(job)
        self._synchronize()

    def queue_layer(self, job: CopyJob, layer: int) -> None:
        """As `copy_layer`, but on a GPU the copies are only queued, on the current stream."""
        addresses = self._addresses(job)
        for pool, number in self.order[layer]:
            self._move(job, pool, addresses, slice(number, number + 1))

    def queue(self, job: CopyJob) -> None:
        """As `copy`, but on a GPU the copies are only queued, on the current stream."""
        addresses = self._addresses(job)
        for pool in self._pairs:
            self._move(job, pool, addresses, ALL_LAYERS)

    def _move(self, job: CopyJob, pool: str, addresses: Mapping[str, Addresses], layers: slice) -> None:
        owner = self._tiers[0].buffers[pool].spec.owner
        for pair in self._pairs[pool]:
            pair.copy(job.kind, addresses.get(owner, ()), layers)

    def _addresses(self, job: CopyJob) -> dict[str, Addresses]:
        # Layer by layer one job asks again and again. Each direction has one thread at most.
        latest = self._latest.get(job.kind)
        if latest is None or latest[0] is not job:
            components = dict.fromkeys(component for part in job.parts for component in part)
            latest = self._latest[job.kind] = job, {name: self._addresses_of(job, name) for name in components}
        return latest[1]

    def _addresses_of(self, job: CopyJob, component: str) -> Addresses:
        moves = [part[component] for part in job.parts if component in part]
        device = [page for move in moves for page in move.device.tolist()]
        host = [page for move in moves for page in move.host.tolist()]
        for pages, tier in zip((device, host), self._tiers, strict=True):
            of_pool = range(1, tier.capacity_pages(component) + 1)
            if len(pages) != len(device) or (pages and not (min(pages) in of_pool and max(pages) in of_pool)):
                raise SlotError(f"{component}: device pages {device} and host pages {host} are not pairs of the pools'")
        return self._method.addresses(device, host)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


def _has_pages(buffers: PoolBuffers) -> bool:
    """Whether a page is one run of memory in each layer."""
    return buffers.spec.layout is not Layout.PAGE_FIRST


def _check_alike(device: PoolBuffers, host: PoolBuffers) -> None:
    if replace(host.spec, layout=device.spec.layout) != device.spec or host.page_size != device.page_size:
        raise PoolMismatchError(
            f"cannot copy between {device.spec} with pages of {device.page_size} on the device "
            f"and {host.spec} with pages of {host.page_size} on the host"
        )
