"""ExtraConfig: what is said about storage in a JSON string or a file, for the prefetches and for the backend."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hicache.errors import ConfigurationError
from hicache.tables import name_of_source, read_table


@dataclass(frozen=True, slots=True)
class ExtraConfig:
    """The keys of the extra configuration that are the cache's own, by their names in it; and the backend's options.

    `prefetch_threshold`: FULL tokens below which nothing is fetched. `prefetch_timeout_base`,
    `prefetch_timeout_per_ki_token`: seconds, and seconds for each 1,024 tokens, with the stop policy `timeout`.
    `hicache_storage_pass_prefix_keys`: tell the backend the keys of the pages before.
    Raises ConfigurationError, naming the key, its value and the type of it, for a value that is not of its kind.
    """

    prefetch_threshold: int
    prefetch_timeout_base: float
    prefetch_timeout_per_ki_token: float
    hicache_storage_pass_prefix_keys: bool
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._check("prefetch_threshold", "an integer, 0 or above", (int,))
        self._check("prefetch_timeout_base", "a finite number, 0 or above", (int, float))
        self._check("prefetch_timeout_per_ki_token", "a finite number, 0 or above", (int, float))
        self._check("hicache_storage_pass_prefix_keys", "true or false", (bool,))
        for key in self.options:
            if not isinstance(key, str):
                raise ConfigurationError(f"the key {key!r} is of type {type(key).__name__}, not a string")
            if key in OWN_KEYS:
                raise ConfigurationError(f"{key} is the cache's own key, not an option of the backend")

    def _check(self, key: str, kind: str, types: tuple[type, ...]) -> None:
        value = getattr(self, key)
        # Not isinstance: a bool would pass as an integer. NaN is not below anything.
        if type(value) not in types or not 0 <= value <= sys.float_info.max:
            raise ConfigurationError(f"{key} is {value!r} ({type(value).__name__}), not {kind}")


OWN_KEYS = tuple(field.name for field in fields(ExtraConfig) if field.name != "options")
"""The keys that the cache keeps to itself. Any other is an option of the backend, `options` too."""

DEFAULTS = ExtraConfig(
    prefetch_threshold=256,
    prefetch_timeout_base=1.0,
    prefetch_timeout_per_ki_token=0.25,
    hicache_storage_pass_prefix_keys=False,
    options={},
)
"""What holds where nothing is said."""


def read_extra_config(source: str) -> ExtraConfig:
    """Read a JSON string, or `@path` of a .json, .toml, .yaml or .yml file; what it does not say is as in DEFAULTS.

    Raises ConfigurationError naming the file, or "inline JSON", and the key with its value and the type of it.
    """
    table = read_table(source)
    own = {key: table.pop(key) for key in OWN_KEYS if key in table}
    try:
        return replace(DEFAULTS, **own, options=table)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name_of_source(source)}: {error}") from error
