"""Replays on a small cache with one tier and with two: the counts, and the defects that a replay finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from hicache.config import ExecutorKind, Layout, WritePolicy
from hicache.errors import ConfigurationError, TraceError
from hicache.testing.adapter import CacheAdapter, Capability, PageBytes
from hicache.testing.replay import UNLIMITED, HostOutcome, HostSettings, ReplaySettings
from hicache.testing.traces import SHORT_TRACE, TraceRequest, generate_trace
from hicache.tests.kit.hosted_cache import NONE, HostedCache, Job, Prefix, Ticket
from hicache.tests.kit.replays import SETTINGS, hits, replayed, request, whole_blocks
from hicache.types import EvictResult, Handle, Key, LoadBack, MatchResult, Sizes, Slots, TransferKind


def one_tier(capacity: str, *, page_size: int = 512, running: int = 2, check_every: int = 1) -> ReplaySettings:
    return replace(SETTINGS, capacity=capacity, page_size=page_size, running=running, check_every=check_every)


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
    outcome = replayed(tmp_path, generated, one_tier(UNLIMITED, check_every=10))
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
    outcome = replayed(tmp_path, generated, one_tier(capacity, check_every=10))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    assert outcome.evicted_tokens, f"capacity {capacity} did not lead to eviction"
    assert outcome.hit_rate <= outcome.optimal_hit_rate, f"{outcome.hit_rate} is above {outcome.optimal_hit_rate}"


def test_totals_count_every_request_once(tmp_path: Path, generated: list[TraceRequest]) -> None:
    outcome = replayed(tmp_path, generated, one_tier("20%", check_every=0))
    tokens = sum(asked.input_length for asked in generated)
    assert (outcome.requests, outcome.input_tokens) == (60, tokens), f"60 requests of {tokens} tokens: {outcome}"
    assert outcome.latency["allocate"].calls >= 60, f"{outcome.latency['allocate'].calls} calls for 60 requests"
    occupied = [window.occupied_tokens["device"] for window in outcome.timeline]
    assert max(occupied) <= outcome.capacity_tokens["full"], f"more than fits: {occupied}"


def test_running_requests_finish_when_the_next_one_needs_their_room(tmp_path: Path) -> None:
    requests = [request(1024, 0, 1), request(1024, 2, 3), request(1024, 0, 1)]
    outcome = replayed(tmp_path, requests, one_tier("1024", running=8))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    found = (outcome.too_large, outcome.hit_tokens["device"], outcome.evicted_tokens)
    assert found == (0, 0, 2048), f"room for one prompt at a time: too large, hits, evicted are {found}"


def test_a_prompt_that_fits_no_empty_cache_is_passed_over(tmp_path: Path) -> None:
    requests = [request(1024, 0, 1), request(1536, 0, 1, 2), request(1024, 0, 1)]
    outcome = replayed(tmp_path, requests, one_tier("1024"))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    found = (outcome.too_large, outcome.hit_tokens["device"])
    assert found == (1, 1024), f"one prompt of three pages for two, then a hit of 1024: too large, hits are {found}"


def test_a_partial_page_takes_slots_only_while_it_runs(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [request(700, 0, 1), request(700, 0, 1)], one_tier("2048", page_size=64))
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    assert outcome.hit_tokens["device"] == 640, f"10 of 11 pages are whole: {outcome.hit_tokens} were hit"
    occupied = outcome.timeline[-1].occupied_tokens
    assert occupied == {"device": 640}, f"the tree holds {occupied} tokens"


class SwapsPages(HostedCache):
    """`match` returns the right pages in the wrong order."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        pages = found.device_indices.reshape(-1, self.page_size)[::-1]
        return MatchResult(pages.reshape(-1), found.device_anchor, found.best_match, 0, {}, None)


class KeepsFreedSlots(HostedCache):
    """`free` does nothing."""

    def free(self, slots: Slots) -> None:
        """Do nothing."""


