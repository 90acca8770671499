"""A prompt that storage is given, and gives back, in several batches."""

from __future__ import annotations

from contextlib import AbstractContextManager

from hicache.testing.driving.driver import Driver
from hicache.types import StopPolicy

from .stored import storing

LONG = tuple(range(1, 301))
"""Pages that take three batches."""


def roomy(driver: Driver, stop_policy: StopPolicy = StopPolicy.WAIT_COMPLETE) -> AbstractContextManager[Driver]:
    """A cache with room for the long prompt on both tiers, and leave to fetch it."""
    tokens = dict.fromkeys(driver.config.components, 320 * driver.config.page_size)
    leave = {"limit_tokens": tokens["full"], "stop_policy": stop_policy}
    return storing(driver, host={"capacity_tokens": tokens}, capacity_tokens=tokens, storage=leave)
