"""Backups: which prefixes are on the host, which are queued, and how a test makes them fail."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .scenario import FULL, key_of
from .transfers import transfer_views
from .tree_view import Pages, host_slots


def backed_up(driver: Driver) -> set[Pages]:
    """Drain, and return the prefixes whose FULL data is on the host."""
    driver.drain()
    return set(host_slots(driver, FULL))


def queued_backups(driver: Driver) -> int:
    """The number of nodes whose backup is queued or running."""
    return len(transfer_views(driver, TransferKind.BACKUP))


def match_prompt(driver: Driver, pages: Sequence[int], requests: int = 1) -> None:
    """So many requests match a prompt and compute nothing."""
    for _ in range(requests):
        driver.match(key_of(driver, pages))


def fail_pending(driver: Driver, parts_done: int = 0) -> int:
    """Start what is queued, and let each transfer fail after its first parts; returns the number of transfers."""
    driver.step()
    pending = driver.pending()
    for one in pending:
        driver.fail(one.ticket, parts_done)
    driver.step()
    return len(pending)
