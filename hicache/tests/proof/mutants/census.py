"""Caches that lose what lies beside the keys and values: one for each report of a server that did."""

from __future__ import annotations

from typing import Any, ClassVar

from hicache import cache
from hicache.config import CacheConfig
from hicache.pools.copy import PoolCopier
from hicache.testing.hybrid_model import DRAFT, EXPERTS, SCALES, SECOND_INDEX
from hicache.tests.proof.mutants.accuracy.transfers import OtherParts
from hicache.tests.proof.mutants.rows import Row
from hicache.tiers.storage_io import StorageRequests
from hicache.types import Component, Pool


class LosesPool(OtherParts):
    """Loses one pool, of which the adapter does not know either: only the census sees it. `lost`: the pool's name."""

    lost: ClassVar[str]

    def layers(self, pool: str) -> int:
        return 0 if pool == self.lost else super().layers(pool)


def _without(pool: str, *, hybrids: bool = False) -> type[PoolCopier]:
    """A copier that leaves a pool out. `hybrids`: only where the model has states."""

    class Copier(PoolCopier):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if not hybrids or Component.MAMBA in self._tiers[0].allocators:
                self._pairs[pool] = []

    return Copier


class IndexOfHybridsLost(LosesPool):
    """With recurrent states beside it, KV comes back from the host without its index."""

    lost = Pool.INDEXER.value
    parts = ((cache, "PoolCopier", _without(lost, hybrids=True)),)


class CompressedIndexLost(LosesPool):
    """The index of one entry for four tokens lies outside the pool of KV, and stays on the device."""

    lost = SECOND_INDEX
    parts = ((cache, "PoolCopier", _without(lost)),)


class ScalesLost(LosesPool):
    """Quantised KV comes back without its scales."""

    lost = SCALES
    parts = ((cache, "PoolCopier", _without(lost)),)


class ExpertsLost(LosesPool):
    """The experts of each token stay in the slots that KV left."""

    lost = EXPERTS
    parts = ((cache, "PoolCopier", _without(lost)),)


class _NoDrafts(StorageRequests):
    def __init__(self, config: CacheConfig, *arguments: Any) -> None:
        super().__init__(config, *arguments)
        self.prefix_pools = [pool for pool in self.prefix_pools if pool != DRAFT]


class DraftsNotRead(LosesPool):
    """The KV of the draft model comes back from the host, and is not read from storage."""

    lost = DRAFT
    parts = ((cache, "StorageRequests", _NoDrafts),)


FROM_HOST = "test_census.py::test_every_tensor_by_slot_comes_back_from_the_host"
FROM_STORAGE = "test_census.py::test_every_tensor_by_slot_comes_back_from_storage"
TWO = "full+draft+second_index/page16/lru/write_through-page_first-stepped"
THREE = "full+swa+mamba+indexer+scales+experts/page16/lru/write_through-page_first-stepped"

ROWS = (
    Row(
        slug="an-index-is-lost-in-a-hybrid",
        source="sglang#38031",
        clauses=("HOST-10", "HOST-8"),
        adapter=IndexOfHybridsLost,
        test=f"{FROM_HOST}[{THREE}]",
        told=r"HOST-10: back from the host, .* \['pools\.indexer\.raw\.0'\]",
    ),
    Row(
        slug="a-compressed-index-is-lost",
        source="sglang#39830",
        clauses=("HOST-10",),
        adapter=CompressedIndexLost,
        test=f"{FROM_HOST}[{TWO}]",
        told=r"HOST-10: back from the host, .* \['pools\.second_index\.raw\.0'\]",
    ),
    Row(
        slug="scales-are-lost",
        source="sglang#36121",
        clauses=("HOST-10",),
        adapter=ScalesLost,
        test=f"{FROM_HOST}[{THREE}]",
        told=r"HOST-10: back from the host, .* \['pools\.scales\.raw\.0', 'pools\.scales\.raw\.1'\]",
    ),
    Row(
        slug="routed-experts-are-lost",
        source="sglang#39027",
        clauses=("HOST-10",),
        adapter=ExpertsLost,
        test=f"{FROM_HOST}[{THREE}]",
        told=r"HOST-10: back from the host, .* \['pools\.experts\.raw\.0'\]",
    ),
    Row(
        slug="drafts-are-not-read-from-storage",
        source="sglang#31600",
        clauses=("HOST-10",),
        adapter=DraftsNotRead,
        test=f"{FROM_STORAGE}[{TWO}/ScriptedStorage-wait_complete-stepped]",
        told=r"HOST-10: back from the storage, .* \['pools\.draft\.raw\.0'\]",
    ),
)
"""One for each report."""
