"""Replays with storage: the counts by tier, before and after a restart, and the defects that a replay finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hicache.config import ExecutorKind, Layout, WritePolicy
from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces
from hicache.storage.memory import MemoryStorage
from hicache.storage.paged import Answer
from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.replay import (
    NEVER,
    UNLIMITED,
    HostSettings,
    ReplayOutcome,
    ReplaySettings,
    StorageOutcome,
    StorageSettings,
)
from hicache.testing.snapshot import FetchView, Snapshot
from hicache.testing.traces import generate_trace
from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.replays import SETTINGS, SMALL, hits, replayed, whole_blocks
from hicache.tiers.prefetch import Prefetch
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, LoadBack, Pool, StopPolicy

HOST = HostSettings("1024", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.STEPPED)
STORAGE = StorageSettings("memory", '{"prefetch_threshold": 0}', StopPolicy.WAIT_COMPLETE, 0, NEVER)

RETURNING = [whole_blocks(0, 1), whole_blocks(2, 3), whole_blocks(4, 5), whole_blocks(0, 1)]
"""A prompt that both tiers, with two pages each, have evicted when it comes again."""

TWICE = [whole_blocks(0, 1, 2, 3), whole_blocks(0, 1, 2, 3)]


def three_tiers(storage: StorageSettings, capacity: str = "1024", host: HostSettings | None = HOST) -> ReplaySettings:
    return replace(SETTINGS, capacity=capacity, host=host, storage=storage)


def roomy(storage: StorageSettings) -> ReplaySettings:
    """Settings under which nothing is evicted."""
    return three_tiers(storage, UNLIMITED, replace(HOST, capacity=UNLIMITED))


def stored(outcome: ReplayOutcome) -> StorageOutcome:
    """The storage part of an outcome."""
    assert outcome.storage is not None, "expected the outcome of the storage tier, got None"
    return outcome.storage


def test_what_left_both_tiers_comes_back_from_storage(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, three_tiers(STORAGE))
    assert hits(outcome) == (0, 0, 2), f"two pages come back from storage: {outcome.hit_tokens}"
    assert outcome.hit_rates["storage"] == outcome.hit_rate == 2 / 8, f"2 of 8 pages: {outcome.hit_rates}"
    storage = stored(outcome)
    totals = {name: storage.total(name) for name in ("bytes_stored", "bytes_prefetched", "fetched_tokens")}
    expected = {"bytes_stored": 6 * 512 * 8, "bytes_prefetched": 2 * 512 * 8, "fetched_tokens": 2 * 512}
    assert totals == expected, f"six pages of 512 tokens of 8 bytes went down and two came up: {totals}"
    assert (storage.total("prefetches"), storage.total("prefetches_refused")) == (4, 0), f"got {storage}"
    assert storage.total("unheard of") is None, "a count that no cache gave"


def test_what_a_tier_above_has_is_no_hit_of_storage(tmp_path: Path) -> None:
    assert hits(replayed(tmp_path, TWICE, roomy(STORAGE))) == (4, 0, 0), "all is on the device"
    two = [whole_blocks(0, 1), whole_blocks(2, 3), whole_blocks(0, 1)]
    outcome = replayed(tmp_path, two, three_tiers(STORAGE, host=replace(HOST, capacity="2048")))
    assert hits(outcome) == (0, 2, 0), f"all is on the host: {outcome.hit_tokens}"
    more = [
        whole_blocks(0),
        whole_blocks(1),
        whole_blocks(2),
        whole_blocks(3, 4),
        whole_blocks(0, 1),
        whole_blocks(1, 0),
    ]
    outcome = replayed(tmp_path, more, three_tiers(STORAGE, host=replace(HOST, capacity="2048")))
    assert sum(hits(outcome)) == 2, f"a page of (0, 1), and one of (1, 0): {outcome.hit_tokens}"


def test_the_second_part_hits_what_the_first_left_in_storage(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, TWICE, roomy(replace(STORAGE, restart_at=0.5)))
    assert hits(outcome) == (0, 0, 4), f"the device and the host of the second cache were empty: {outcome.hit_tokens}"
    storage = stored(outcome)
    assert storage.restarted, "there was a restart"
    assert [part.hit_rates["storage"] for part in storage.parts] == [0.0, 1.0], f"got {storage.parts}"
    assert [part.hit_rate for part in storage.parts] == list(storage.unbounded_hit_rates), "nothing was lost"
    assert storage.unbounded_hit_rate == outcome.hit_rate == 0.5, f"4 of 8 pages: {storage}"
    assert [part.counters["bytes_stored"] for part in storage.parts] == [4 * 512 * 8, 0], f"got {storage.parts}"
    assert [part.counters["bytes_prefetched"] for part in storage.parts] == [0, 4 * 512 * 8], f"got {storage.parts}"
    assert outcome.host is not None, "expected the outcome of the host tier, got None"
    assert outcome.host.bytes_backed_up == 4 * 512 * 8, f"by the first cache: {outcome.host.bytes_backed_up}"
    assert outcome.evicted_tokens == 0, f"what went with the first cache was not evicted: {outcome.evicted_tokens}"


def test_without_a_restart_the_parts_are_the_halves(tmp_path: Path) -> None:
    requests = [
        whole_blocks(0, at_ms=0),
        whole_blocks(0, 1, at_ms=10),
        whole_blocks(2, at_ms=70),
        whole_blocks(2, at_ms=80),
    ]
    storage = stored(replayed(tmp_path, requests, roomy(STORAGE)))
    assert not storage.restarted, "there was none"
    assert storage.middle_ms == 70, f"the third of four arrives at 70 ms: {storage.middle_ms}"
    figures = [(part.requests, part.input_tokens, part.hit_tokens["device"]) for part in storage.parts]
    assert figures == [(2, 1536, 512), (2, 1024, 512)], f"one page is hit in each half: {figures}"
    assert storage.unbounded_hit_rates == (1 / 3, 1 / 2), f"got {storage.unbounded_hit_rates}"


@pytest.mark.parametrize(("share", "first"), [(0.25, 1), (0.75, 3), (0.99, 3)])
def test_the_share_says_when_the_restart_is(tmp_path: Path, share: float, first: int) -> None:
    storage = stored(replayed(tmp_path, RETURNING, roomy(replace(STORAGE, restart_at=share))))
    assert [part.requests for part in storage.parts] == [first, 4 - first], f"after {share} of 4: {storage.parts}"


@pytest.mark.parametrize("backend", ["memory", "file", "slotfile"])
def test_each_backend_keeps_its_pages_for_the_replay_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for _ in range(2):
        outcome = replayed(tmp_path, TWICE, roomy(replace(STORAGE, backend=backend, restart_at=0.5)))
        assert hits(outcome) == (0, 0, 4), f"{backend} outlives the first cache, and no replay: {outcome.hit_tokens}"
    assert not list(folder.iterdir()), f"{backend} left {list(folder.iterdir())}"


def test_options_say_where_and_how_much(tmp_path: Path) -> None:
    kept = replace(STORAGE, backend="file", extra=json.dumps({"root": str(tmp_path / "kept"), "prefetch_threshold": 0}))
    replayed(tmp_path, TWICE, roomy(kept))
    outcome = replayed(tmp_path, TWICE, roomy(kept))
    assert hits(outcome) == (4, 0, 4), f"the first prompt hits what an earlier replay kept: {outcome.hit_tokens}"
    bounded = replace(STORAGE, extra='{"prefetch_threshold": 0, "capacity_bytes": 4096}')
    outcome = replayed(tmp_path, RETURNING, three_tiers(bounded))
    assert hits(outcome) == (0, 0, 0), f"one page fits, the last one stored: {outcome.hit_tokens}"


@pytest.mark.parametrize(("queue_steps", "pages"), [(0, 0), (2, 0), (3, 4)])
def test_best_effort_gets_the_pages_that_were_loaded_in_the_queue(tmp_path: Path, queue_steps: int, pages: int) -> None:
    asked = replace(STORAGE, stop_policy=StopPolicy.BEST_EFFORT, queue_steps=queue_steps, restart_at=0.5)
    outcome = replayed(tmp_path, TWICE, roomy(asked))
    assert hits(outcome) == (0, 0, pages), f"a query, its answer and a read take a step each: {outcome.hit_tokens}"


@pytest.mark.parametrize(("queue_steps", "pages"), [(3, 128), (4, 136)])
def test_in_steps_storage_reads_a_batch_at_a_time(tmp_path: Path, queue_steps: int, pages: int) -> None:
    prompt = whole_blocks(*range(17))
    asked = replace(STORAGE, stop_policy=StopPolicy.BEST_EFFORT, queue_steps=queue_steps, restart_at=0.5)
    outcome = replayed(tmp_path, [prompt, prompt], replace(roomy(asked), page_size=64))
    fetched = outcome.hit_tokens["storage"] // 64
    assert fetched == pages, f"batches are of 128 pages, and 17 blocks are 136 of them: {fetched}"


@pytest.mark.parametrize(("base_s", "pages"), [(0.0, 0), (0.0015, 0), (0.01, 4)])
def test_a_timeout_runs_by_the_steps(tmp_path: Path, base_s: float, pages: int) -> None:
    extra = {"prefetch_threshold": 0, "prefetch_timeout_base": base_s, "prefetch_timeout_per_ki_token": 0}
    asked = StorageSettings("memory", json.dumps(extra), StopPolicy.TIMEOUT, 0, 0.5)
    outcome = replayed(tmp_path, TWICE, roomy(asked))
    assert hits(outcome) == (0, 0, pages), f"a step is a millisecond, three are needed: {outcome.hit_tokens}"


def test_the_tokens_of_all_prefetches_are_added_up(tmp_path: Path) -> None:
    requests = [whole_blocks(0, 1), whole_blocks(2), whole_blocks(0, 1), whole_blocks(2)]
    outcome = replayed(tmp_path, requests, roomy(replace(STORAGE, restart_at=0.5)))
    assert hits(outcome) == (0, 0, 3), f"two pages and one come back: {outcome.hit_tokens}"
    fetched = [part.counters["fetched_tokens"] for part in stored(outcome).parts]
    assert fetched == [0, 3 * 512], f"expected three pages from two prefetches of the second part: {fetched} tokens"


def test_a_prefetch_below_the_threshold_is_refused(tmp_path: Path) -> None:
    asked = replace(STORAGE, extra='{"prefetch_threshold": 2049}', restart_at=0.5)
    outcome = replayed(tmp_path, TWICE, roomy(asked))
    assert hits(outcome) == (0, 0, 0), f"2048 tokens are below the threshold: {outcome.hit_tokens}"
    refused = stored(outcome).total("prefetches_refused")
    assert refused == 2, f"both prompts are too short: {refused}"


def test_threads_keep_the_laws_and_lose_nothing(tmp_path: Path) -> None:
    host = replace(HOST, capacity=UNLIMITED, executor=ExecutorKind.THREADED)
    outcome = replayed(tmp_path, TWICE, three_tiers(replace(STORAGE, restart_at=0.5), UNLIMITED, host))
    assert hits(outcome) == (0, 0, 4), f"what is waited for comes: {outcome.hit_tokens}"


@pytest.mark.parametrize("stops", StopPolicy)
@pytest.mark.parametrize("components", [("full",), ("full", "swa", "mamba", "indexer")])
@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
def test_the_reference_keeps_the_laws_on_three_tiers(
    tmp_path: Path, policy: WritePolicy, components: tuple[str, ...], stops: StopPolicy
) -> None:
    storage = replace(STORAGE, stop_policy=stops, queue_steps=2, restart_at=0.5)
    asked = three_tiers(storage, "20%", replace(HOST, capacity="20%", write_policy=policy))
    asked = replace(asked, page_size=64, components=components, sliding_window_size=256, running=4, check_every=4)
    outcome = replayed(tmp_path, list(generate_trace(SMALL, 7)), asked)
    assert outcome.broken is None, f"{components}, {policy.value}, {stops.value}: {outcome.broken}"
    assert outcome.checks == 10 + 1 + 2, f"every fourth of 40, at the restart, twice at the end: {outcome.checks}"
    assert outcome.hit_rate <= stored(outcome).unbounded_hit_rate, f"more than there ever was: {outcome.hit_rates}"


def test_storage_with_room_for_all_loses_nothing(tmp_path: Path) -> None:
    asked = three_tiers(replace(STORAGE, restart_at=0.5), "20%", replace(HOST, capacity="50%"))
    outcome = replayed(tmp_path, list(generate_trace(SMALL, 7)), replace(asked, page_size=64))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    assert outcome.hit_rate == stored(outcome).unbounded_hit_rate > 0, f"got {outcome.hit_rates}, {stored(outcome)}"


def test_steps_repeat_a_replay(tmp_path: Path) -> None:
    asked = replace(three_tiers(replace(STORAGE, restart_at=0.5), "20%", replace(HOST, capacity="20%")), page_size=64)
    one, other = (replayed(tmp_path, list(generate_trace(SMALL, 7)), asked) for _ in range(2))
    assert one.timeline == other.timeline, "the same replay found something else"
    parts = [[replace(part, seconds=0) for part in stored(outcome).parts] for outcome in (one, other)]
    assert parts[0] == parts[1], f"the same replay moved something else: {parts}"


def test_storage_that_is_not_declared_is_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not declare STORAGE"):
        replayed(tmp_path, TWICE, three_tiers(STORAGE), HostedCache)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_restart_is_within_the_trace_or_never(share: float) -> None:
    with pytest.raises(ConfigurationError, match="restart_at must be above 0"):
        replace(STORAGE, restart_at=share)


def test_a_request_waits_no_negative_steps() -> None:
    with pytest.raises(ConfigurationError, match="queue_steps must be 0 or more"):
        replace(STORAGE, queue_steps=-1)


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

    def check_prefetch(self, ticket: Prefetch) -> int | None:
        came = super().check_prefetch(ticket)
        return came + 512 if came else came


class ClaimsLess(ReferenceAdapter):
    """`check_prefetch` reports one page less than was loaded."""

    def check_prefetch(self, ticket: Prefetch) -> int | None:
        came = super().check_prefetch(ticket)
        return came - 512 if came else came


class NeverSays(ReferenceAdapter):
    """`check_prefetch` lets every request wait forever."""

    def check_prefetch(self, ticket: Prefetch) -> int | None:
        return None


class LosesHostPages(ReferenceAdapter):
    """`check_prefetch` leaks a host page."""

    def check_prefetch(self, ticket: Prefetch) -> int | None:
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
    requests = [whole_blocks(0, 1, 2, 3), whole_blocks(0, 1, 5), *TWICE]
    outcome = replayed(tmp_path, requests, roomy(replace(STORAGE, restart_at=0.5)), adapter)
    assert outcome.broken is not None, f"{adapter.__name__}: expected a violated law, got none"
    assert finding in outcome.broken, f"{adapter.__name__}: expected {finding!r}, got {outcome.broken}"


class SpoilsBytes(ReferenceAdapter):
    """`drain` overwrites a page of the device."""

    def drain(self) -> None:
        super().drain()
        page = self.snapshot().nodes[0].slots[Component.FULL]
        assert page is not None, "the device has no page"
        self.write(Pool.KV, page, 0, np.zeros((len(page), self.slot_bytes(Pool.KV)), dtype=np.uint8))


def test_the_bytes_of_a_cache_are_read_before_it_is_closed_for_a_restart(tmp_path: Path) -> None:
    asked = roomy(replace(STORAGE, restart_at=0.5))
    outcome = replayed(tmp_path, [whole_blocks(0), whole_blocks(1)], asked, SpoilsBytes)
    assert outcome.broken is not None, "expected a violated law, got none"
    assert outcome.broken.startswith("after 1 requests: REQ-3"), f"expected it before the restart: {outcome.broken}"


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
