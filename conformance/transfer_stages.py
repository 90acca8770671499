"""The stages of a transfer: queued, running, one layer moved, or completed and not yet taken over by a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .transfers import pending_transfer

Stage = Callable[[Driver, TransferKind], None]


def queued(driver: Driver, kind: TransferKind) -> None:
    """The transfer has not started."""


def running(driver: Driver, kind: TransferKind) -> None:
    """The transfer has started, and no layer has moved."""
    driver.step()
    pending_transfer(driver, kind)


def halfway(driver: Driver, kind: TransferKind) -> None:
    """One layer has moved."""
    driver.step()
    driver.advance(pending_transfer(driver, kind).ticket)


def arrived(driver: Driver, kind: TransferKind) -> None:
    """All layers have moved, and no step has taken the transfer over."""
    driver.step()
    driver.complete(pending_transfer(driver, kind).ticket)


STAGES = pytest.mark.parametrize("stage", [queued, running, halfway, arrived], ids=lambda stage: stage.__name__)
