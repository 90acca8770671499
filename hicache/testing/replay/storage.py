"""The storage tier of a replay: what is asked for, and the configuration that it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hicache.config import ExecutorKind, HostConfig, StorageConfig, read_extra_config
from hicache.errors import ConfigurationError
from hicache.testing.replay.survey import Survey
from hicache.testing.storage.scripted import BACKEND as SCRIPTED
from hicache.types import Component, StopPolicy

FOLDER = "{directory}"
"""In a text among the options: an empty folder, which is removed after the replay."""

NEVER = 1.0
"""Of the requests, the share after which the cache is not restarted any more."""

_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The storage tier of a replay. Raises ConfigurationError, naming the field, for a number out of range.

    `backend`: as in StorageConfig. `extra`: an extra configuration, in JSON or as @path; what it does not say of where
    a backend of ours keeps its pages is a folder that is removed afterwards. `queue_steps`: steps that a request waits
    in line, with its prefetch under way, before it is asked whether it may begin. `restart_at`: the share of the
    requests after which the cache is closed, and another one opened on the same storage; 1 for never.
    """

    backend: str
    extra: str
    stop_policy: StopPolicy
    queue_steps: int
    restart_at: float

    def __post_init__(self) -> None:
        if self.queue_steps < 0:
            raise ConfigurationError(f"queue_steps must be 0 or more, got {self.queue_steps!r}")
        if not 0 < self.restart_at <= NEVER:
            raise ConfigurationError(f"restart_at must be above 0 and at most 1, got {self.restart_at!r}")

    def middle(self, requests: int) -> int:
        """How many requests come before the restart, or are the first half where there is none."""
        return int(requests * self.restart_at) if self.restart_at < NEVER else requests // 2


def storage_config(
    settings: StorageSettings, host: HostConfig, totals: Survey, page_size: int, directory: Path
) -> StorageConfig:
    """The configuration to open; prefetches may bring at a time what the host has room for.

    `directory`: of this replay alone. Raises ConfigurationError for an extra configuration that cannot be.
    """
    extra = read_extra_config(settings.extra)
    told = {**_places(settings.backend, totals.footprint_tokens // page_size), **extra.options}
    is_stepped = host.executor is ExecutorKind.STEPPED
    return StorageConfig(
        backend=settings.backend,
        **asdict(replace(extra, options={name: _placed(value, directory) for name, value in told.items()})),
        model="replay",
        stop_policy=settings.stop_policy,
        timeout_cap_s=_LONGEST_WAIT_S,
        limit_tokens=host.capacity_tokens[Component.FULL],
        executor=ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED,
    )


def _places(backend: str, footprint_pages: int) -> Mapping[str, Any]:
    """Where a backend keeps its pages, with room for all, when it is not told."""
    options: Mapping[str, Mapping[str, Any]] = {
        SCRIPTED: {"store": FOLDER},
        "memory": {"store": FOLDER},
        "file": {"root": FOLDER},
        "slotfile": {"root": FOLDER, "capacity_slots": max(1, footprint_pages)},
    }
    return options.get(backend, {})


def _placed(value: Any, directory: Path) -> Any:
    return value.replace(FOLDER, str(directory)) if isinstance(value, str) else value
