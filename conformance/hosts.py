"""Caches whose host tier is not one of the standard ones, but differs from one in a few fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hicache.config import CacheConfig, HostConfig
from hicache.testing.driving.driver import Driver

from .reopening import reopened
from .verbs import MAMBA, SWA


@contextmanager
def another(driver: Driver, *, host: Mapping[str, Any] | None = None, **changes: Any) -> Iterator[Driver]:
    """A driver of an empty cache that differs in these fields of CacheConfig, and of HostConfig; closed at the end."""
    tier = replace(host_of(driver.config), **(host or {}))
    other = reopened(driver, **changes, host=tier)
    try:
        yield other
        other.check()
    finally:
        other.adapter.close()


def host_of(config: CacheConfig) -> HostConfig:
    """The host tier of a configuration that has one."""
    assert config.host is not None, f"{config.name} has a host tier"
    return config.host


def window(config: CacheConfig, pages: int) -> int | None:
    """A window so many pages long, the last of them only in part where a page is several tokens; None without SWA."""
    return pages * config.page_size - config.page_size // 2 if SWA in config.components else None


def room(config: CacheConfig, pages: int, states: int) -> dict[str, int]:
    """A capacity of so many pages of each component, and so many states."""
    return {name: states if name == MAMBA else pages * config.page_size for name in config.components}
