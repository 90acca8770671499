"""Shortages: how little of one component is left, while a test holds the rest of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hicache.testing.driving.driver import Driver
from hicache.types import NO_SLOTS, Slots

from .lives import take_all
from .verbs import FULL, MAMBA, SWA, has


@contextmanager
def left(driver: Driver, component: str, count: int) -> Iterator[None]:
    """So many pages or states of a component are left while the block runs, and of the others what that allows.

    What is evictable is evicted for it.
    """
    held, states = NO_SLOTS, list[int]()
    if component == MAMBA:
        states = _take_states(driver)
        _give_states(driver, states[:count])
        states = states[count:]
    else:
        held = _take_full(driver) if component == FULL else take_all(driver)
        given = count * driver.config.page_size
        driver.free(held[:given])
        held = held[given:]
    try:
        yield
    finally:
        driver.free(held)
        _give_states(driver, states)


def _take_full(driver: Driver) -> Slots:
    """Every FULL slot, and none of the partners."""
    taken = [take_all(driver)]
    while has(driver, SWA) and len(taken[-1]):
        driver.release_window(taken[-1])
        taken.append(take_all(driver))
    return np.concatenate(taken)


def _take_states(driver: Driver) -> list[int]:
    return list(iter(driver.allocate_state, None))


def _give_states(driver: Driver, states: Sequence[int]) -> None:
    for state in states:
        driver.free_state(state)
