"""Replays on a cache without a tree: the counts, and the defects that a replay finds."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from hicache.config import EvictionPolicy
from hicache.errors import ConfigurationError, TraceError
from hicache.testing.adapter import CacheAdapter, PageBytes
from hicache.testing.replay import UNLIMITED, ReplayOutcome, ReplaySettings, replay
from hicache.testing.traces import SHORT_TRACE, Trace, TraceRequest, generate_trace, write_trace
from hicache.tests.kit.dictionary_cache import DictionaryCache
from hicache.types import Handle, Key, MatchResult, Pool, Slots


def settings(capacity: str, *, page_size: int = 512, running: int = 2, check_every: int = 1) -> ReplaySettings:
    return ReplaySettings(
        page_size=page_size,
        capacity=capacity,
        components=("full",),
        policy=EvictionPolicy.LRU,
        sliding_window_size=512,
        running=running,
        check_every=check_every,
        host=None,
        storage=None,
    )


def replayed(
    directory: Path, requests: list[TraceRequest], asked: ReplaySettings, adapter: type[CacheAdapter] = DictionaryCache
) -> ReplayOutcome:
    path = directory / "trace.jsonl"
    write_trace(path, requests)
    return replay(Trace(path, skip_bad=False, limit=None), adapter, asked, None)


def request(length: int, *blocks: int) -> TraceRequest:
    return TraceRequest(timestamp_ms=0, input_length=length, output_length=0, hash_ids=blocks)


@pytest.fixture(name="generated")
def _generated() -> list[TraceRequest]:
    return list(islice(generate_trace(SHORT_TRACE, 6), 60))


def whole_block_hits(requests: list[TraceRequest]) -> int:
    """The tokens of leading whole blocks that an earlier request had already."""
    seen: set[int] = set()
    hits = 0
    for asked in requests:
        whole = asked.hash_ids[: asked.input_length // 512]
        hits += 512 * next((place for place, block in enumerate(whole) if block not in seen), len(whole))
        seen.update(whole)
    return hits


def test_an_unlimited_cache_hits_what_a_plain_count_finds(tmp_path: Path, generated: list[TraceRequest]) -> None:
    outcome = replayed(tmp_path, generated, settings(UNLIMITED, check_every=10))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    assert outcome.hit_tokens["device"] == whole_block_hits(generated), "hits differ from the count over the trace"
    assert outcome.hit_rate == outcome.lru_hit_rate == outcome.optimal_hit_rate, "without eviction all policies agree"
    assert outcome.hit_rates == {"device": outcome.hit_rate}, f"all hits are the device's: {outcome.hit_rates}"
    assert outcome.host is None, f"expected no outcome of a host tier, got {outcome.host}"
    assert outcome.evicted_tokens == 0, f"an unlimited cache evicted {outcome.evicted_tokens} tokens"
    assert outcome.checks == 6 + 2, f"60 requests, every tenth checked, and twice at the end: {outcome.checks} checks"


@pytest.mark.parametrize("capacity", ["50%", "10%"])
def test_a_small_cache_evicts_and_stays_below_the_optimum(
    tmp_path: Path, generated: list[TraceRequest], capacity: str
) -> None:
    outcome = replayed(tmp_path, generated, settings(capacity, check_every=10))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    assert outcome.evicted_tokens, f"capacity {capacity} did not lead to eviction"
    assert outcome.hit_rate <= outcome.optimal_hit_rate, f"{outcome.hit_rate} is above {outcome.optimal_hit_rate}"


def test_totals_count_every_request_once(tmp_path: Path, generated: list[TraceRequest]) -> None:
    outcome = replayed(tmp_path, generated, settings("20%", check_every=0))
    tokens = sum(asked.input_length for asked in generated)
    assert (outcome.requests, outcome.input_tokens) == (60, tokens), f"60 requests of {tokens} tokens: {outcome}"
    assert outcome.latency["allocate"].calls >= 60, f"{outcome.latency['allocate'].calls} calls for 60 requests"
    occupied = [window.occupied_tokens["device"] for window in outcome.timeline]
    assert max(occupied) <= outcome.capacity_tokens["full"], f"more than fits: {occupied}"


def test_running_requests_finish_when_the_next_one_needs_their_room(tmp_path: Path) -> None:
    requests = [request(1024, 0, 1), request(1024, 2, 3), request(1024, 0, 1)]
    outcome = replayed(tmp_path, requests, settings("1024", running=8))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    found = (outcome.too_large, outcome.hit_tokens["device"], outcome.evicted_tokens)
    assert found == (0, 0, 2048), f"room for one prompt at a time: too large, hits, evicted are {found}"


def test_a_prompt_that_fits_no_empty_cache_is_passed_over(tmp_path: Path) -> None:
    requests = [request(1024, 0, 1), request(1536, 0, 1, 2), request(1024, 0, 1)]
    outcome = replayed(tmp_path, requests, settings("1024"))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    found = (outcome.too_large, outcome.hit_tokens["device"])
    assert found == (1, 1024), f"one prompt of three pages for two, then a hit of 1024: too large, hits are {found}"


def test_a_partial_page_takes_slots_only_while_it_runs(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [request(700, 0, 1), request(700, 0, 1)], settings("2048", page_size=64))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    assert outcome.hit_tokens["device"] == 640, f"10 of 11 pages are whole: {outcome.hit_tokens} were hit"
    occupied = outcome.timeline[-1].occupied_tokens
    assert occupied == {"device": 640}, f"the tree holds {occupied} tokens"


class SwapsPages(DictionaryCache):
    """`match` returns the right pages in the wrong order."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        pages = found.device_indices.reshape(-1, self.page_size)[::-1]
        return MatchResult(pages.reshape(-1), found.device_anchor, found.best_match, 0, {}, None)


