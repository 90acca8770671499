"""Replays with defective storage, and on caches with a defect in their storage tier: each defect is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hicache.storage.base import Pieces
from hicache.storage.memory import MemoryStorage
from hicache.storage.paged import Answer
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.replay import StorageSettings
from hicache.testing.snapshot import FetchView, Snapshot
from hicache.tests.kit.stored_replays import STORAGE, TWICE, hits, replayed, request, roomy, stored
from hicache.tiers.prefetch import PrefetchOperation
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, LoadBack, StopPolicy


class GivesOtherPages(MemoryStorage):
    """`get` reads two objects into each other's targets."""

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        return super()._read(keys, targets[::-1])


class KeepsOtherPages(MemoryStorage):
    """`set` stores two pages under each other's keys."""

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        return super()._write(keys, sources[::-1])


class ReadsNothing(MemoryStorage):
    """`get` reports success without reading."""

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        return [Answer.DONE] * len(targets)


@pytest.mark.parametrize("check_every", [0, 1])
@pytest.mark.parametrize("backend", [GivesOtherPages, KeepsOtherPages, ReadsNothing])
def test_wrong_bytes_from_storage_are_caught(tmp_path: Path, backend: type[MemoryStorage], check_every: int) -> None:
    extra = '{"store": "{directory}", "prefetch_threshold": 0}'
    asked = StorageSettings(f"{__name__}:{backend.__qualname__}", extra, StopPolicy.WAIT_COMPLETE, 0, 0.5)
    outcome = replayed(tmp_path, TWICE, replace(roomy(asked), check_every=check_every))
    assert outcome.broken is not None, f"{backend.__name__}: expected a violated law, got none"
    assert outcome.broken.startswith("after 1 requests: REQ-3"), f"{backend.__name__}: {outcome.broken}"
    assert [part.requests for part in stored(outcome).parts] == [1, 0], f"until then: {stored(outcome)}"


class ClaimsMore(ReferenceAdapter):
    """`check_prefetch` reports one page more than was loaded."""

    def check_prefetch(self, ticket: PrefetchOperation) -> int | None:
        came = super().check_prefetch(ticket)
        return came + 512 if came else came


class ClaimsLess(ReferenceAdapter):
    """`check_prefetch` reports one page less than was loaded."""

    def check_prefetch(self, ticket: PrefetchOperation) -> int | None:
        came = super().check_prefetch(ticket)
        return came - 512 if came else came


class NeverSays(ReferenceAdapter):
    """`check_prefetch` lets every request wait for ever."""

    def check_prefetch(self, ticket: PrefetchOperation) -> int | None:
        return None


class LosesHostPages(ReferenceAdapter):
    """`check_prefetch` leaks a host page."""

    def check_prefetch(self, ticket: PrefetchOperation) -> int | None:
        assert self.cache.host is not None, "the host tier is missing"
        self.cache.host.pools.allocators[Component.FULL].allocate(1)
        return super().check_prefetch(ticket)


class KeepsFetches(ReferenceAdapter):
    """`snapshot` always shows a prefetch."""

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        assert snapshot.storage is not None, "storage is missing"
        return replace(snapshot, storage=replace(snapshot.storage, fetches=(FetchView({"full": NO_SLOTS}),)))


class MarksTooMuch(ReferenceAdapter):
    """Leaves are marked as stored, but not their parents."""

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        assert snapshot.storage is not None, "storage is missing"
        marks = [frozenset({"full"} if node.parent >= 0 else ()) for node in snapshot.nodes]
        return replace(snapshot, storage=replace(snapshot.storage, persisted=tuple(marks)))


@pytest.mark.parametrize(
    ("adapter", "finding"),
    [
        (ClaimsMore, "FLOW-10: a prefetch for 2048 tokens"),
        (ClaimsLess, "FLOW-10: a prefetch for 2048 tokens"),
        (NeverSays, "FETCH-3: check of a prefetch"),
        (LosesHostPages, "POOL-1: host pool"),
        (KeepsFetches, "FETCH-8: host slots of prefetches"),
        (MarksTooMuch, "FLOW-9: "),
    ],
)
def test_a_broken_storage_tier_is_caught(tmp_path: Path, adapter: type[CacheAdapter], finding: str) -> None:
    requests = [request(0, 1, 2, 3), request(0, 1, 5), *TWICE]
    outcome = replayed(tmp_path, requests, roomy(replace(STORAGE, restart_at=0.5)), adapter)
    assert outcome.broken is not None, f"{adapter.__name__}: expected a violated law, got none"
    assert finding in outcome.broken, f"{adapter.__name__}: expected {finding!r}, got {outcome.broken}"


class RefusesLoads(ReferenceAdapter):
    """`load_back` refuses every load."""

    def load_back(self, handle: Node, *, quota: int | None) -> LoadBack | None:
        return None


def test_prefetched_pages_that_are_not_loaded_are_no_hit(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, TWICE, roomy(replace(STORAGE, restart_at=0.5)), RefusesLoads)
    assert hits(outcome) == (0, 0, 0), f"four pages came to the host, and no further: {outcome.hit_tokens}"
    fetched = stored(outcome).total("fetched_tokens")
    assert fetched == 4 * 512, f"four pages came to the host: {fetched} tokens"


class ForgetsStorage(ReferenceAdapter):
    """`close` also removes the objects in storage."""

    def close(self) -> None:
        self.clear_storage()
        super().close()


def test_storage_that_does_not_outlive_a_cache_is_seen_in_the_second_part(tmp_path: Path) -> None:
    storage = stored(replayed(tmp_path, TWICE, roomy(replace(STORAGE, restart_at=0.5)), ForgetsStorage))
    rates = (storage.parts[1].hit_rate, storage.unbounded_hit_rates[1])
    assert rates == (0.0, 1.0), f"nothing was hit of what could be: {rates}"
