"""What a match must find in the cache as it is now, by the oracle."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driving.driver import Driver
from hicache.testing.model import ExpectedMatch, Model
from hicache.types import MatchResult

from .scenario import FULL, key_of


def oracle_of(driver: Driver, pages: Sequence[int]) -> Model:
    """An oracle that knows what each tier caches of a prompt."""
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


def require_match(found: MatchResult, expected: ExpectedMatch, what: object) -> None:
    """A match found the expected anchor and host hits. Its best match shows only when it is loaded."""
    anchor = len(found.device_indices)
    assert anchor == expected.anchor, f"MATCH-5: {what}: expected the anchor at {expected.anchor}, got {anchor}"
    hits = {FULL: found.host_hit_length, **found.component_host_hit_lengths}
    assert hits == expected.host_hits, f"MATCH-12: {what}: expected host hits {expected.host_hits}, got {hits}"
