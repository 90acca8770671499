"""Where prompts lie: on both tiers, or on the host alone, with nothing under way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hicache.config import WritePolicy
from hicache.testing.driving.driver import Driver

from .host_trees import held_below
from .trees import held, prefixes
from .verbs import FULL, evict_all, key_of, put


def put_on_both(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, in this order, so that all they have lies on the device and on the host."""
    if _writes_back(driver):
        put_on_host(driver, *prompts)
        for pages in prompts:
            driver.load(key_of(driver, pages))
    else:
        put_through(driver, *prompts)
    missing = _prefixes(prompts) - (held(driver, FULL).keys() & held_below(driver, FULL).keys())
    assert not missing, f"HOST-1: {prompts} were to lie on both tiers, {missing} does not"


def put_on_host(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts, in this order, and let the device lose all that it has; all they have lies on the host then."""
    put_through(driver, *prompts)
    evict_all(driver)
    missing = _prefixes(prompts) - held_below(driver, FULL).keys()
    assert not missing, f"EVICT-7: {prompts} were to lie on the host, {missing} does not"
    assert not held(driver, FULL), f"EVICT-1: {held(driver, FULL).keys()} was to leave the device"


def put_through(driver: Driver, *prompts: Sequence[int]) -> None:
    """Cache prompts as often as a policy other than write_back wants it before it backs them up."""
    for pages in prompts:
        put(driver, pages)
        if _is_selective(driver):
            put(driver, pages)
    driver.drain()


def _prefixes(prompts: Iterable[Sequence[int]]) -> set[tuple[int, ...]]:
    return {prefix for pages in prompts for prefix in prefixes(*pages)}


def _writes_back(driver: Driver) -> bool:
    return driver.config.host is not None and driver.config.host.write_policy is WritePolicy.WRITE_BACK


def _is_selective(driver: Driver) -> bool:
    return driver.config.host is not None and driver.config.host.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
