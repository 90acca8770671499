"""The fixtures that open a cache or a storage backend, and the hooks that parametrize the tests which use them.

A suite's conftest.py imports them. `config` and `backend` are parameters, not fixtures. A test that uses `config`,
`adapter` or `driver` runs once for each configuration that its clauses and its `@clause` select; one that uses
`backend`, `place` or `store` once for each backend of the run. `hicache_driver` is for a project's own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from hicache.config import CacheConfig
from hicache.errors import MissingTorchError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.configurations import ON_MODEL
from hicache.testing.contract import Checks
from hicache.testing.devices import missing_device
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.failures import recorded
from hicache.testing.plugin.items import FINAL_CHECK
from hicache.testing.plugin.options import BACKEND, adapter_path
from hicache.testing.plugin.selection import (
    NotOpened,
    Selection,
    adapter_of,
    backends_of,
    configurations_of,
    own_adapter,
    select,
    subject_of,
)
from hicache.testing.plugin.tags import OPERATIONS, named_subject, suite_of
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.scripted import store_of
from hicache.testing.storage.subject import BackendSubject, Place
from hicache.testing.storage.writers import Writers

__all__ = ["adapter", "adapter_type", "driver", "place", "pytest_generate_tests", "store", "writers"]

DriverType = TypeVar("DriverType", bound=Driver)


@pytest.fixture(scope="session")
def adapter_type(pytestconfig: pytest.Config) -> type[CacheAdapter]:
    """The class under test, with randomly delayed transfers."""
    adapter = subject_of(pytestconfig).adapter
    if adapter is NotOpened:
        pytest.skip(str(MissingTorchError.of("the reference cache over the backend")))
    return adapter.delayed()


@pytest.fixture
def adapter(adapter_type: type[CacheAdapter], config: CacheConfig) -> Iterator[CacheAdapter]:
    """A new cache for the test, opened on empty storage and closed after the test."""
    yield from open_cache(adapter_type, config)


@pytest.fixture
def driver(adapter: CacheAdapter, config: CacheConfig, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A driver of that cache. If the test passes, everything is checked once more at its end."""
    yield from drive(Driver(adapter, config), request)


def open_cache(adapter_type: type[CacheAdapter], config: CacheConfig) -> Iterator[CacheAdapter]:
    """What the fixture `adapter` does."""
    store = store_of(config)
    if store is not None:
        store.empty()
    opened = recorded(_on_model(adapter_type, config) or adapter_type)(config)
    yield opened
    opened.close()


def drive(driver: DriverType, request: pytest.FixtureRequest) -> Iterator[DriverType]:
    """What the fixture `driver` does with a driver of a new cache."""
    adapter = driver.adapter
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
    checks: Checks | None = None if mark is None else mark.args[0]
    if checks is not None and checks.each:
        cases = [
            pytest.param(component, config, id=f"{component}-{name}", marks=marks)
            for component in checks.each
            for config, name, marks in _cases(adapter, select(checks.for_component(component), adapter, configurations))
        ]
        metafunc.parametrize(("component", "config"), cases)
        return
    everywhere = Selection(tuple(configurations), (), "")
    chosen = everywhere if checks is None else select(checks, adapter, configurations)
    cases = [pytest.param(config, id=name, marks=marks) for config, name, marks in _cases(adapter, chosen)]
    metafunc.parametrize("config", cases)


Case = tuple[CacheConfig | None, str, list[pytest.MarkDecorator]]
"""A configuration, its name and its marks; None and a mark that skips the test, where none is selected."""


def _cases(adapter: type[CacheAdapter], chosen: Selection) -> list[Case]:
    if chosen.reason:
        return [(None, "none", [pytest.mark.skip(reason=chosen.reason)])]
    return [(config, config.name, _marks(adapter, config)) for config in chosen.configurations]


def _marks(adapter: type[CacheAdapter], config: CacheConfig) -> list[pytest.MarkDecorator]:
    missing = missing_device(config.device)
    return [pytest.mark.skip(reason=missing)] if missing and _on_model(adapter, config) is None else []


def _on_model(adapter: type[CacheAdapter], config: CacheConfig) -> type[CacheAdapter] | None:
    """The class that opens a configuration on a model of CUDA, where its device is missing."""
    return adapter.on_model(0) if config.name in ON_MODEL and missing_device(config.device) else None


OpenDriver = Callable[..., Driver]
"""Called with an adapter's class and a configuration; both may be left out."""


def own_drivers(request: pytest.FixtureRequest) -> Iterator[OpenDriver]:
    """What the fixture does. Everything that it opens is checked at the end of the test, and closed after it."""
    drivers: list[Driver] = []

    def check() -> None:
        for driver in drivers:
            driver.check()

    with ExitStack() as opened:

        def open_driver(adapter: type[CacheAdapter] | None = None, config: CacheConfig | None = None) -> Driver:
            kind = adapter or adapter_of(request.node)
            if adapter is not None:
                request.node.user_properties.append(named_subject(adapter))
            chosen = config or configurations_of(kind, quick=True)[0]
            cache = opened.enter_context(contextmanager(open_cache)(kind.delayed(), chosen))
            driver = opened.enter_context(contextmanager(drive)(Driver(cache, chosen), request))
            drivers.append(driver)
            request.node.stash[FINAL_CHECK] = check
            return driver

        yield open_driver


@pytest.fixture
def place(backend: BackendSubject, tmp_path: Path) -> Iterator[Place]:
    """An empty place for the backend. Everything opened in it is closed after the test."""
    with closing(Place(backend, tmp_path)) as opened:
        yield opened


@pytest.fixture
def store(place: Place, record_property: Callable[[str, object], None]) -> Iterator[StorageDriver]:
    """A driver of one instance of the backend in that place."""
    driver = StorageDriver(place)
    yield driver
    record_property(OPERATIONS, driver.operations)


@pytest.fixture(scope="session")
def writers() -> Iterator[Writers]:
    """Other processes that write to a backend."""
    opened = Writers()
    yield opened
    opened.close()


def parametrize_backends(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test over the backends of the run; one with `metadata` only over those with that service."""
    if "backend" not in metafunc.fixturenames:
        return
    subjects = backends_of(metafunc.config)
    adapter = adapter_path(metafunc.config)
    reason = f"this run verifies {adapter}; give {BACKEND.flag} to verify a storage backend"
    if subjects and "metadata" in metafunc.fixturenames:
        reason = f"{', '.join(subject.name for subject in subjects)}: no option names a metadata service"
        subjects = tuple(subject for subject in subjects if subject.asks_metadata)
    none = pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))
    metafunc.parametrize("backend", [pytest.param(subject, id=subject.name) for subject in subjects] or [none])
