"""Caches that differ from a standard configuration in a few fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import CacheConfig, HostConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver

from .scenario import MAMBA, SWA


def open_variant(driver: Driver, **changes: Any) -> Driver:
    """A driver of an empty cache that differs in these fields of CacheConfig."""
    return _opened(type(driver.adapter), replace(driver.config, **changes))


def open_with_window(driver: Driver, pages: int) -> Driver:
    """An empty cache whose window is so many pages long, the last of them only in part if a page has several tokens."""
    page = driver.config.page_size
    return open_variant(driver, sliding_window_size=pages * page - page // 2)


def open_standard(adapter: type[CacheAdapter], name: str, **changes: Any) -> Driver:
    """A driver of the standard configuration of this name, with these fields of CacheConfig changed."""
    config = next(config for config in standard_configurations(adapter.capabilities) if config.name == name)
    return _opened(adapter, replace(config, **changes))


@contextmanager
def host_variant(driver: Driver, *, host: Mapping[str, Any] | None = None, **changes: Any) -> Iterator[Driver]:
    """A driver of an empty cache that differs in these fields of CacheConfig and of HostConfig; closed at the end."""
    tier = replace(host_config(driver.config), **(host or {}))
    other = open_variant(driver, **changes, host=tier)
    try:
        yield other
        other.check()
    finally:
        other.adapter.close()


def host_config(config: CacheConfig) -> HostConfig:
    """The host tier of a configuration that has one."""
    assert config.host is not None, f"{config.name} has a host tier"
    return config.host


def window_tokens(config: CacheConfig, pages: int) -> int | None:
    """A window so many pages long in tokens, the last page only in part if it has several tokens; None without SWA."""
    return pages * config.page_size - config.page_size // 2 if SWA in config.components else None


def capacity_for(config: CacheConfig, pages: int, states: int) -> dict[str, int]:
    """A capacity of so many pages of each component, and so many states."""
    return {name: states if name == MAMBA else pages * config.page_size for name in config.components}


def _opened(adapter: type[CacheAdapter], config: CacheConfig) -> Driver:
    listed = adapter.configurations()
    if listed is not None and config not in listed:
        pytest.skip(f"{adapter.__name__} lists its configurations, and {config} is not among them")
    return Driver(adapter(config), config)
