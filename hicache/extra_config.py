"""ExtraConfig: what is said about storage in a JSON string or a file, for the prefetches and for the backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ExtraConfig:
    """The keys of the extra configuration that are the cache's own, by their names in it; and the backend's options.

    `prefetch_threshold`: FULL tokens below which nothing is fetched. `prefetch_timeout_base`,
    `prefetch_timeout_per_ki_token`: seconds, and seconds for each 1,024 tokens, with the stop policy `timeout`.
    `hicache_storage_pass_prefix_keys`: tell the backend the keys of the pages before.
    """

    prefetch_threshold: int
    prefetch_timeout_base: float
    prefetch_timeout_per_ki_token: float
    hicache_storage_pass_prefix_keys: bool
    options: Mapping[str, Any]
