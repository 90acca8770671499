"""Backups: what is on its way to the host, and what is there, by the pages of its prompts."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .host_trees import held_below
from .trees import Pages
from .under_way import operations
from .verbs import FULL, key_of


def backed_up(driver: Driver) -> set[Pages]:
    """The prefixes whose FULL data is on the host when all that is under way has ended."""
    driver.drain()
    return set(held_below(driver, FULL))


def queued(driver: Driver) -> int:
    """Backups that are queued or running."""
    return len(operations(driver, TransferKind.BACKUP))


def ask(driver: Driver, pages: Sequence[int], requests: int = 1) -> None:
    """So many requests match a prompt, and compute nothing."""
    for _ in range(requests):
        driver.match(key_of(driver, pages))


def let_fail(driver: Driver, parts_done: int = 0) -> int:
    """Start what is queued and let each transfer fail after its first parts; returns how many there were."""
    driver.step()
    pending = driver.pending()
    for one in pending:
        driver.fail(one.ticket, parts_done)
    driver.step()
    return len(pending)
