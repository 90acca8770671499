"""Storage to which every rank writes what it holds, also what other ranks hold alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

from hicache.config import CacheConfig
from hicache.parallel.group import Group
from hicache.storage.keys import StorageKeys
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.types import Pool


class EveryRankWrites(ReferenceAdapter):
    """No rank leaves a shared shard to another one."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        names = StorageKeys.of(config) if config.storage else None
        everything = names and replace(names, written=frozenset(Pool))
        with patch.object(StorageKeys, "of", lambda _: everything):
            super().__init__(config, groups)
