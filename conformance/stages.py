"""How far a transfer of a kind has come: queued, running, in the middle of its layers, or ended and not taken over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .under_way import pending

Stage = Callable[[Driver, TransferKind], None]


def queued(driver: Driver, kind: TransferKind) -> None:
    """It has not begun."""


def running(driver: Driver, kind: TransferKind) -> None:
    """It has begun, and nothing has arrived."""
    driver.step()
    pending(driver, kind)


def halfway(driver: Driver, kind: TransferKind) -> None:
    """One layer has arrived."""
    driver.step()
    driver.advance(pending(driver, kind).ticket)


def arrived(driver: Driver, kind: TransferKind) -> None:
    """All has arrived, and was not taken over."""
    driver.step()
    driver.complete(pending(driver, kind).ticket)


STAGES = pytest.mark.parametrize("stage", [queued, running, halfway, arrived], ids=lambda stage: stage.__name__)
