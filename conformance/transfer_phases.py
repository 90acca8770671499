"""The phases of a transfer that a test can stop it in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.types import TransferKind

from .scenario import Scenario

Phase = Callable[[Scenario, TransferKind], None]


def queued(driver: Scenario, kind: TransferKind) -> None:
    """The transfer has not started."""


def running(driver: Scenario, kind: TransferKind) -> None:
    """The transfer has started, and no layer has moved."""
    driver.step()
    driver.pending_transfer(kind)


def halfway(driver: Scenario, kind: TransferKind) -> None:
    """One layer has moved."""
    driver.step()
    driver.advance(driver.pending_transfer(kind).ticket)


def arrived(driver: Scenario, kind: TransferKind) -> None:
    """All layers have moved, and no step has taken the transfer over."""
    driver.step()
    driver.complete(driver.pending_transfer(kind).ticket)


PHASES = pytest.mark.parametrize("phase", [queued, running, halfway, arrived], ids=lambda phase: phase.__name__)
