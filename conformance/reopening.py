"""Caches that are not one of the standard configurations, but differ from one in a few fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver


def reopened(driver: Driver, **changes: Any) -> Driver:
    """A driver of an empty cache that differs from another in these fields of CacheConfig."""
    return _opened(type(driver.adapter), replace(driver.config, **changes))


def with_window(driver: Driver, pages: int) -> Driver:
    """An empty cache with a window so many pages long, the last of them only in part where a page is several tokens."""
    page = driver.config.page_size
    return reopened(driver, sliding_window_size=pages * page - page // 2)


def standard(adapter: type[CacheAdapter], name: str, **changes: Any) -> Driver:
    """A driver of a standard configuration by its name, with these fields of CacheConfig changed."""
    config = next(config for config in standard_configurations(adapter.capabilities) if config.name == name)
    return _opened(adapter, replace(config, **changes))


def _opened(adapter: type[CacheAdapter], config: CacheConfig) -> Driver:
    listed = adapter.configurations()
    if listed is not None and config not in listed:
        pytest.skip(f"{adapter.__name__} lists its configurations, and {config} is none of them")
    return Driver(adapter(config), config)
