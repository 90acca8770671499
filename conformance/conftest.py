"""Opens the cache under test. Each test of this suite names its clauses, and runs on configurations of the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.plugin.fixtures import adapter, adapter_type, drive, pytest_generate_tests

from .scenario import Scenario

__all__ = ["adapter", "adapter_type", "driver", "pytest_generate_tests"]


@pytest.fixture
def driver(adapter: CacheAdapter, config: CacheConfig, request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """A driver of that cache. If the test passes, everything is checked once more at its end."""
    yield from drive(Scenario(adapter, config), request)
