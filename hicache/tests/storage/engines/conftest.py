"""A process of each engine that is installed, and backends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend
from hicache.tests.storage.engines.engine import Engine, EngineProcess
from hicache.tests.storage.engines.engines import ENGINES

SCOPE = "tiny-1"
PAGE_BYTES = 64 << 10

Start = Callable[..., EngineProcess]
Open = Callable[..., StorageBackend]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine. The test is skipped where it cannot be started."""
    found = ENGINES[request.param]
    if found.missing:
        pytest.skip(found.missing)
    return found


def require(engine: Engine, feature: str) -> None:
    """Skip the test that runs if the engine does not have a feature."""
    if reason := engine.lacks.get(feature):
        pytest.skip(reason)


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Iterator[Start]:
    """Starts a process of the engine: `start(capacity_bytes=1 << 24)`. It is ended with the test."""
    started: list[EngineProcess] = []

    def start_one(**settings: Any) -> EngineProcess:
        started.append(EngineProcess(engine, tmp_path, **settings))
        return started[-1]

    yield start_one
    for process in started:
        process.close()


@pytest.fixture
def open_on(engine: Engine) -> Iterator[Open]:
    """Opens a backend on a process, with further options: `open_on(process, timeout_s=1)`."""
    opened: list[StorageBackend] = []

    def open_one(process: EngineProcess, **options: object) -> StorageBackend:
        opened.append(open_backend(engine.backend, SCOPE, {**process.options, **options}))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()
