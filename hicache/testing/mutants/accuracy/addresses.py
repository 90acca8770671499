"""Copies from and to other places than those that were meant."""

from __future__ import annotations

from collections.abc import Mapping

from hicache import cache
from hicache.pools.copy import Addresses, PoolCopier
from hicache.testing.mutants.accuracy.other_parts import OtherParts
from hicache.transfer.job import CopyJob
from hicache.types import Component, TransferKind


class _ByBlock(PoolCopier):
    def _addresses_of(self, job: CopyJob, component: str) -> Addresses:
        if job.kind is TransferKind.BACKUP:
            return super()._addresses_of(job, component)
        blocks = [page for part in job.parts if component in part for page in part[component].host.tolist()]
        return self._method.addresses(blocks, blocks)


class _OnePageSize(PoolCopier):
    def _addresses_of(self, job: CopyJob, component: str) -> Addresses:
        if component != Component.MAMBA:
            return super()._addresses_of(job, component)
        moves = [part[component] for part in job.parts if component in part]
        device = [page for move in moves for page in move.device.tolist()]
        host = [page // self._tiers[1].page_size for move in moves for page in move.host.tolist()]
        return self._method.addresses(device, host)


class _TargetLayers(PoolCopier):
    def _move(self, job: CopyJob, pool: str, addresses: Mapping[str, Addresses], layers: slice) -> None:
        if job.kind is TransferKind.LOAD:
            layers = slice(0, self._tiers[0].buffers[pool].spec.layers - 1)
        super()._move(job, pool, addresses, layers)


class BlockIds(OtherParts):
    """A load takes the number of the host's page for that of the device's."""

    parts = ((cache, "PoolCopier", _ByBlock),)


class OnePageSize(OtherParts):
    """A state's place on the host is found with the page size of attention."""

    parts = ((cache, "PoolCopier", _OnePageSize),)


class TargetLayers(OtherParts):
    """The last layer of each pool is backed up and not brought back, as that of a draft head behind the model's own."""

    parts = ((cache, "PoolCopier", _TargetLayers),)
