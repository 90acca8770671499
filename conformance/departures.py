"""Departures: prompts that leave the device, and are on the host alone."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driving.driver import Driver

from .trees import copies, held, prefixes
from .verbs import FULL, MAMBA, evict_all, has, key_of, put


def depart(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts as any write policy copies them, and evict all that is on the device."""
    for pages in prompts:
        put(driver, pages)
        for _ in range(2):
            driver.match(key_of(driver, pages))
        driver.drain()
    evict_all(driver)
    for pages in prompts:
        left, there = held(driver, FULL), copies(driver, FULL)
        assert not left, f"EVICT-1: nothing is locked, and on the device are {left.keys()}"
        assert prefixes(*pages) <= there.keys(), f"EVICT-7: {pages} is to be on the host, where are {there.keys()}"
        assert not has(driver, MAMBA) or tuple(pages) in copies(driver, MAMBA), f"EVICT-7: {pages} lost its state"
