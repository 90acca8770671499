"""The stages of a prefetch: queued, storage queried, query answered, pages requested, pages read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.driving.driver import Driver
from hicache.types import StorageKind

from .storage_scenes import complete_job, pending_job

Stage = Callable[[Driver], None]


def queued(_: Driver) -> None:
    """Storage was not queried yet."""


def querying(driver: Driver) -> None:
    """Storage is queried for the pages it has."""
    driver.step()
    pending_job(driver, StorageKind.QUERY)


def known(driver: Driver) -> None:
    """Storage has answered the query, and no step has taken the answer over."""
    querying(driver)
    driver.complete_storage(pending_job(driver, StorageKind.QUERY).ticket)


def fetching(driver: Driver) -> None:
    """Storage is asked to read pages."""
    querying(driver)
    complete_job(driver, StorageKind.QUERY)
    pending_job(driver, StorageKind.PREFETCH)


def arrived(driver: Driver) -> None:
    """All pages are read, and no step has taken them over."""
    fetching(driver)
    driver.complete_storage(pending_job(driver, StorageKind.PREFETCH).ticket)


ALL_STAGES: tuple[Stage, ...] = (queued, querying, known, fetching, arrived)

STAGES = pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda stage: stage.__name__)
