"""Lane: one tensor of a device pool and its twin on the host, and the two ways to copy pages between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from hicache.config import Layout
from hicache.pools.buffers import PoolBuffers
from hicache.pools.pinning import seen_from
from hicache.types import TransferKind

Addresses = Sequence[tuple[Any, Any]]
"""Where pages lie on device and host: pairs of slices, or of index tensors."""

PAGES_AT_ONCE = 256
"""One kernel gathers pages, another scatters them: this bounds the memory in between."""


class Lane:
    """`device`, `host`: tensors or arrays [pages, layers, page_size, elements] of one kind."""

    def __init__(self, device: Any, host: Any) -> None:
        self._device = device
        self._host = host

    def move(self, kind: TransferKind, addresses: Addresses, layers: slice) -> None:
        """Copy some layers of the pages."""
        if kind is TransferKind.BACKUP:
            for device, host in addresses:
                self._host[host, layers] = self._device[device, layers]
        else:
            for device, host in addresses:
                self._device[device, layers] = self._host[host, layers]


class Way(Protocol):
    """How pages are copied."""

    def lane(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> Lane:
        """The lane of one tensor and its twin."""

    def addresses(self, device: list[int], host: list[int]) -> Addresses:
        """Page numbers at both ends, pairwise, as the lanes take them."""


class ByRuns:
    """Copies on the CPU. Pages that follow each other at both ends are one copy, with nothing in between."""

    def lane(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> Lane:
        """Arrays where the pieces are layers or pages, as numpy starts sooner; tensors where each slot is a piece."""
        if (device.spec.layout is Layout.PAGE_FIRST) == (host.spec.layout is Layout.PAGE_FIRST):
            return Lane(device.raw[buffer].numpy(), host.raw[buffer].numpy())
        return Lane(*_widened(device.raw[buffer], host.raw[buffer]))

    def addresses(self, device: list[int], host: list[int]) -> Addresses:
        """Slices of runs. Plain Python: for the few pages of most jobs it has ended before numpy has started."""
        runs: list[tuple[slice, slice]] = []
        start, last = 0, len(device) - 1
        for place in range(len(device)):
            if place == last or device[place + 1] != device[place] + 1 or host[place + 1] != host[place] + 1:
                runs.append((slice(device[start], device[place] + 1), slice(host[start], host[place] + 1)))
                start = place + 1
        return runs


class ByKernels:
    """Copies by kernels of a GPU, which gather and scatter pages of any layout, queued on the current stream.

    They read and write host memory where it is, so it must be pinned.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def lane(self, device: PoolBuffers, host: PoolBuffers, buffer: int) -> Lane:
        """Tensors of the device."""
        own, twin = _widened(device.raw[buffer], host.raw[buffer])
        return Lane(own, seen_from(self._device, twin))

    def addresses(self, device: list[int], host: list[int]) -> Addresses:
        """Page numbers on the device, some at a time."""
        ends = [torch.tensor(pages, dtype=torch.int64, device=self._device) for pages in (device, host)]
        return list(zip(*[torch.split(end, PAGES_AT_ONCE) for end in ends], strict=True))


def _widened(device: torch.Tensor, host: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # Torch counts elements: it reads wide ones at once, and wakes no threads for a few of them.
    wide = torch.int64 if device.shape[-1] % torch.int64.itemsize == 0 else torch.uint8
    return device.view(wide), host.view(wide)
