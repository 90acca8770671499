"""How far a fetch has come: storage was not asked, is asked what it has, is asked for it, or has given it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.driving.driver import Driver
from hicache.types import StorageKind

from .stored import answer, asked

Stage = Callable[[Driver], None]


def queued(_: Driver) -> None:
    """Storage was not asked yet."""


def querying(driver: Driver) -> None:
    """Storage is asked what it has."""
    driver.step()
    asked(driver, StorageKind.QUERY)


def known(driver: Driver) -> None:
    """Storage has said what it has, which was not taken over."""
    querying(driver)
    driver.complete_storage(asked(driver, StorageKind.QUERY).ticket)


def fetching(driver: Driver) -> None:
    """Storage is asked for pages."""
    querying(driver)
    answer(driver, StorageKind.QUERY)
    asked(driver, StorageKind.PREFETCH)


def arrived(driver: Driver) -> None:
    """All pages have come, and were not taken over."""
    fetching(driver)
    driver.complete_storage(asked(driver, StorageKind.PREFETCH).ticket)


UNDER_WAY: tuple[Stage, ...] = (queued, querying, known, fetching, arrived)

STAGES = pytest.mark.parametrize("stage", UNDER_WAY, ids=lambda stage: stage.__name__)
