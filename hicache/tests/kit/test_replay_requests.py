"""Replays of caches that are driven by requests: the counts, the geometry, and the defects that a replay finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from hicache.config import ExecutorKind, Layout, WritePolicy
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability, PageBytes
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.replay import UNLIMITED, HostSettings, ReplaySettings
from hicache.testing.replay.configuration import lacks_for_replay
from hicache.testing.replay.sample import samples
from hicache.testing.traces import SHORT_TRACE, generate_trace
from hicache.tests.kit.replays import SETTINGS, replayed, request
from hicache.types import Handle, Slots

IN_PAGES = replace(SETTINGS, page_size=64)


def test_a_hit_is_the_whole_pages_before_the_last_token(tmp_path: Path) -> None:
    requests = [request(700, 0, 1), request(700, 0, 1), request(1024, 2, 3), request(1024, 2, 3)]
    outcome = replayed(tmp_path, requests, IN_PAGES, BlockCacheAdapter)
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    expected = {"device": [0, 640, 0, 960]}
    assert outcome.hit_lengths == expected, f"its geometry computes the last token: {expected}, {outcome.hit_lengths}"
    assert outcome.evicted_tokens is None, f"what a cache of blocks gained is unknown, got {outcome.evicted_tokens}"
    assert outcome.checks == 4 + 1, f"each request is checked, and once at the end: {outcome.checks} checks"


def test_running_requests_finish_when_the_next_one_needs_their_room(tmp_path: Path) -> None:
    requests = [request(1024, 0, 1), request(1024, 2, 3), request(1536, 0, 1, 4), request(1024, 2, 3)]
    outcome = replayed(tmp_path, requests, replace(IN_PAGES, capacity="1024", running=8), BlockCacheAdapter)
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    found = (outcome.too_large, outcome.hit_lengths["device"])
    assert found == (1, [0, 0, 0, 960]), f"room for one prompt at a time: too large and hits are {found}"


@pytest.mark.parametrize("components", [("full",), ("full", "swa"), ("full", "mamba"), ("full", "swa", "mamba")])
def test_the_cache_has_a_geometry_that_its_adapter_lists(tmp_path: Path, components: tuple[str, ...]) -> None:
    asked = replace(IN_PAGES, capacity="30%", components=components, running=2, check_every=10)
    outcome = replayed(tmp_path, list(islice(generate_trace(SHORT_TRACE, 6), 40)), asked, BlockCacheAdapter)
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    blocks = "-".join(f"{component}64" for component in components)
    assert f"/page64/lru/shared-{blocks}" in outcome.configuration, f"got {outcome.configuration}"
    assert outcome.hit_rate <= outcome.optimal_hit_rate, f"{outcome.hit_rate} is above {outcome.optimal_hit_rate}"


class ReadsZeros(BlockCacheAdapter):
    """The last slot that is read is empty."""

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data = super().read(pool, slots, layer).copy()
        data[-1] = 0
        return data


class NeverFinishes(BlockCacheAdapter):
    """`finish` releases nothing."""

    def finish(self, request: Handle) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("broken", "clause"), [(ReadsZeros, "REQ-3"), (NeverFinishes, "POOL-1")])
def test_a_broken_cache_of_blocks_is_found(tmp_path: Path, broken: type[BlockCacheAdapter], clause: str) -> None:
    requests = [request(700, 0, 1), request(700, 0, 1)]
    outcome = replayed(tmp_path, requests, IN_PAGES, broken)
    assert outcome.causes == (clause,), f"expected {clause}, got {outcome.causes}: {outcome.broken}"


HOST = HostSettings(UNLIMITED, WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.THREADED)


@pytest.mark.parametrize(
    ("asked", "told"),
    [(replace(IN_PAGES, host=HOST), "host"), (replace(IN_PAGES, components=("full", "indexer")), "sidecar")],
)
def test_what_its_geometry_does_not_have_is_refused(tmp_path: Path, asked: ReplaySettings, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        replayed(tmp_path, [request(512, 0)], asked, BlockCacheAdapter)


def test_a_replay_needs_verbs_or_blocks_with_tables() -> None:
    by_requests = {Capability.REQUESTS, Capability.TABLES}
    found = [
        lacks_for_replay("tree", {Capability.VERBS}),
        lacks_for_replay("blocks", by_requests),
        lacks_for_replay("blocks", {Capability.REQUESTS}),
        lacks_for_replay("offload", by_requests),
    ]
    assert found == [(), (), (Capability.TABLES,), (Capability.VERBS,)], f"expected what is missing, got {found}"
    assert [one.name for one in samples(BlockCacheAdapter)] == ["replay"], "hicache verify replays on the device"
