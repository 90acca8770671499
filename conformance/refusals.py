"""A caller's mistake: the cache must raise, and must not change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hicache.testing.driving.driver import Driver

from .tree_view import snapshot_values

REFUSALS = (ValueError, LookupError, AssertionError)
"""The errors that count as a refusal. Those of this package are among them."""


@contextmanager
def refused(driver: Driver, clause_id: str, mistake: str) -> Iterator[None]:
    """The block calls the adapter directly; it must raise and change nothing."""
    before = snapshot_values(driver.snapshot())
    try:
        yield
    except REFUSALS:
        after = snapshot_values(driver.snapshot())
        assert after == before, f"{clause_id}: {mistake} was refused, but the cache changed from {before} to {after}"
        driver.check()
    else:
        pytest.fail(f"{clause_id}: expected one of {REFUSALS} for {mistake}, but it was accepted")
