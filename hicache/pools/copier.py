"""PoolCopier: moves the pages of a job between the pools of device and host, sidecars with the pool they follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from hicache.errors import PoolMismatchError, SlotError
from hicache.pools.buffers import PoolBuffers
from hicache.pools.lanes import Addresses, ByKernels, ByRuns, Lane, Way
from hicache.pools.tier import TierPools, owner_of
from hicache.transfer.job import Job, Move
from hicache.types import Pool, TransferKind

LayerOrder = tuple[tuple[tuple[Pool, int], ...], ...]
"""The layers of the stack: the pools that each reads, and its number in those."""

ALL_LAYERS = slice(None)


class PoolCopier:
    """Copies between a cache's device pools and its host pools, whatever their layouts.

    Raises PoolMismatchError when the pools differ in anything but layout and capacity, and SlotError, with nothing
    copied, for a job whose pages are not pages of the pools. `way`: how, if not the way that suits the device.
    """

    def __init__(self, device: TierPools, host: TierPools, order: LayerOrder, way: Way | None = None) -> None:
        self._order = order
        self._tiers = device, host
        self._device = device.buffers[Pool.KV].raw[0].device
        self._way = way or (ByKernels(self._device) if self._device.type == "cuda" else ByRuns())
        self._lanes: dict[Pool, list[Lane]] = {}
        self._latest: dict[TransferKind, tuple[Job, dict[str, Addresses]]] = {}
        self._page_bytes: dict[str, int] = dict.fromkeys(device.allocators, 0)
        for pool, buffers in device.buffers.items():
            twin = host.buffers[pool]
            _check_alike(buffers, twin)
            self._lanes[pool] = [self._way.lane(buffers, twin, number) for number in range(len(buffers.raw))]
            self._page_bytes[owner_of(pool)] += buffers.page_size * buffers.spec.layers * buffers.spec.slot_bytes

    @property
    def layers(self) -> int:
        """Layers of the whole stack, of every kind."""
        return len(self._order)

    def bytes_of(self, moves: Mapping[str, Move]) -> int:
        """How many bytes the moves of one operation are, over all layers and pools, sidecars included."""
        return sum(len(move.device) * self._page_bytes[component] for component, move in moves.items())

    def copy_layer(self, job: Job, layer: int) -> None:
        """Copy one layer of the stack, in all pools that have it. Returns when the bytes are there."""
        self.queue_layer(job, layer)
        self._settle()

    def copy(self, job: Job) -> None:
        """Copy all layers of all pools. Returns when the bytes are there."""
        self.queue(job)
        self._settle()

    def queue_layer(self, job: Job, layer: int) -> None:
        """As `copy_layer`, but on a GPU the copies are only queued, on the current stream."""
        addresses = self._addresses(job)
        for pool, number in self._order[layer]:
            self._move(job, pool, addresses, slice(number, number + 1))

    def queue(self, job: Job) -> None:
        """As `copy`, but on a GPU the copies are only queued, on the current stream."""
        addresses = self._addresses(job)
        for pool in self._lanes:
            self._move(job, pool, addresses, ALL_LAYERS)

    def _move(self, job: Job, pool: Pool, addresses: Mapping[str, Addresses], layers: slice) -> None:
        for lane in self._lanes[pool]:
            lane.move(job.kind, addresses.get(owner_of(pool), ()), layers)

    def _addresses(self, job: Job) -> dict[str, Addresses]:
        # Layer by layer one job asks again and again. Each direction has one thread at most.
        latest = self._latest.get(job.kind)
        if latest is None or latest[0] is not job:
            components = dict.fromkeys(component for part in job.parts for component in part)
            latest = self._latest[job.kind] = job, {name: self._addresses_of(job, name) for name in components}
        return latest[1]

    def _addresses_of(self, job: Job, component: str) -> Addresses:
        moves = [part[component] for part in job.parts if component in part]
        device = [page for move in moves for page in move.device.tolist()]
        host = [page for move in moves for page in move.host.tolist()]
        for pages, tier in zip((device, host), self._tiers, strict=True):
            of_pool = range(1, tier.capacity_pages(component) + 1)
            if len(pages) != len(device) or (pages and not (min(pages) in of_pool and max(pages) in of_pool)):
                raise SlotError(f"{component}: device pages {device} and host pages {host} are not pairs of the pools'")
        return self._way.addresses(device, host)

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _check_alike(device: PoolBuffers, host: PoolBuffers) -> None:
    if replace(host.spec, layout=device.spec.layout) != device.spec or host.page_size != device.page_size:
        raise PoolMismatchError(
            f"cannot copy between {device.spec} with pages of {device.page_size} on the device "
            f"and {host.spec} with pages of {host.page_size} on the host"
        )
