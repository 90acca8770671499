"""Shortages: a test holds all of one component but a few pages or states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hicache.testing.driving.driver import Driver
from hicache.types import NO_SLOTS, Slots

from .request_steps import allocate_all
from .scenario import FULL, MAMBA, SWA, has


@contextmanager
def leave_only(driver: Driver, component: str, count: int) -> Iterator[None]:
    """While the block runs only so many pages or states of a component can be had, and of the others what is left.

    Everything evictable is evicted first.
    """
    held, states = NO_SLOTS, list[int]()
    if component == MAMBA:
        states = _allocate_states(driver)
        _free_states(driver, states[:count])
        states = states[count:]
    else:
        held = _allocate_full(driver) if component == FULL else allocate_all(driver)
        given = count * driver.config.page_size
        driver.free(held[:given])
        held = held[given:]
    try:
        yield
    finally:
        driver.free(held)
        _free_states(driver, states)


def _allocate_full(driver: Driver) -> Slots:
    """Allocate every FULL slot, and give all SWA partners back."""
    taken = [allocate_all(driver)]
    while has(driver, SWA) and len(taken[-1]):
        driver.release_window(taken[-1])
        taken.append(allocate_all(driver))
    return np.concatenate(taken)


def _allocate_states(driver: Driver) -> list[int]:
    return list(iter(driver.allocate_state, None))


def _free_states(driver: Driver, states: Sequence[int]) -> None:
    for state in states:
        driver.free_state(state)
