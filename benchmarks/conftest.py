"""Opens the caches that are measured, and skips what the adapter does not declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import needs_of
from hicache.testing.plugin.subject import subject_of

Require = Callable[..., None]


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test, with its transfers as fast as they are."""
    return subject_of(pytestconfig).adapter


@pytest.fixture
def require(adapter_type: type[CacheAdapter]) -> Require:
    """Skips what the adapter does not declare: `require(config, *capabilities)`."""

    def require_all(config: CacheConfig, *needs: Capability) -> None:
        lacking = needs_of(config).union(needs) - adapter_type.capabilities
        if lacking:
            names = ", ".join(sorted(capability.name for capability in lacking))
            pytest.skip(f"adapter {adapter_type.__name__} does not declare {names}")

    return require_all


@pytest.fixture
def open_cache(adapter_type: type[CacheAdapter], require: Require) -> Iterator[Callable[..., CacheAdapter]]:
    """Opens a cache until the test ends, or skips: `open_cache(config, *capabilities)`."""
    opened: list[CacheAdapter] = []

    def open_one(config: CacheConfig, *needs: Capability) -> CacheAdapter:
        require(config, *needs)
        opened.append(adapter_type(config))
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()
