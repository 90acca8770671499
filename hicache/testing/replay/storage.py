"""The storage tier of a replay: its settings, and the configuration made from them."""

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
"""A placeholder in an option: an empty folder, which is removed after the replay."""

NEVER = 1.0
"""The value of `restart_at` for no restart."""

_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The storage tier of a replay. Raises ConfigurationError, naming the field, for a number out of range.

    `backend`: as in StorageConfig. `extra`: an extra configuration, as JSON or as @path; without an option for the
    place of its pages, a backend of this project uses a folder that is removed afterwards. `queue_steps`: how many
    steps a request waits in the queue during its prefetch before the prefetch is checked. `restart_at`: the share of
    the requests after which the cache is closed and another one opened on the same storage; 1 for never.
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
        """The number of requests before the restart, or in the first half when there is no restart."""
        return int(requests * self.restart_at) if self.restart_at < NEVER else requests // 2


def storage_config(
    settings: StorageSettings, host: HostConfig, totals: Survey, page_size: int, directory: Path
) -> StorageConfig:
    """The configuration to open; prefetches in flight may load as many tokens as the host can hold.

    `directory`: a folder that only this replay uses. Raises ConfigurationError for an invalid extra configuration.
    """
    extra = read_extra_config(settings.extra)
    options = {**_default_options(settings.backend, totals.footprint_tokens // page_size), **extra.options}
    is_stepped = host.executor is ExecutorKind.STEPPED
    return StorageConfig(
        backend=settings.backend,
        **asdict(replace(extra, options={name: _with_folder(value, directory) for name, value in options.items()})),
        model="replay",
        stop_policy=settings.stop_policy,
        timeout_cap_s=_LONGEST_WAIT_S,
        limit_tokens=host.capacity_tokens[Component.FULL],
        executor=ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED,
    )


def _default_options(backend: str, footprint_pages: int) -> Mapping[str, Any]:
    """The default options that tell a backend where to store pages, with capacity for all of them."""
    options: Mapping[str, Mapping[str, Any]] = {
        SCRIPTED: {"store": FOLDER},
        "memory": {"store": FOLDER},
        "file": {"root": FOLDER},
        "slotfile": {"root": FOLDER, "capacity_slots": max(1, footprint_pages)},
    }
    return options.get(backend, {})


def _with_folder(value: Any, directory: Path) -> Any:
    return value.replace(FOLDER, str(directory)) if isinstance(value, str) else value
