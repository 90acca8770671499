"""Fixtures that open caches for models, and skip tests whose capabilities the adapter does not declare."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import needs_of
from hicache.testing.plugin.fixtures import adapter_type
from hicache.testing.plugin.selection import subject_of
from hicache.testing.requirements import unsupported_transformers

__all__ = ["adapter_type"]

HAS_MODELS = all(find_spec(name) for name in ("torch", "transformers", "lm_eval"))

MISSING = "transformers or lm-eval is missing: pip install 'hicache[accuracy]'"

OBSTACLE = unsupported_transformers() if HAS_MODELS else MISSING
"""Why no test of this suite can run; empty when they can."""

collect_ignore_glob = ["test_*.py"] if OBSTACLE else []


def pytest_report_header() -> list[str]:
    """Report why this suite was not collected."""
    return [f"accuracy: not collected, {OBSTACLE}"] if OBSTACLE else []


@pytest.fixture
def adapter_path(pytestconfig: pytest.Config) -> str:
    """The class under test as `package.module:Class`, for another process."""
    return subject_of(pytestconfig).path


@pytest.fixture
def open_cache(adapter_type: type[CacheAdapter]) -> Iterator[object]:
    """Opens caches that are closed after the test. Skips the test if the adapter cannot serve a configuration."""
    opened: list[CacheAdapter] = []

    def open_one(config: CacheConfig) -> CacheAdapter:
        lacking = {*needs_of(config), Capability.BYTES} - adapter_type.capabilities
        if lacking:
            names = ", ".join(sorted(capability.name for capability in lacking))
            pytest.skip(f"adapter {adapter_type.__name__} does not declare {names}")
        try:
            opened.append(adapter_type(config))
        except ConfigurationError as error:
            pytest.skip(f"adapter {adapter_type.__name__} cannot serve {config.name}: {error}")
        return opened[-1]

    yield open_one
    for cache in opened:
        cache.close()