class ForgetsLocks(HostedCache):
    """`unlock` releases half of the locks."""

    def unlock(self, receipt: Handle) -> None:
        kind, (namespace, tokens) = self.receipts[receipt]
        self.receipts[receipt] = kind, Prefix(namespace, tokens[: len(tokens) // 2])
        super().unlock(receipt)


class EvictsAll(HostedCache):
    """`allocate` evicts everything first, although there are free slots."""

    def allocate(self, tokens: int) -> Slots | None:
        self.evict("full", 1 << 20)
        return super().allocate(tokens)


class WritesElsewhere(HostedCache):
    """`write` writes one page further."""

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        super().write(pool, slots - self.page_size, layer, data)


@pytest.mark.parametrize(
    ("adapter", "clause"),
    [
        (SwapsPages, "REQ-3"),
        (KeepsFreedSlots, "POOL-1"),
        (ForgetsLocks, "LOCK-"),
        (EvictsAll, "REUSE-7"),
        (WritesElsewhere, "REQ-3"),
    ],
)
def test_a_broken_cache_is_caught(tmp_path: Path, adapter: type[CacheAdapter], clause: str) -> None:
    requests = [request(1100, 0, 1, 2), request(1100, 0, 1, 3), request(1100, 4, 5, 6), request(1100, 0, 1, 2)]
    outcome = replayed(tmp_path, requests, one_tier(UNLIMITED, running=1), adapter)
    assert outcome.broken is not None, f"{adapter.__name__}: expected a violated law, got none"
    assert clause in outcome.broken, f"{adapter.__name__}: expected {clause}, got {outcome.broken}"


def test_a_trace_without_requests_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        replayed(tmp_path, [], one_tier(UNLIMITED))


@pytest.mark.parametrize("capacity", ["", "0", "-5", "0%", "nan", "inf", "a lot", "25 %%", "%"])
def test_a_capacity_that_means_nothing_is_refused(tmp_path: Path, capacity: str) -> None:
    with pytest.raises(ConfigurationError, match="capacity"):
        replayed(tmp_path, [request(512, 0)], one_tier(capacity))


@pytest.mark.parametrize(
    ("capacity", "tokens"),
    [("25%", 512), ("100%", 2048), ("1000", 512), ("2e3", 1536), ("1%", 512), ("1e9", 3072), (UNLIMITED, 3072)],
)
def test_a_capacity_is_rounded_down_to_whole_pages(tmp_path: Path, capacity: str, tokens: int) -> None:
    outcome = replayed(tmp_path, [request(2000, 0, 1, 2, 3)], one_tier(capacity))
    assert outcome.footprint_tokens == 2048, f"2000 tokens take 4 pages of 512: {outcome.footprint_tokens}"
    assert outcome.capacity_tokens == {"full": tokens}, f"{capacity} of 2048 tokens: {outcome.capacity_tokens}"


@pytest.mark.parametrize("field", ["page_size", "running", "check_every"])
def test_settings_name_the_number_that_is_too_small(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} must be"):
        one_tier(UNLIMITED, **{field: -1})


HOST = HostSettings(UNLIMITED, WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.STEPPED)


def two_tiers(capacity: str, *, host: HostSettings = HOST, running: int = 1) -> ReplaySettings:
    return replace(SETTINGS, capacity=capacity, host=host, running=running)


RETURNING = [whole_blocks(0, 1), whole_blocks(2, 3), whole_blocks(0, 1)]
"""A prompt that the device, with two pages, has evicted when it comes again."""


def test_what_a_cache_does_not_say_is_evicted_or_refused(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, one_tier("1024", running=1))
    found = (outcome.refused_tokens, outcome.lost_tokens, outcome.unseen_tokens)
    assert found == (None, 2 * 512, 4 * 512), f"two of six pages came before, and are gone: {found}"


def test_evicted_pages_are_loaded_back_from_the_host(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, two_tiers("1024"))
    assert hits(outcome) == (0, 2), f"two pages come back: {outcome.hit_tokens}"
    assert outcome.hit_rates == {"device": 0.0, "host": 1 / 3}, f"2 of 6 pages are hits: {outcome.hit_rates}"
    assert outcome.hit_rate == 1 / 3, f"hits of all tiers count: {outcome.hit_rate}"
    assert outcome.evicted_tokens == 4 * 512, f"two prompts went from the device: {outcome.evicted_tokens}"
    assert outcome.latency["claim"].calls == 1, f"one prompt was loaded back: {outcome.latency}"
    occupied = [window.occupied_tokens for window in outcome.timeline]
    assert occupied[-1] == {"device": 1024, "host": 2048}, f"two prompts are on the host, got {occupied}"


def test_what_is_on_the_device_is_no_hit_of_the_host(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [whole_blocks(0, 1), whole_blocks(2), whole_blocks(0, 1, 4)], two_tiers("1536"))
    assert hits(outcome) == (2, 0), f"all that is asked for again is on the device: {outcome.hit_tokens}"
    outcome = replayed(tmp_path, [whole_blocks(0, 1), whole_blocks(2, 3), whole_blocks(0, 4, 5)], two_tiers("1536"))
    assert hits(outcome) == (1, 0), f"the first page was used last and stayed: {outcome.hit_tokens}"
    outcome = replayed(tmp_path, [whole_blocks(0, 1), whole_blocks(2, 3), whole_blocks(0, 1)], two_tiers("1536"))
    assert hits(outcome) == (1, 1), f"one page stayed and one comes back: {outcome.hit_tokens}"


def test_a_host_that_is_too_small_gives_nothing_back(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, two_tiers("1024", host=replace(HOST, capacity="512")))
    assert hits(outcome) == (0, 0), f"only one page fits on the host, the last one backed up: {outcome.hit_tokens}"


def test_running_requests_finish_when_a_load_needs_their_slots(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, two_tiers("1024", running=8))
    assert hits(outcome) == (0, 2), f"two pages come back once there is room: {outcome.hit_tokens}"
    assert outcome.latency["load_back"].calls > 1, "expected several attempts, as all pages were locked"


class EvictsMeanwhile(HostedCache):
    """Evicts everything that it can from the host when a request with a host hit has to wait."""

    is_waited_for = False

    def load_back(self, handle: Prefix, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        self.is_waited_for = load is None
        return load

    def drain(self) -> None:
        super().drain()
        if self.is_waited_for:
            self.evict_host("full", self.host_pages * self.page_size)


def test_what_was_found_on_the_host_stays_while_the_request_waits(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, two_tiers("1024"), EvictsMeanwhile)
    assert hits(outcome) == (0, 2), f"two pages were found, and are loaded once there is room: {outcome.hit_tokens}"


def test_what_is_pinned_for_a_backup_is_waited_for(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [whole_blocks(0, 1), whole_blocks(2, 3)], two_tiers("1024"))
    assert hits(outcome) == (0, 0), f"nothing is asked for twice: {outcome.hit_tokens}"
    assert outcome.too_large == 0, f"expected no skipped prompt, got {outcome.too_large}"
    assert outcome.latency["drain"].calls == 2, f"one wait for a backup, and one at the end: {outcome.latency}"


def test_in_steps_what_one_request_starts_has_moved_when_the_next_but_one_comes(tmp_path: Path) -> None:
    outcome = replayed(
        tmp_path, [whole_blocks(0), whole_blocks(1), whole_blocks(2), whole_blocks(3)], two_tiers(UNLIMITED)
    )
    calls = {verb: latency.calls for verb, latency in outcome.latency.items()}
    assert (calls["complete"], calls["drain"]) == (2, 1), f"two of four backups end on the way, two at the end: {calls}"


def test_a_prompt_that_fits_no_empty_device_is_passed_over_although_the_host_has_its_beginning(tmp_path: Path) -> None:
    requests = [whole_blocks(0, 1), whole_blocks(2, 3), whole_blocks(0, 1, 4), whole_blocks(0, 1)]
    outcome = replayed(tmp_path, requests, two_tiers("1024"))
    assert outcome.too_large == 1, f"one prompt of three pages for two: {outcome.too_large}"
    assert hits(outcome) == (2, 0), f"what was loaded for it is a hit of the next one alone: {outcome}"
    assert outcome.evicted_tokens == 4 * 512, f"two prompts went from the device: {outcome.evicted_tokens}"


def test_limits_are_those_of_both_tiers(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, two_tiers("1024", host=replace(HOST, capacity="1024")))
    limits = (outcome.device_lru_hit_rate, outcome.lru_hit_rate, outcome.optimal_hit_rate)
    assert limits == (0.0, 1 / 3, 1 / 3), f"LRU on the device, LRU and optimum on both: {limits}"


def test_a_cache_without_counters_is_reported_without_them(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, two_tiers("1024", host=replace(HOST, capacity="100%")))
    expected = HostOutcome({"full": 2048}, None, None, None, bytes_per_token=16)
    assert outcome.host == expected, f"expected {expected}, got {outcome.host}"


class MixesPages(HostedCache):
    """`load_back` loads into the right pages in the wrong order."""

    def load_back(self, handle: Prefix, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        if load is not None:
            parts = load.ticket.parts
            for part, page in zip(parts, [part.host for part in reversed(parts)], strict=True):
                part.host = page
        return load


class DeliversLess(HostedCache):
    """`claim` returns less than was reported."""

    def claim(self, ticket: Ticket) -> Slots | None:
        slots = super().claim(ticket)
        return None if slots is None else slots[: -self.page_size]


class LosesLoads(HostedCache):
    """`claim` evicts the loaded pages from the device."""

    def claim(self, ticket: Ticket) -> Slots | None:
        slots = super().claim(ticket)
        entry = self.entries[ticket.prefix]
        self.free_pages.append(entry.page)
        entry.page = NONE
        return slots


class FailsLoads(HostedCache):
    """The last part of every load fails."""

    def complete(self, ticket: Job) -> None:
        if ticket.kind is TransferKind.LOAD:
            self.fail(ticket, len(ticket.parts) - 1)
        else:
            super().complete(ticket)


class NeverEnds(HostedCache):
    """`drain` waits for backups only."""

    def drain(self) -> None:
        self.step()
        for one in self.pending():
            if one.kind is TransferKind.BACKUP:
                self.complete(one.ticket)
        self.step()


class KeepsHostSlots(HostedCache):
    """`evict_host` leaks host slots."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        free = list(self.free_host)
        result = super().evict_host(component, tokens)
        self.free_host = free
        return result


class MiscountsTheHost(HostedCache):
    """`host_sizes` counts one page too many."""

    def host_sizes(self) -> dict[str, Sizes]:
        sizes = self.free_host, [entry.host for entry in self.entries.values() if entry.host]
        free, held = (len(pages) * self.page_size for pages in sizes)
        return {"full": Sizes(held + self.page_size, 0, free)}


class KeepsPins(HostedCache):
    """The pins of a load are never released."""

    def claim(self, ticket: Ticket) -> Slots | None:
        slots = super().claim(ticket)
        self._pin(self._prefixes(ticket.prefix), 1)
        return slots


class ForgetsHostLocks(HostedCache):
    """`unlock_host` releases nothing."""

    def unlock_host(self, receipt: Handle) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("adapter", "finding"),
    [
        (MixesPages, "REQ-3: "),
        (DeliversLess, "FLOW-10: claim of a load"),
        (LosesLoads, "FLOW-10: match after a load"),
        (FailsLoads, "FLOW-10: a load"),
        (NeverEnds, "FLOW-10: a load"),
        (KeepsHostSlots, "POOL-1: host pool"),
        (MiscountsTheHost, "LOCK-4: host size counters"),
        (KeepsPins, "expected no pins of full"),
        (ForgetsHostLocks, "FLOW-7: free slots of the host"),
    ],
)
def test_a_broken_host_tier_is_caught(tmp_path: Path, adapter: type[CacheAdapter], finding: str) -> None:
    outcome = replayed(tmp_path, RETURNING, two_tiers("1024"), adapter)
    assert outcome.broken is not None, f"{adapter.__name__}: expected a violated law, got none"
    assert finding in outcome.broken, f"{adapter.__name__}: expected {finding!r}, got {outcome.broken}"


class DictionaryCache(HostedCache):
    """Does not declare HOST."""

    capabilities = HostedCache.capabilities - {Capability.HOST}


class Threaded(HostedCache):
    """Does not declare STEPPED."""

    capabilities = HostedCache.capabilities - {Capability.STEPPED}


@pytest.mark.parametrize(("adapter", "missing"), [(DictionaryCache, "HOST"), (Threaded, "STEPPED")])
def test_a_tier_that_is_not_declared_is_not_replayed(tmp_path: Path, adapter: type[CacheAdapter], missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"does not declare {missing}"):
        replayed(tmp_path, RETURNING, two_tiers("1024"), adapter)


def test_streams_need_a_device_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hicache.testing.replay.run.missing_device", lambda device: f"there is no {device}")
    with pytest.raises(ConfigurationError, match="there is no cuda"):
        replayed(tmp_path, RETURNING, two_tiers("1024", host=replace(HOST, executor=ExecutorKind.STREAMS)))


@pytest.mark.parametrize("capacity", ["", "0", "nan", "a lot"])
def test_a_host_capacity_that_means_nothing_is_refused(tmp_path: Path, capacity: str) -> None:
    with pytest.raises(ConfigurationError, match="capacity"):
        replayed(tmp_path, RETURNING, two_tiers("1024", host=replace(HOST, capacity=capacity)))
