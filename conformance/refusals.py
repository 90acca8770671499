"""A caller's mistake: the cache must raise, and be as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hicache.testing.driving.driver import Driver

from .pictures import picture

REFUSALS = (ValueError, LookupError, AssertionError)
"""What a refusal may be. The errors of this package are among them."""


@contextmanager
def refused(driver: Driver, clause_id: str, mistake: str) -> Iterator[None]:
    """The block, which goes to the adapter itself, must raise and change nothing."""
    before = picture(driver.snapshot())
    try:
        yield
    except REFUSALS:
        after = picture(driver.snapshot())
        assert after == before, f"{clause_id}: {mistake} was refused, but changed {before} to {after}"
        driver.check()
    else:
        pytest.fail(f"{clause_id}: {mistake} was accepted; expected one of {REFUSALS}")
