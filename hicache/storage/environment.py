"""environment: sets variables of the process while a library that reads them is set up."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock

_lock = RLock()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process for the time of the block. Only one thread at a time is in such a block."""
    with _lock:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
