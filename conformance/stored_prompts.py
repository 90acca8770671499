"""Prompts that tests store, and the phases of a prefetch that a test can stop it in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.types import StorageKind

from .scenario import Scenario

PROMPT = (1, 2, 3, 4)
"""Four pages: more than a window."""

PREFIXES = tuple(PROMPT[:count] for count in range(1, len(PROMPT) + 1))
"""All prefixes of the prompt. With MAMBA a state is stored after each page if all are cached, the shortest first."""

PAIR = (1, 2)
"""The first two pages of the prompt: one node with any components, since they are no longer than a window."""

OTHER = (7, 8, 9)
"""A prompt that shares no prefix with the others."""

LONG = tuple(range(1, 301))
"""A prompt whose pages are stored, and read, in three batches."""


PrefetchPhase = Callable[[Scenario], None]


def queued(_: Scenario) -> None:
    """Storage was not queried yet."""


def querying(driver: Scenario) -> None:
    """Storage is queried for the pages it has."""
    driver.step()
    driver.pending_job(StorageKind.QUERY)


def known(driver: Scenario) -> None:
    """Storage has answered the query, and no step has taken the answer over."""
    querying(driver)
    driver.complete(driver.pending_job(StorageKind.QUERY).ticket)


def fetching(driver: Scenario) -> None:
    """Storage is asked to read pages."""
    querying(driver)
    driver.complete_job(StorageKind.QUERY)
    driver.pending_job(StorageKind.PREFETCH)


def arrived(driver: Scenario) -> None:
    """All pages are read, and no step has taken them over."""
    fetching(driver)
    driver.complete(driver.pending_job(StorageKind.PREFETCH).ticket)


PREFETCH_PHASES = pytest.mark.parametrize(
    "phase", [queued, querying, known, fetching, arrived], ids=lambda phase: phase.__name__
)
