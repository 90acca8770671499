"""MATCH: the best match on both tiers and the device anchor, and what is counted as a hit between them."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.model import Model
from hicache.types import MatchResult

from .charts import draw, ends, pages_of
from .departures import depart
from .drawn_charts import drawn_chart
from .findings import WINDOW_PAGES, findings
from .hosts import another, window
from .pictures import picture
from .reach import best
from .refusals import refused
from .verbs import FULL, key_of, put, unit

LOOKING = (Capability.HOST, Capability.SNAPSHOT)
WRITE_THROUGH = (WritePolicy.WRITE_THROUGH,)
CHARTS = 6
"""How many charts chance draws for one test."""


def host_hits(driver: Driver, found: MatchResult) -> tuple[int, ...]:
    """What a match found on the host alone, in pages and states, by component."""
    counted = {FULL: found.host_hit_length, **found.component_host_hit_lengths}
    return tuple(counted[name] // unit(driver, name) for name in driver.config.components)


@clause("MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_the_anchor_and_the_hits_past_it_are_those_worked_out_by_hand(driver: Driver) -> None:
    with another(driver, sliding_window_size=window(driver.config, WINDOW_PAGES)) as two_tiers:
        for finding in findings(two_tiers):
            draw(two_tiers, finding.chart)
            found = two_tiers.match(
                key_of(two_tiers, pages_of(finding.chart)[: ends(finding.chart)[finding.nodes - 1]])
            )
            anchor = len(found.device_indices) // two_tiers.config.page_size
            assert anchor == finding.anchor, (
                f"MATCH-5: {finding}: expected the anchor at {finding.anchor}, got {anchor}"
            )
            hits = host_hits(two_tiers, found)
            assert hits == finding.hits, f"MATCH-12: {finding}: expected host hits {finding.hits}, got {hits}"
            two_tiers.reset()


@clause("MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_finds_what_the_oracle_finds(driver: Driver, seed: int) -> None:
    chance = Random(seed)
    for _ in range(CHARTS):
        chart = drawn_chart(chance, driver.config.components)
        with another(driver, sliding_window_size=window(driver.config, chance.randint(1, 3))) as two_tiers:
            draw(two_tiers, chart)
            two_tiers.check_every = 0
            oracle, pages = synced(two_tiers, pages_of(chart)), pages_of(chart)
            # The longest first: a match that ends inside a node cuts it.
            for count in range(len(pages), 0, -1):
                key = key_of(two_tiers, pages[:count])
                expected, found = oracle.expected_match(key), two_tiers.match(key, chunked=True)
                assert len(found.device_indices) == expected.anchor, (
                    f"MATCH-5: {chart}, {count} pages: {expected}, got {found}"
                )
                hits = {FULL: found.host_hit_length, **found.component_host_hit_lengths}
                assert hits == expected.host_hits, f"MATCH-12: {chart}, {count} pages: {expected}, got {hits}"


def synced(driver: Driver, pages: list[int]) -> Model:
    """An oracle that knows of a prompt what each tier has now."""
    config = driver.config
    oracle = Model(
        components=config.components,
        page_size=config.page_size,
        sliding_window_size=config.sliding_window_size,
        bigram=config.bigram,
    )
    oracle.permit(key_of(driver, pages))
    oracle.sync(driver.snapshot())
    return oracle


@clause("MATCH-5", "MATCH-9", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_match_moves_nothing_between_the_tiers(driver: Driver) -> None:
    for finding in findings(driver):
        draw(driver, finding.chart)
        key = key_of(driver, pages_of(finding.chart))
        before = picture(driver.snapshot())
        driver.match(key, chunked=True)
        assert picture(driver.snapshot()) == before, f"MATCH-9: a match of {finding.chart} changed {before}"
        driver.reset()


@clause("MATCH-7", needs=LOOKING)
def test_what_left_both_tiers_is_found_no_more(driver: Driver) -> None:
    depart(driver, [1, 2], [1, 2, 3, 4])
    handle = best(driver, [1, 2, 3, 4])
    for expected in (2, 0):
        driver.evict_host(FULL, 1)
        found = driver.match(key_of(driver, [1, 2, 3, 4]))
        hits = len(found.device_indices), *host_hits(driver, found)
        assert hits[:2] == (0, expected), f"MATCH-7: expected {expected} pages on the host alone, found {hits}"
    assert not any(hits), f"MATCH-7: nothing is on any tier, found {hits}"
    load_back = partial(driver.adapter.load_back, quota=None)
    for verb in (driver.adapter.lock, driver.adapter.lock_host, load_back):
        with refused(driver, "MATCH-7", f"{verb} of a dead node"):
            verb(handle)


@clause("MATCH-13", needs=LOOKING)
def test_with_a_host_tier_nobody_is_told_where_to_keep_a_state(driver: Driver) -> None:
    page = driver.config.page_size
    with another(driver, mamba_chunk_size=page) as chunked:
        put(chunked, [1, 2, 3, 4, 5, 6])
        for prompt in ([1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 6], [1, 2, 9], [7]):
            found = chunked.match(key_of(chunked, prompt))
            assert found.branching_seqlen is None, f"MATCH-13: {prompt}: expected None, got {found.branching_seqlen}"
