"""For the tests of the package: no deadline of Hypothesis, and no search for garbage among what was imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from hicache.testing.imports import MANY_MODULES

# On a machine with other work an example may take any time.
settings.register_profile("own", deadline=None)
settings.load_profile("own")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[object]:
    """The process that runs of changed caches are forked from: one for all tests of this process."""
    from hicache.tests.proof.forked_runs import ForkServer

    server = ForkServer()
    yield server
    server.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze what was imported and collected: it stays, and some tests collect garbage again and again."""
    _freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    """Freeze the libraries that a test has imported, such as those of models: they stay too."""
    before = len(sys.modules)
    try:
        return (yield)
    finally:
        if len(sys.modules) - before >= MANY_MODULES:
            _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()
