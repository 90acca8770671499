"""What a suite's conftest.py imports: the fixtures that open a cache, the hook behind `config`, Hypothesis' profiles.

`config` is a parameter, not a fixture: a test that uses it, or `adapter`, or `driver`, runs once for each
configuration that its clauses and its `@clause` select.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.configurations import ON_MODEL
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.devices import missing_device
from hicache.testing.plugin.evidence import recorded
from hicache.testing.plugin.selection import Selection, own_adapter, select, subject_of
from hicache.testing.plugin.stash import FINAL_CHECK
from hicache.testing.plugin.tags import OPERATIONS, suite_of
from hicache.testing.storage.scripted import store_of

__all__ = ["adapter", "adapter_type", "driver", "pytest_generate_tests"]


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test, with randomly delayed transfers."""
    return subject_of(pytestconfig).adapter.delayed()


@pytest.fixture
def adapter(adapter_type: type[CacheAdapter], config: CacheConfig) -> Iterator[CacheAdapter]:
    """A new cache for the test, opened on empty storage and closed after the test."""
    yield from open_cache(adapter_type, config)


@pytest.fixture
def driver(adapter: CacheAdapter, config: CacheConfig, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A driver of that cache. If the test passes, everything is checked once more at its end."""
    yield from drive(adapter, config, request)


def open_cache(adapter_type: type[CacheAdapter], config: CacheConfig) -> Iterator[CacheAdapter]:
    """What the fixture `adapter` does."""
    store = store_of(config)
    if store is not None:
        store.empty()
    opened = recorded(_on_model(adapter_type, config) or adapter_type)(config)
    yield opened
    opened.close()


def drive(adapter: CacheAdapter, config: CacheConfig, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """What the fixture `driver` does."""
    driver = Driver(adapter, config)
    request.node.stash[FINAL_CHECK] = driver.check
    yield driver
    request.node.user_properties.append((OPERATIONS, driver.operations))
    if driver.adapter is not adapter:
        driver.adapter.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test over its configurations. In the conformance suite, a test without a clause is an error."""
    test, takes_config = metafunc.definition, "config" in metafunc.fixturenames
    mark = test.get_closest_marker("clause")
    if mark is None and (takes_config or suite_of(test.path, test.config.rootpath) == "conformance"):
        pytest.fail(f"{test.nodeid} names no clause: mark it with @clause(...)", pytrace=False)
    if mark is not None and takes_config and own_adapter(test) is None:
        subject = subject_of(metafunc.config)
        parametrize(metafunc, subject.adapter, subject.configurations)


def parametrize(metafunc: pytest.Metafunc, adapter: type[CacheAdapter], configurations: Sequence[CacheConfig]) -> None:
    """Parametrize a test with `config` over those configurations that its clauses select, or over all without any."""
    if "config" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("clause")
    chosen = Selection(tuple(configurations), (), "")
    if mark is not None:
        chosen = select(mark.args[0], adapter, configurations)
    if chosen.reason:
        parameters = [pytest.param(None, id="none", marks=pytest.mark.skip(reason=chosen.reason))]
    else:
        parameters = [pytest.param(one, id=one.name, marks=_marks(adapter, one)) for one in chosen.configurations]
    metafunc.parametrize("config", parameters)


def _marks(adapter: type[CacheAdapter], config: CacheConfig) -> list[pytest.MarkDecorator]:
    missing = missing_device(config.device)
    return [pytest.mark.skip(reason=missing)] if missing and _on_model(adapter, config) is None else []


def _on_model(adapter: type[CacheAdapter], config: CacheConfig) -> type[CacheAdapter] | None:
    """The class that opens a configuration on a model of CUDA, where its device is missing."""
    return adapter.on_model(0) if config.name in ON_MODEL and missing_device(config.device) else None