class KeepsFreedSlots(DictionaryCache):
    """`free` does nothing."""

    def free(self, slots: Slots) -> None:
        """Do nothing."""


class ForgetsLocks(DictionaryCache):
    """`unlock` releases half of the locks."""

    def unlock(self, receipt: Handle) -> None:
        prefix = self.receipts[receipt]
        self.receipts[receipt] = prefix[: len(prefix) // 2]
        super().unlock(receipt)


class WritesElsewhere(DictionaryCache):
    """`write` writes one page further."""

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        super().write(pool, slots - self.page_size, layer, data)


@pytest.mark.parametrize(
    ("adapter", "clause"),
    [(SwapsPages, "REQ-3"), (KeepsFreedSlots, "POOL-1"), (ForgetsLocks, "LOCK-"), (WritesElsewhere, "REQ-3")],
)
def test_a_broken_cache_is_caught(tmp_path: Path, adapter: type[CacheAdapter], clause: str) -> None:
    requests = [request(1100, 0, 1, 2), request(1100, 0, 1, 3), request(1100, 4, 5, 6)]
    outcome = replayed(tmp_path, requests, settings(UNLIMITED, running=1), adapter)
    assert outcome.broken is not None, f"{adapter.__name__}: expected a violated law, got none"
    assert clause in outcome.broken, f"{adapter.__name__}: expected {clause}, got {outcome.broken}"


def test_a_trace_without_requests_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        replayed(tmp_path, [], settings(UNLIMITED))


@pytest.mark.parametrize("capacity", ["", "0", "-5", "0%", "nan", "inf", "a lot", "25 %%", "%"])
def test_a_capacity_that_means_nothing_is_refused(tmp_path: Path, capacity: str) -> None:
    with pytest.raises(ConfigurationError, match="capacity"):
        replayed(tmp_path, [request(512, 0)], settings(capacity))


@pytest.mark.parametrize(
    ("capacity", "tokens"),
    [("25%", 512), ("100%", 2048), ("1000", 512), ("1e4", 9728), ("1%", 512), (UNLIMITED, 2048 + 2 * 512)],
)
def test_a_capacity_is_rounded_down_to_whole_pages(tmp_path: Path, capacity: str, tokens: int) -> None:
    outcome = replayed(tmp_path, [request(2000, 0, 1, 2, 3)], settings(capacity))
    assert outcome.footprint_tokens == 2048, f"2000 tokens take 4 pages of 512: {outcome.footprint_tokens}"
    assert outcome.capacity_tokens == {"full": tokens}, f"{capacity} of 2048 tokens: {outcome.capacity_tokens}"


@pytest.mark.parametrize("field", ["page_size", "running", "check_every"])
def test_settings_name_the_number_that_is_too_small(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} must be"):
        settings(UNLIMITED, **{field: -1})
