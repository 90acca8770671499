"""HOST-4: a load brings exactly the data up to the best match that the device lacks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.model import ExpectedMatch
from hicache.types import TransferKind

from .residency_cases import (
    WINDOW_PAGES,
    build_residency,
    node_ends,
    oracle_of,
    prompt_pages,
    random_residency,
    require_match,
    residency_cases,
)
from .scenario import host_variant, key_of, window_tokens
from .transfers import slots_under_way

LOOKING = (Capability.SNAPSHOT,)
WRITE_THROUGH = (WritePolicy.WRITE_THROUGH,)
RANDOM_RESIDENCIES = 4
"""How many random residencies a test draws."""


def require_load(driver: Driver, pages: Sequence[int], expected: ExpectedMatch, what: object) -> None:
    """Load a prompt: from the anchor to the best match, and of each component the host hits."""
    key = key_of(driver, pages)
    found = driver.match(key)
    load = driver.load_back(key, found)
    assert (load is None) == (expected.anchor == expected.best), f"HOST-4: {what}: {expected} is loaded as {load}"
    if load is None:
        return
    length, moved = len(load.indices), slots_under_way(driver, TransferKind.LOAD)
    assert length == expected.best - expected.anchor, f"HOST-4: {what}: {expected}, the load is {length} elements long"
    assert moved == expected.host_hits, f"HOST-4: {what}: needed are {expected.host_hits}, loaded {moved}"
    driver.drain()
    slots = driver.claim(load.ticket)
    assert slots is not None, f"FLOW-10: {what}: nothing failed, and nothing was delivered"
    again = driver.match(key, chunked=True)
    in_order = [*found.device_indices, *load.indices]
    assert list(slots) == list(load.indices), f"HOST-4: {what}: announced were {load.indices}, the tree has {slots}"
    assert list(again.device_indices) == in_order, f"HOST-4: {what}: expected {in_order}, got {again.device_indices}"
    nothing = dict.fromkeys(driver.config.components, 0)
    require_match(again, ExpectedMatch(expected.best, expected.best, nothing), f"{what}, loaded")


@clause("HOST-4", "HOST-5", "FLOW-10", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_load_brings_exactly_the_host_hits_of_the_residency_cases(driver: Driver) -> None:
    with host_variant(driver, sliding_window_size=window_tokens(driver.config, WINDOW_PAGES)) as two_tiers:
        for case in residency_cases(two_tiers):
            build_residency(two_tiers, case.residency)
            require_load(two_tiers, case.pages, case.expected(two_tiers), case)
            two_tiers.reset()


@clause("HOST-4", "FLOW-10", needs=LOOKING, write_policies=WRITE_THROUGH)
@pytest.mark.parametrize("seed", range(3))
def test_a_load_brings_exactly_the_host_hits_of_the_oracle(driver: Driver, seed: int) -> None:
    rng = Random(seed)
    for _ in range(RANDOM_RESIDENCIES):
        residency = random_residency(rng, driver.config.components)
        with host_variant(driver, sliding_window_size=window_tokens(driver.config, rng.randint(1, 3))) as two_tiers:
            build_residency(two_tiers, residency)
            pages = prompt_pages(residency)[: rng.randint(1, node_ends(residency)[-1])]
            expected = oracle_of(two_tiers, prompt_pages(residency)).expected_match(key_of(two_tiers, pages))
            require_load(two_tiers, pages, expected, (residency, len(pages)))
