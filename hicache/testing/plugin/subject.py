"""Subject: the adapter class that a run verifies, and the configurations to open it with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, load_adapter
from hicache.testing.plugin.selection import configurations_of


@dataclass(frozen=True, slots=True)
class Subject:
    """`path`: that of the adapter class, `package.module:Class`."""

    path: str
    adapter: type[CacheAdapter]
    configurations: tuple[CacheConfig, ...]


_SUBJECT = pytest.StashKey[Subject]()


def subject_of(config: pytest.Config) -> Subject:
    """The subject of a run. Raises UsageError when the adapter cannot be loaded."""
    if _SUBJECT not in config.stash:
        config.stash[_SUBJECT] = _load(config.getoption("--adapter"), quick=config.getoption("--quick"))
    return config.stash[_SUBJECT]


def _load(path: str, *, quick: bool) -> Subject:
    try:
        adapter = load_adapter(path)
    except (ImportError, ValueError) as error:
        raise pytest.UsageError(f"--adapter {path}: {error}") from error
    return Subject(path, adapter, tuple(configurations_of(adapter, quick=quick)))
