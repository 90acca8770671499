"""Oracles: what a match must find in a cache as it is now."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driving.driver import Driver
from hicache.testing.model import ExpectedMatch, Model
from hicache.types import MatchResult

from .verbs import FULL, key_of


def oracle_of(driver: Driver, pages: Sequence[int]) -> Model:
    """An oracle that knows of a prompt what each tier has."""
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


def require_found(found: MatchResult, expected: ExpectedMatch, what: object) -> None:
    """A match found what it must, as far as that shows before anything is loaded."""
    anchor = len(found.device_indices)
    assert anchor == expected.anchor, f"MATCH-5: {what}: the anchor is at {expected.anchor} elements, got {anchor}"
    hits = {FULL: found.host_hit_length, **found.component_host_hit_lengths}
    assert hits == expected.host_hits, f"MATCH-12: {what}: expected host hits {expected.host_hits}, got {hits}"
