"""Replays with a host tier on a cache without a tree: the counts, and the defects that a replay finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.replay import UNLIMITED, HostOutcome, HostSettings, ReplayOutcome, ReplaySettings, replay
from hicache.testing.traces import Trace, TraceRequest, write_trace
from hicache.tests.kit.dictionary_cache import DictionaryCache
from hicache.tests.kit.hosted_cache import HostedCache
from hicache.tests.kit.hosted_pages import NONE, Ticket
from hicache.tests.kit.jobs import Job
from hicache.types import EvictResult, Handle, LoadBack, Sizes, Slots, TransferKind

HOST = HostSettings(UNLIMITED, WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.STEPPED)


def settings(capacity: str, *, host: HostSettings | None = HOST, running: int = 1) -> ReplaySettings:
    return ReplaySettings(
        page_size=512,
        capacity=capacity,
        components=("full",),
        policy=EvictionPolicy.LRU,
        sliding_window_size=512,
        running=running,
        check_every=1,
        host=host,
        storage=None,
    )


def replayed(
    directory: Path, requests: list[TraceRequest], asked: ReplaySettings, adapter: type[CacheAdapter] = HostedCache
) -> ReplayOutcome:
    path = directory / "trace.jsonl"
    write_trace(path, requests)
    return replay(Trace(path, skip_bad=False, limit=None), adapter, asked, None)


def request(*blocks: int) -> TraceRequest:
    return TraceRequest(timestamp_ms=0, input_length=512 * len(blocks), output_length=0, hash_ids=blocks)


RETURNING = [request(0, 1), request(2, 3), request(0, 1)]
"""A prompt that the device, with two pages, has evicted when it comes again."""


def hits(outcome: ReplayOutcome) -> tuple[int, int]:
    """Pages hit on the device and on the host, by a replay that violated no law."""
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    return outcome.hit_tokens["device"] // 512, outcome.hit_tokens["host"] // 512


def test_evicted_pages_are_loaded_back_from_the_host(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, settings("1024"))
    assert hits(outcome) == (0, 2), f"two pages come back: {outcome.hit_tokens}"
    assert outcome.hit_rates == {"device": 0.0, "host": 1 / 3}, f"2 of 6 pages are hits: {outcome.hit_rates}"
    assert outcome.hit_rate == 1 / 3, f"hits of all tiers count: {outcome.hit_rate}"
    assert outcome.evicted_tokens == 4 * 512, f"two prompts went from the device: {outcome.evicted_tokens}"
    assert outcome.latency["claim"].calls == 1, f"one prompt was loaded back: {outcome.latency}"
    occupied = [window.occupied_tokens for window in outcome.timeline]
    assert occupied[-1] == {"device": 1024, "host": 2048}, f"two prompts are on the host, got {occupied}"


def test_what_is_on_the_device_is_no_hit_of_the_host(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [request(0, 1), request(2), request(0, 1, 4)], settings("1536"))
    assert hits(outcome) == (2, 0), f"all that is asked for again is on the device: {outcome.hit_tokens}"
    outcome = replayed(tmp_path, [request(0, 1), request(2, 3), request(0, 4, 5)], settings("1536"))
    assert hits(outcome) == (1, 0), f"the first page was used last and stayed: {outcome.hit_tokens}"
    outcome = replayed(tmp_path, [request(0, 1), request(2, 3), request(0, 1)], settings("1536"))
    assert hits(outcome) == (1, 1), f"one page stayed and one comes back: {outcome.hit_tokens}"


def test_a_host_that_is_too_small_gives_nothing_back(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, settings("1024", host=replace(HOST, capacity="512")))
    assert hits(outcome) == (0, 0), f"only one page fits on the host, the last one backed up: {outcome.hit_tokens}"


def test_running_requests_finish_when_a_load_needs_their_slots(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, settings("1024", running=8))
    assert hits(outcome) == (0, 2), f"two pages come back once there is room: {outcome.hit_tokens}"
    assert outcome.latency["load_back"].calls > 1, "expected several attempts, as all pages were locked"


class EvictsMeanwhile(HostedCache):
    """Evicts everything that it can from the host when a request with a host hit has to wait."""

    is_waited_for = False

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
        load = super().load_back(handle, quota=quota)
        self.is_waited_for = load is None
        return load

    def drain(self) -> None:
        super().drain()
        if self.is_waited_for:
            self.evict_host("full", self.host_pages * self.page_size)


def test_what_was_found_on_the_host_stays_while_the_request_waits(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, settings("1024"), EvictsMeanwhile)
    assert hits(outcome) == (0, 2), f"two pages were found, and are loaded once there is room: {outcome.hit_tokens}"


def test_what_is_pinned_for_a_backup_is_waited_for(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [request(0, 1), request(2, 3)], settings("1024"))
    assert hits(outcome) == (0, 0), f"nothing is asked for twice: {outcome.hit_tokens}"
    assert outcome.too_large == 0, f"expected no skipped prompt, got {outcome.too_large}"
    assert outcome.latency["drain"].calls == 2, f"one wait for a backup, and one at the end: {outcome.latency}"


def test_in_steps_what_one_request_starts_has_moved_when_the_next_but_one_comes(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, [request(0), request(1), request(2), request(3)], settings(UNLIMITED))
    calls = {verb: latency.calls for verb, latency in outcome.latency.items()}
    assert (calls["complete"], calls["drain"]) == (2, 1), f"two of four backups end on the way, two at the end: {calls}"


def test_a_prompt_that_fits_no_empty_device_is_passed_over_although_the_host_has_its_beginning(tmp_path: Path) -> None:
    requests = [request(0, 1), request(2, 3), request(0, 1, 4), request(0, 1)]
    outcome = replayed(tmp_path, requests, settings("1024"))
    assert outcome.too_large == 1, f"one prompt of three pages for two: {outcome.too_large}"
    assert hits(outcome) == (2, 0), f"what was loaded for it is hit by the next one, and is no hit: {outcome}"
    assert outcome.evicted_tokens == 4 * 512, f"two prompts went from the device: {outcome.evicted_tokens}"


def test_limits_are_those_of_both_tiers(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, settings("1024", host=replace(HOST, capacity="1024")))
    limits = (outcome.device_lru_hit_rate, outcome.lru_hit_rate, outcome.optimal_hit_rate)
    assert limits == (0.0, 1 / 3, 1 / 3), f"LRU on the device, LRU and optimum on both: {limits}"


def test_a_cache_without_counters_is_reported_without_them(tmp_path: Path) -> None:
    outcome = replayed(tmp_path, RETURNING, settings("1024", host=replace(HOST, capacity="100%")))
    expected = HostOutcome({"full": 2048}, None, None, None, bytes_per_token=16)
    assert outcome.host == expected, f"expected {expected}, got {outcome.host}"


class MixesPages(HostedCache):
    """`load_back` loads into the right pages in the wrong order."""

    def load_back(self, handle: bytes, *, quota: int | None) -> LoadBack | None:
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
    outcome = replayed(tmp_path, RETURNING, settings("1024"), adapter)
    assert outcome.broken is not None, f"{adapter.__name__}: expected a violated law, got none"
    assert finding in outcome.broken, f"{adapter.__name__}: expected {finding!r}, got {outcome.broken}"


class Threaded(HostedCache):
    """Does not declare STEPPED."""

    capabilities = HostedCache.capabilities - {Capability.STEPPED}


@pytest.mark.parametrize(("adapter", "missing"), [(DictionaryCache, "HOST"), (Threaded, "STEPPED")])
def test_a_tier_that_is_not_declared_is_not_replayed(tmp_path: Path, adapter: type[CacheAdapter], missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"does not declare {missing}"):
        replayed(tmp_path, RETURNING, settings("1024"), adapter)


def test_streams_need_a_device_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hicache.testing.replay.run.missing_device", lambda device: f"there is no {device}")
    with pytest.raises(ConfigurationError, match="there is no cuda"):
        replayed(tmp_path, RETURNING, settings("1024", host=replace(HOST, executor=ExecutorKind.STREAMS)))


@pytest.mark.parametrize("capacity", ["", "0", "nan", "a lot"])
def test_a_host_capacity_that_means_nothing_is_refused(tmp_path: Path, capacity: str) -> None:
    with pytest.raises(ConfigurationError, match="capacity"):
        replayed(tmp_path, RETURNING, settings("1024", host=replace(HOST, capacity=capacity)))
