"""The fixture `hicache_driver`: drivers for a project's own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.fixtures import drive, open_cache
from hicache.testing.plugin.selection import adapter_of, configurations_of
from hicache.testing.plugin.stash import FINAL_CHECK
from hicache.testing.plugin.tags import named_subject

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
            driver = opened.enter_context(contextmanager(drive)(cache, chosen, request))
            drivers.append(driver)
            request.node.stash[FINAL_CHECK] = check
            return driver

        yield open_driver
