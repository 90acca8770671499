"""The storage backends of a run, and the fixtures that open them.

`backend` is a parameter, not a fixture: a test that uses it, or `place`, or `store`, runs once for each backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import CONTRACT, Clause
from hicache.testing.plugin.options import BACKEND, BACKEND_CONFIG, DEFAULT_ADAPTER, adapter_path
from hicache.testing.plugin.tags import OPERATIONS
from hicache.testing.report.run import Execution
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.subject import BACKEND_CLAUSES, SHIPPED, BackendSubject, Place, read_subject
from hicache.testing.storage.writers import Writers

__all__ = ["place", "pytest_generate_tests", "store", "writers"]


def backends_of(config: pytest.Config) -> tuple[BackendSubject, ...]:
    """The backend given by --hicache-backend, or those that ship; none when the run verifies another adapter's cache.

    Raises UsageError for a backend that cannot be found, and for options that cannot be read.
    """
    name, options = BACKEND.text(config), BACKEND_CONFIG.text(config)
    if name is None and options is not None:
        raise pytest.UsageError(f"{BACKEND_CONFIG.source(config)} is given without {BACKEND.flag}")
    if name is None:
        return SHIPPED if adapter_path(config) == DEFAULT_ADAPTER else ()
    try:
        return (read_subject(name, options),)
    except ConfigurationError as error:
        raise pytest.UsageError(f"{BACKEND.source(config)}: {name}: {error}") from error


def contract_of(config: pytest.Config, executions: Sequence[Execution]) -> Mapping[str, Clause]:
    """The clauses that apply to the subject of a run: a backend's if only a backend was tested, or else all."""
    is_about_backend = BACKEND.text(config) is not None
    named = {clause_id for execution in executions for clause_id in execution.clauses}
    return BACKEND_CLAUSES if is_about_backend and named <= BACKEND_CLAUSES.keys() else CONTRACT


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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
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
