"""MATCH: the best match on both tiers, the device anchor, and the host hits between them."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import refused
from .residency_cases import (
    WINDOW_PAGES,
    build_residency,
    oracle_of,
    prompt_pages,
    random_residency,
    require_match,
    residency_cases,
)
from .scenario import FULL, best_match, host_variant, key_of, put, put_on_host, window_tokens
from .tree_view import snapshot_values

LOOKING = (Capability.HOST, Capability.SNAPSHOT)
WRITE_THROUGH = (WritePolicy.WRITE_THROUGH,)
RANDOM_RESIDENCIES = 5
"""How many random residencies a test draws."""


@clause("MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_match_finds_the_anchor_and_the_host_hits_of_the_residency_cases(driver: Driver) -> None:
    with host_variant(driver, sliding_window_size=window_tokens(driver.config, WINDOW_PAGES)) as two_tiers:
        for case in residency_cases(two_tiers):
            build_residency(two_tiers, case.residency)
            require_match(two_tiers.match(key_of(two_tiers, case.pages)), case.expected(two_tiers), case)
            two_tiers.reset()


@clause("MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
@pytest.mark.parametrize("seed", range(3))
def test_every_prefix_finds_what_the_oracle_finds(driver: Driver, seed: int) -> None:
    rng = Random(seed)
    for _ in range(RANDOM_RESIDENCIES):
        residency = random_residency(rng, driver.config.components)
        with host_variant(driver, sliding_window_size=window_tokens(driver.config, rng.randint(1, 3))) as two_tiers:
            build_residency(two_tiers, residency)
            two_tiers.check_every = 0
            pages = prompt_pages(residency)
            oracle = oracle_of(two_tiers, pages)
            # The longest first: a match that ends inside a node splits it.
            for count in range(len(pages), 0, -1):
                key = key_of(two_tiers, pages[:count])
                require_match(two_tiers.match(key, chunked=True), oracle.expected_match(key), (residency, count))


@clause("MATCH-5", "MATCH-9", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_match_moves_nothing_between_the_tiers(driver: Driver) -> None:
    for case in residency_cases(driver):
        build_residency(driver, case.residency)
        key = key_of(driver, prompt_pages(case.residency))
        before = snapshot_values(driver.snapshot())
        driver.match(key, chunked=True)
        assert snapshot_values(driver.snapshot()) == before, f"MATCH-9: a match of {case.residency} changed {before}"
        driver.reset()


@clause("MATCH-7", needs=LOOKING)
def test_a_node_that_left_both_tiers_is_not_found(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [1, 2, 3, 4])
    handle = best_match(driver, [1, 2, 3, 4])
    for expected in (2, 0):
        driver.evict_host(FULL, 1)
        found = driver.match(key_of(driver, [1, 2, 3, 4]))
        hits = len(found.device_indices), found.host_hit_length // driver.config.page_size
        assert hits == (0, expected), f"MATCH-7: expected {expected} pages on the host alone, found {hits}"
    lower = found.component_host_hit_lengths
    assert not any(lower.values()), f"MATCH-7: nothing is on any tier, found {lower}"
    load_back = partial(driver.adapter.load_back, quota=None)
    for verb in (driver.adapter.lock, driver.adapter.lock_host, load_back):
        with refused(driver, "MATCH-7", f"{verb} of a dead node"):
            verb(handle)


@clause("MATCH-13", needs=LOOKING)
def test_with_a_host_tier_branching_seqlen_is_none(driver: Driver) -> None:
    page = driver.config.page_size
    with host_variant(driver, mamba_chunk_size=page) as chunked:
        put(chunked, [1, 2, 3, 4, 5, 6])
        for prompt in ([1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 6], [1, 2, 9], [7]):
            found = chunked.match(key_of(chunked, prompt))
            assert found.branching_seqlen is None, f"MATCH-13: {prompt}: expected None, got {found.branching_seqlen}"
